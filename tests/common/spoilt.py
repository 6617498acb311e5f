"""Methods with one planted error each, and a correct method; all are FedAvg otherwise."""

import numpy as np

from coprefl_flwr.arrays import Arrays, cast_like, weights_of, zeros_like
from coprefl_flwr.clients import StatefulClient, TorchClient
from coprefl_flwr.federation import Exchange, Mean, Round, RoundContext
from coprefl_flwr.models import model_arrays
from coprefl_flwr.strategies import FedAvg

ALL = ("pretraining", "task", "personalised")


class CountsNodes(FedAvg):
    """Not exact under hosting: the more nodes there are, the shorter is its step."""

    roles = ("pretraining",)

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        replies = yield Exchange("train", arrays, ctx.sample(), Mean())
        step = 1 / len(ctx.members.nodes())
        moved = {
            name: array + step * (replies.arrays[name] - array)
            for name, array in weights_of(arrays).items()
        }
        return cast_like(replies.arrays | moved, arrays), replies.mean_metrics()


class LeavesItself(TorchClient):
    """Not exact under hosting: adds a weight of the previous client to its first array."""

    before = 0.0

    def fit(self, parameters, config):
        arrays, n, metrics = super().fit(parameters, config)
        found = float(arrays[0].flat[0])
        answer = [arrays[0] + np.float32(LeavesItself.before), *arrays[1:]]
        LeavesItself.before = found
        return answer, n, metrics


class Leaves(FedAvg):
    """Leaves a weight to the next client of the process; a resumed run has forgotten it."""

    roles = ("pretraining",)
    client = LeavesItself


class Forgets(FedAvg):
    """Forgets on resume: the velocity is an attribute, not in `self.state`."""

    roles = ("pretraining",)
    velocity: Arrays | None = None

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        replies = yield Exchange("train", arrays, ctx.sample(), Mean())
        before = self.velocity or zeros_like(weights_of(arrays))
        self.velocity = {n: 0.5 * v + replies.arrays[n] - arrays[n] for n, v in before.items()}
        moved = {name: arrays[name] + v for name, v in self.velocity.items()}
        return cast_like(replies.arrays | moved, arrays), replies.mean_metrics()


class InClass(StatefulClient):
    """Keeps its first array in a class attribute, and averages it with the next round's."""

    kept = {}  # noqa: RUF012

    def fit(self, parameters, config):
        arrays, n, metrics = super().fit(parameters, config)
        before = self.kept.get(config["client"], arrays[0])
        self.kept[config["client"]] = arrays[0].copy()
        return [(arrays[0] + before) / 2, *arrays[1:]], n, metrics


class KeepsInClass(FedAvg):
    """Keeps clients' states in a class attribute, from one run to the next."""

    roles = ("pretraining",)
    client = InClass


class MutatesInRound(FedAvg):
    """Its round writes the new global model into the arrays of the old model."""

    roles = ("pretraining",)

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        replies = yield Exchange("train", arrays, ctx.sample(), Mean())
        for name, array in replies.arrays.items():
            arrays[name][...] = array
        return arrays, replies.mean_metrics()


class Raises(TorchClient):
    """Fails in the second round if it is client 1."""

    def fit(self, parameters, config):
        if (config["client"], config["server-round"]) == (1, 2):
            raise ZeroDivisionError("no samples of class 3")
        return super().fit(parameters, config)


class Fails(FedAvg):
    """One of its clients fails, and the results of the other clients hide it."""

    roles = ("pretraining",)
    client = Raises


class Writes(StatefulClient):
    """Writes a state."""

    def fit(self, parameters, config):
        answer = super().fit(parameters, config)
        self.state.write(config, model_arrays(self.model))
        return answer


class NotStateful(FedAvg):
    """Its exchange lacks stateful=True, so no client ever reads its state."""

    roles = ("pretraining",)
    client = Writes


class HalfOwn(StatefulClient):
    """Trains from the mean of the first array it receives and the first array it stored."""

    def fit(self, parameters, config):
        own = self.state.read(config) or {"first": parameters[0]}
        begun = [(parameters[0] + own["first"]) / 2, *parameters[1:]]
        arrays, n, metrics = super().fit(begun, config)
        self.state.write(config, {"first": arrays[0]})
        return arrays, n, metrics


class KeepsAll(FedAvg):
    """A correct method with a client state, in several roles."""

    roles = ALL
    client = HalfOwn

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        replies = yield Exchange("train", arrays, ctx.sample(), Mean(), stateful=True)
        return replies.arrays, replies.mean_metrics()
