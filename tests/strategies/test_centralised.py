"""Compare centralised training with plain SGD on the union of all clients' samples."""

from dataclasses import replace

import numpy as np
import pytest

from coprefl_flwr import seeds
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.data import Samples
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.strategies import Centralised
from tests.common.by_hand import assert_equal, descend, loaded, loss_of
from tests.common.federation import CPU

HALVED = "exponential:factor=0.5"
TRAINING = LocalTraining(local_epochs=1, batch_size=20, learning_rate=0.2, schedule=HALVED)


class Silent(LocalGrid):
    """A grid that must not be used."""

    def __init__(self):
        super().__init__(None)

    def push_messages(self, messages):
        assert not list(messages)
        return []


def union(federation):
    parts = federation.samples
    indices, labels = (
        np.concatenate([getattr(p, n) for p in parts]) for n in ("indices", "labels")
    )
    return Samples(parts[0].dataset, indices, labels)


def centralised(federation, training=TRAINING, **options):
    server = ServerData(federation.model, union(federation), CPU)
    return Centralised(server=server, training=training, **options)


def test_two_epochs_by_hand(exact_federation):
    """78 samples make batches of 20, 20, 20 and 18; each round has a different order."""
    start, everything = exact_federation.arrays(), union(exact_federation)
    strategy = centralised(exact_federation, seed=5, population="pretrain")
    result = strategy.start(Silent(), to_record(start), 2)
    model = loaded(start)
    for server_round, rate in ((1, 0.2), (2, 0.1)):
        key, losses = (5, "pretrain", server_round, "centralised"), []
        for positions in np.split(seeds.generator(*key).permutation(78), [20, 40, 60]):
            data = everything.batch(positions, CPU)

            def objective(data=data, losses=losses):
                losses.append(loss_of(model, data))
                return losses[-1]

            descend(model, objective, 1, rate)
        loss_of_round = result.train_metrics_clientapp[server_round]["loss"]
        assert loss_of_round == pytest.approx(np.mean([loss.item() for loss in losses]), rel=1e-12)
    expected = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert_equal(from_record(result.arrays), expected)


def test_resumed_run_has_the_bytes_of_an_uninterrupted_run(stochastic_federation, tmp_path):
    start, path = to_record(stochastic_federation.arrays()), tmp_path / "checkpoint"
    whole = centralised(stochastic_federation).start(Silent(), start, 3)
    centralised(stochastic_federation).start(Silent(), start, 1, checkpoint=path)
    resumed = centralised(stochastic_federation).start(
        Silent(), start, 3, checkpoint=path, resume=True
    )
    for name, array in from_record(whole.arrays).items():
        assert array.tobytes() == from_record(resumed.arrays)[name].tobytes(), name


def test_checkpoint_of_another_training_is_refused(federation, tmp_path):
    start, path = to_record(federation.arrays()), tmp_path / "checkpoint"
    centralised(federation).start(Silent(), start, 1, checkpoint=path)
    other = centralised(federation, replace(TRAINING, batch_size=64))
    with pytest.raises(SettingsError, match="another run: its batch_size is 20, not 64"):
        other.start(Silent(), start, 2, checkpoint=path, resume=True)
