"""The costs of a round, computed before the round runs: its summed step size and its gradients.

Two methods that train for the same number of rounds can differ in the distance that they move the
model, and in the number of gradients that they compute. This module computes both numbers without
training, from the settings and the clients' numbers of samples.

The *summed step size* of a round is the distance that the round's steps would move the global model
if the gradient were constant with norm 1. This distance is the sum of the learning rates of all
steps on the global model's weights. For example, FedAvg with five local steps at rate 0.1 has a
summed step size of 0.5. With momentum m, each step also acts in the steps after it: the k-th step
has the size 1 + m + ... + m^(k-1), in learning rates. Weight decay, regularisers and clipping are
not counted, because they change the direction or depend on the data.

The *gradient evaluations* are the gradients of one sample's loss, summed over the participants and
the server. A Hessian-vector product counts as two further gradients. Losses, features and
prototypes that a method computes in addition to its gradients are *forward evaluations*.

If clients have different numbers of samples, the costs are means over all clients, which is the
expected value for a randomly drawn client.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Work:
    """The facts from which a round's costs are computed.

    `participants` is the number of participants of a round. `sizes` holds the number of training
    samples of every client. `training` is a `learning.LocalTraining`. `options` holds the options
    of the method's clients as {key: value}.
    """

    participants: int
    sizes: Sequence[int]
    training: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    def mean(self, of: Callable[[int], float]) -> float:
        """Return the mean over clients of the function `of`, which takes a number of samples."""
        values = {n: of(n) for n in set(self.sizes)}  # Many clients may have equal sizes.
        return math.fsum(values[n] for n in self.sizes) / len(self.sizes)

    @property
    def samples(self) -> float:
        """Mean number of training samples of a client."""
        return self.mean(float)

    @property
    def step_sum(self) -> float:
        """Summed step size of a client's local training in one round, in learning rates (mean)."""
        return self.mean(self.training.step_sum)

    @property
    def samples_seen(self) -> float:
        """Sum of the batch sizes of a client's local steps in one round (mean over clients)."""
        how = self.training
        return self.mean(lambda n: sum(how.batch_sizes(n, how.steps(n) * how.accumulation)))

    def on_fraction(self, fraction: float) -> "Work":
        """Return a `Work` with this fraction of each client's samples, such as a support set."""
        from coprefl_flwr.data.splits import part_of  # Imports torch, which not all strategies need

        return replace(self, sizes=[part_of(n, fraction) for n in self.sizes])


@dataclass(frozen=True)
class Budget:
    """The costs of one round of a method.

    Parameters
    ----------
    step_sum : float
        Sum of the learning rates of the global model's steps with the local learning rate, divided
        by that rate. For five local steps it is 5. It is nan if steps are normalised, because their
        sizes cannot be compared.
    gradients : float
        Number of gradients of one sample's loss, over all participants and the server.
    at_server : float
        Summed step size of the steps that do not use the local learning rate.
    momentum : float
        Momentum of the global model from round to round: this fraction of the previous round's
        step is added to each round's step.
    forwards : float
        Number of losses, features and prototypes of one sample that are computed without a
        gradient, over all participants.
    """

    step_sum: float
    gradients: float
    at_server: float = 0.0
    momentum: float = 0.0
    forwards: float = 0.0

    def and_server(self, step_size: float, gradients: float) -> "Budget":
        """Return this budget with the costs of steps at the server added."""
        at_server, gradients = self.at_server + step_size, self.gradients + gradients
        return replace(self, at_server=at_server, gradients=gradients)

    def step_sizes(self, training: Any, first: int = 1) -> Iterator[float]:
        """Yield the summed step size of every round from round `first` on, endlessly.

        `first` is the method's first round. The local learning rate of each round is
        `training.rate(round)`, which includes its decay.
        """
        velocity, server_round = 0.0, first
        while True:
            velocity = self.momentum * velocity + self.step_sum * training.rate(server_round)
            yield velocity + self.at_server
            server_round += 1


UNKNOWN = Budget(math.nan, math.nan, forwards=math.nan)
"""The budget of a method that has no "train" action and does not override `budget`."""
