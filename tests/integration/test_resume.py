"""Methods with a state, stopped and resumed: all bytes are equal to an uninterrupted run's."""

import numpy as np
import pytest

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import (
    FedDynClient,
    FRLClient,
    MOONClient,
    SCAFFOLDClient,
    TorchClient,
    client_app,
)
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.strategies import (
    FRL,
    MOON,
    SCAFFOLD,
    Cyclic,
    FedAvg,
    FedDyn,
    Schedule,
    ServerRefined,
)
from tests.common.checks import Killed, files
from tests.common.federation import CPU, Federation
from tests.common.networks import tiny_model
from tests.common.runs import run_of


def server_of(federation):
    return ServerData(tiny_model(), federation.samples[3], CPU)


def cyclic_then(strategy):
    return Schedule([(Cyclic(participants=2, seed=5), 3), (strategy, 3)])


RUN = {"participants": 2, "seed": 5}
PLAIN, SCAFFOLDS = [TorchClient], [SCAFFOLDClient]
METHODS = {
    # The strategy, and its clients' class in each round; later rounds use the last class.
    "scaffold-I": (lambda _: SCAFFOLD(variant="I", **RUN), SCAFFOLDS),
    "scaffold-II": (lambda _: SCAFFOLD(global_learning_rate=0.7, **RUN), SCAFFOLDS),
    "feddyn": (lambda _: FedDyn(alpha=0.1, **RUN), [FedDynClient]),
    "moon": (lambda _: MOON(mu=1.0, **RUN), [MOONClient]),
    "frl": (lambda _: FRL(episode_rounds=2, **RUN), [FRLClient]),
    "refined": (lambda data: ServerRefined(SCAFFOLD(**RUN), data, steps=2), SCAFFOLDS),
    "cyclic+fedavg": (lambda _: cyclic_then(FedAvg(participants=3)), PLAIN),
    "cyclic+scaffold": (lambda _: cyclic_then(SCAFFOLD(participants=3)), PLAIN * 3 + SCAFFOLDS),
    "scaffold+moon": (
        # The checkpoint of round 2 is at the end of the first phase.
        lambda _: Schedule([(SCAFFOLD(**RUN), 2), (MOON(participants=3), 4)]),
        [*SCAFFOLDS * 2, MOONClient],
    ),
    "refined cyclic+scaffold": (
        lambda data: ServerRefined(cyclic_then(SCAFFOLD(participants=3)), data, steps=2),
        PLAIN * 3 + SCAFFOLDS,
    ),
}


def run(method, folder, resume=False, hook=None, killed_by=None, every=2):
    """Run six rounds; in round `killed_by`, a client stops the run after it has trained."""
    federation = Federation.stochastic()
    make, classes = METHODS[method]

    def client(context, client_id, config):
        client_class = classes[min(config["server-round"], len(classes)) - 1]
        more = {"training": federation.training, "device": CPU}
        if client_class is not TorchClient:
            more["state"] = ClientState(folder / "states")
        made = client_class(federation.model, federation.samples[client_id], **more)
        if killed_by == config["server-round"]:
            fit = made.fit

            def fit_and_die(parameters, request):
                fit(parameters, request)
                raise Killed

            made.fit = fit_and_die
        return made

    strategy = make(server_of(federation))
    strategy.clients = 4
    result = strategy.start(
        LocalGrid(client_app(client), nodes=2),
        to_record(federation.arrays()),
        6,
        checkpoint=folder / "checkpoint",
        checkpoint_every=every,
        resume=resume,
        hooks=[hook] if hook else [],
    )
    return strategy, result


def everything(strategy, result, folder):
    """Return all results, states and files of a run, as bytes and plain values."""
    state = {
        name: {n: np.asarray(a).tobytes() for n, a in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in run_of(strategy).state.items()
    }
    return {
        "arrays": {n: a.tobytes() for n, a in from_record(result.arrays).items()},
        "state": state,
        "versions": run_of(strategy).versions.committed,
        "files": files(folder),
        "history": run_of(strategy).history,
    }


def assert_same(resumed, whole):
    for part in whole:
        assert resumed[part] == whole[part], part


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function that returns `everything` of an uninterrupted run of a method."""
    found = {}

    def of(method):
        if method not in found:
            folder = tmp_path_factory.mktemp("whole")
            found[method] = everything(*run(method, folder), folder)
        return found[method]

    return of


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("after", [3, 5])
def test_run_stopped_between_rounds_ends_with_the_same_bytes(tmp_path, whole, method, after):
    """The run stops before the checkpoint of round `after` is written, if a checkpoint is due."""

    def stop(report):
        if report.round == after:
            raise Killed

    with pytest.raises(Killed):
        run(method, tmp_path, hook=stop)
    assert_same(everything(*run(method, tmp_path, resume=True), tmp_path), whole(method))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("round_", [4, 6])
def test_run_stopped_within_a_round_ends_with_the_same_bytes(tmp_path, whole, method, round_):
    """The run stops after a client has written its state of this round."""
    with pytest.raises(Killed):
        run(method, tmp_path, killed_by=round_)
    assert_same(everything(*run(method, tmp_path, resume=True), tmp_path), whole(method))


def test_run_without_its_client_states_is_not_resumed(tmp_path):
    with pytest.raises(Killed):
        run("moon", tmp_path, killed_by=5)
    for path in (tmp_path / "states").rglob("*.safetensors"):
        path.unlink()
    with pytest.raises(RunFailedError, match="round 5 failed"):
        run("moon", tmp_path, resume=True)
