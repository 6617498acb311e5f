"""A schedule runs its phases one after the other; each phase begins with a fresh state."""

from dataclasses import replace

import pytest

from coprefl_flwr.arrays import to_record
from coprefl_flwr.clients import SCAFFOLDClient, TorchClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.strategies import (
    SCAFFOLD,
    Cyclic,
    FedAvg,
    FedAvgM,
    Schedule,
    ServerRefined,
)
from tests.common.by_hand import (
    assert_equal,
    assert_same_states,
    descend,
    loaded,
    loss_of,
    means_by_hand,
    record_samples,
    run_on,
    states_of,
)
from tests.common.federation import CPU, hosted
from tests.common.networks import double_model
from tests.common.runs import run_of
from tests.strategies import test_cyclic, test_scaffold
from tests.strategies.test_cyclic import record_chains

DECAY = [0.1, 0.05, 0.025, 0.0125, 0.00625]


@pytest.fixture
def decaying(exact_federation):
    """The exact federation; the learning rate is halved after every round."""
    exact_federation.training = replace(
        exact_federation.training, schedule="exponential:factor=0.5"
    )
    return exact_federation


def two_phase_grid(federation, folder, switch, hosting="2"):
    """Return a grid of TorchClients; after round `switch` the clients are SCAFFOLDClients."""

    def client(context, client_id, config):
        samples, training = federation.samples[client_id], federation.training_of(client_id)
        more = {"training": training, "device": CPU}
        if config["server-round"] <= switch:
            return TorchClient(federation.model, samples, **more)
        return SCAFFOLDClient(federation.model, samples, state=ClientState(folder), **more)

    return hosted(hosting, client)


def fedavg_by_hand(federation, start, rounds, rates):
    for clients, rate in zip(rounds, rates, strict=True):
        start = means_by_hand(federation, start, clients, rate)
    return start


@pytest.mark.parametrize("hosting", ["1", "4", "pairs", "own"])
def test_cyclic_then_fedavg_by_hand(decaying, hosting):
    cyclic, fedavg = Cyclic(participants=2, seed=1), FedAvg(participants=3)
    chains, sampled = record_chains(cyclic), record_samples(fedavg)
    grid = decaying.grid(hosting, TorchClient)
    arrays, _ = run_on(Schedule([(cyclic, 2), (fedavg, 3)]), grid, decaying.arrays(), 5)
    assert [len(clients) for clients in [*chains, *sampled]] == [2, 2, 3, 3, 3]
    middle, _ = test_cyclic.by_hand(decaying, chains, DECAY[:2])
    assert_equal(arrays, fedavg_by_hand(decaying, middle, sampled, DECAY[2:]))


def test_cyclic_then_scaffold_by_hand(decaying, tmp_path):
    cyclic, scaffold = Cyclic(participants=3, seed=1), SCAFFOLD(participants=2)
    chains, sampled = record_chains(cyclic), record_samples(scaffold)
    strategy = Schedule([(cyclic, 2), (scaffold, 3)])
    arrays, _ = run_on(strategy, two_phase_grid(decaying, tmp_path, 2), decaying.arrays(), 5)
    middle, _ = test_cyclic.by_hand(decaying, chains, DECAY[:2])
    x, c, own = test_scaffold.by_hand(decaying, sampled, x=middle, rates=DECAY[2:])
    assert_equal(arrays, x)
    assert_equal(run_of(strategy).state["control"], c)
    assert_same_states(states_of(strategy, tmp_path), own)


@pytest.mark.parametrize("wrapped", [False, True])
def test_phase_begins_with_a_fresh_state(exact_federation, tmp_path, wrapped):
    """Both phases are SCAFFOLD; in phase 2 all control variates are zero again.

    This holds for the server's and the clients' control variates, and also inside a wrapper.
    """
    phases = [SCAFFOLD(seed=4, participants=3), SCAFFOLD(participants=3)]
    sampled = [record_samples(phase) for phase in phases]
    strategy = Schedule([(phase, 2) for phase in phases])
    if wrapped:
        server = ServerData(double_model(), exact_federation.samples[3], CPU)
        strategy = ServerRefined(strategy, server, steps=0)
    grid = exact_federation.grid("2", SCAFFOLDClient, states=tmp_path)
    arrays, _ = run_on(strategy, grid, exact_federation.arrays(), 4)
    middle, _, _ = test_scaffold.by_hand(exact_federation, sampled[0])
    x, c, own = test_scaffold.by_hand(exact_federation, sampled[1], x=middle)
    assert_equal(arrays, x)
    assert_equal(run_of(strategy).state["control"], c)
    assert_same_states(states_of(strategy, tmp_path), own)


def test_state_of_a_phase_is_removed_at_its_end(federation):
    """FedAvgM's velocity is removed from the state in the phase of FedAvg."""
    strategy = Schedule([(FedAvgM(clients=4), 1), (FedAvg(), 1)])
    grid, start = LocalGrid(federation.torch_app()), to_record(federation.arrays())
    strategy.start(grid, start, 1)
    assert run_of(strategy).state.keys() == {"velocity"}
    strategy.start(grid, start, 2)
    assert run_of(strategy).state == {}


def test_refined_schedule_by_hand(decaying):
    """After each round, the server takes two full-batch steps on the samples of client 3."""
    server = ServerData(double_model(), decaying.samples[3], CPU)
    cyclic, fedavg = Cyclic(participants=2, seed=1), FedAvg(participants=3)
    chains, sampled = record_chains(cyclic), record_samples(fedavg)
    strategy = ServerRefined(
        Schedule([(cyclic, 1), (fedavg, 2)]), server, steps=2, batch_size=31, learning_rate=0.05
    )
    arrays, _ = run_on(strategy, decaying.grid("2", TorchClient), decaying.arrays(), 3)

    def refined(arrays):
        model = loaded(arrays)
        descend(model, lambda: loss_of(model, decaying.whole(3)), 2, 0.05)
        return {name: t.numpy() for name, t in model.state_dict().items()}

    expected = refined(test_cyclic.by_hand(decaying, chains, DECAY[:1])[0])
    for clients, rate in zip(sampled, DECAY[1:], strict=False):
        expected = refined(fedavg_by_hand(decaying, expected, [clients], [rate]))
    assert_equal(arrays, expected)


def test_last_phase_continues(exact_federation):
    strategy = Schedule([(Cyclic(), 1), (FedAvg(), 1)])
    kinds = [type(strategy.phase(n)[0]).__name__ for n in (1, 2, 3, 9)]
    assert kinds == ["Cyclic", "FedAvg", "FedAvg", "FedAvg"]
    assert [strategy.phase(n)[1] for n in (1, 2, 9)] == [0, 1, 1]
    three = Schedule([(Cyclic(), 2), (FedAvg(), 3), (SCAFFOLD(), 4)])
    assert [three.phase(n)[1] for n in (2, 3, 5, 6, 10)] == [0, 2, 2, 5, 5]


def test_run_has_the_options_of_the_first_phase(exact_federation):
    """The second phase draws clients with the seed and the population of the first phase.

    The seed and the population of the second phase have no effect.
    """
    start, ends = exact_federation.arrays(), []
    for second in (FedAvg(participants=2), FedAvg(participants=2, seed=9, population="other")):
        first = Cyclic(participants=2, seed=5, population="pretrain", min_replies=2)
        strategy = Schedule([(first, 1), (second, 3)])
        sampled = record_samples(second)
        arrays, _ = run_on(strategy, exact_federation.grid("1", TorchClient), start, 4)
        ends.append((arrays, sampled))
    assert ends[0][1] == ends[1][1]
    assert_equal(ends[0][0], ends[1][0], tolerance=0)


def test_too_many_participants_of_a_later_phase_are_refused_before_training(exact_federation):
    strategy = Schedule([(Cyclic(participants=2), 2), (FedAvg(participants=5), 2)])
    seen = []

    class Sees(TorchClient):
        def fit(self, parameters, config):
            seen.append(config)
            return super().fit(parameters, config)

    with pytest.raises(SettingsError, match=r"^participants = 5: there are only 4 clients$"):
        run_on(strategy, exact_federation.grid("1", Sees), exact_federation.arrays())
    assert seen == []


@pytest.mark.parametrize(
    ("phases", "line"),
    [
        ([(FedAvg(), 0)], "rounds of FedAvg = 0: must be at least 1"),
        (
            [(Cyclic(min_replies=3), 2), (FedAvg(participants=2), 1)],
            "min_replies: must be at most participants = 2",
        ),
    ],
)
def test_wrong_schedule_is_refused(phases, line):
    with pytest.raises(SettingsError) as caught:
        Schedule(phases)
    assert str(caught.value) == line


def test_checkpoint_of_another_schedule_is_refused(exact_federation, tmp_path):
    """The number of rounds of the last phase may change, because a run can be continued."""
    start, grid = to_record(exact_federation.arrays()), exact_federation.grid("2", TorchClient)

    def run(rounds, resume, switch=1, last=2):
        strategy = Schedule([(Cyclic(), switch), (FedAvg(participants=2), last)])
        strategy.start(grid, start, rounds, checkpoint=tmp_path / "c", resume=resume)

    run(2, resume=False)
    with pytest.raises(SettingsError, match="is of another run: its "):
        run(3, resume=True, switch=2)
    run(4, resume=True, last=3)
