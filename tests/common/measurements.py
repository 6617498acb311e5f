"""A measurement of starting models that a setting can name."""

from coprefl_flwr.studies.measurements import StartMeasurement


class Norm(StartMeasurement):
    """The norm of all weights."""

    phase = "norm-of-weights"

    def measure(self, store):
        return {"norm": float(sum((array**2).sum() for array in self.model(store).values()) ** 0.5)}
