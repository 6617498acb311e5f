"""What a round costs, known before it is run: its summed step size and its gradients.

Methods that train for the same number of rounds do not move the model equally far, nor compute
equally much. Both are computed here from settings and sizes of data, without training.

The *summed step size* is how far a round's steps would move the global model along a gradient of
length 1 that never changes: the sum of the rates of all steps that the global model's weights take.
FedAvg with five local steps of rate 0.1 has 0.5. A momentum m makes a step continue in those behind
it, so that k of them are the sum of 1 + m + ... + m^(k-1). Weight decay, regularisers and clipping
change the direction or depend on the data, and count nothing.

The *gradient evaluations* are gradients of one sample's loss, summed over participants and server.
A product with the Hessian counts as two more; losses, features and prototypes count none: they are
the *forward evaluations*, of which each method says what it computes besides its gradients.

Where clients differ in size, both are means over all clients: what is expected of a drawn one.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Work:
    """What a round works on: its participants, and what each of the clients holds and does.

    `sizes` are the clients' numbers of training samples, `training` is a `learning.LocalTraining`,
    and `options` are those of the method's clients, by key.
    """

    participants: int
    sizes: Sequence[int]
    training: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    def mean(self, of: Callable[[int], float]) -> float:
        """Return the mean over clients of a function of their number of samples."""
        values = {n: of(n) for n in set(self.sizes)}  # Clients may be many, and equally large.
        return math.fsum(values[n] for n in self.sizes) / len(self.sizes)

    @property
    def samples(self) -> float:
        """Training samples of a client."""
        return self.mean(float)

    @property
    def travel(self) -> float:
        """How far the steps of a participation move, in learning rates."""
        return self.mean(self.training.travel)

    @property
    def samples_seen(self) -> float:
        """Samples that the steps of a participation are on, as often as they are seen."""
        return self.mean(lambda n: sum(self.training.batch_sizes(n, self.training.steps(n))))

    def on_fraction(self, fraction: float) -> "Work":
        """Return the same on a part of each client's samples, such as its support set."""
        from coprefl_flwr.data import part_of  # torch: not for strategies without it

        return replace(self, sizes=[part_of(n, fraction) for n in self.sizes])


@dataclass(frozen=True)
class Budget:
    """What a round of a method costs.

    Parameters
    ----------
    travel : float
        Steps of the global model at the local learning rate, in these rates: five local steps are
        5. Nan where a step has no size that can be compared, as it is normalised.
    gradients : float
        Gradients of one sample's loss, over all participants and the server.
    at_server : float
        Summed rates of the steps that do not follow the local learning rate.
    momentum : float
        Part of a round's travel that every further round takes once more.
    forwards : float
        Losses, features and prototypes of one sample without a gradient, over all participants.
    sent : float, optional
        What is sent to all participants and back, in sizes of the global arrays; None where every
        exchange sends these arrays both ways.
    """

    travel: float
    gradients: float
    at_server: float = 0.0
    momentum: float = 0.0
    forwards: float = 0.0
    sent: float | None = None

    def and_server(self, step_size: float, gradients: float) -> "Budget":
        """Return it with steps at the server besides."""
        at_server, gradients = self.at_server + step_size, self.gradients + gradients
        return replace(self, at_server=at_server, gradients=gradients)

    def step_sizes(self, training: Any, first: int = 1) -> Iterator[float]:
        """Yield the summed step size of each round from `first` on, without end.

        The local learning rate decays as it does by the round; `first` is where the method begins.
        """
        velocity, server_round = 0.0, first
        while True:
            velocity = self.momentum * velocity + self.travel * training.rate(server_round)
            yield velocity + self.at_server
            server_round += 1


UNKNOWN = Budget(math.nan, math.nan, forwards=math.nan)
"""Of a method that does not train as the settings say, and does not say what it does."""
