"""A SuperNode that lies over TLS: the model is the model of the other nodes without it."""

import os
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors.numpy import load_file

from coprefl_flwr.federation.messages import ROSTER
from coprefl_flwr.grids import LocalGrid
from tests.chaos.behaviours import NODES_LIE, NODES_LIE_IN_ARRAYS
from tests.chaos.length import LENGTHS, counted
from tests.deployment.test_deployment import EXAMPLE, Deployment

ROOT = Path(__file__).parents[2]
NODES, LIAR, ROUNDS, SEED = 3, 1, 1, 5
LYING = """

from tests.chaos.deployed import Lying

app = Lying(app, {name!r})
"""


def lies():
    """Return {name: (message type, function that changes the records of a reply)}."""
    lies_of = NODES_LIE | NODES_LIE_IN_ARRAYS
    return {
        "a program for an array": ("train", lies_of["a program for an array"]),
        "os._exit": ("train.query", lambda content: os._exit(3)),
        "a million clients": ("train", lies_of["a million clients"]),
        "everybody's clients are its own": (
            ROSTER,
            lambda content: content.update(roster=ConfigRecord({"own": list(range(NODES))})),
        ),
    }


class Lying(ClientApp):
    """An honest app, except that the node with the partition LIAR lies, or fails cleanly."""

    def __init__(self, honest, name, cleanly=False):
        super().__init__()
        self.honest, self.name, self.cleanly = honest, name, cleanly

    def __call__(self, message, context):
        reply = self.honest(message, context)
        if context.node_config["partition-id"] != LIAR:
            return reply
        about, lie = lies()[self.name]
        if message.metadata.message_type != about:
            return reply
        if self.cleanly:
            raise ArithmeticError("cleanly")
        content = dict(reply.content)
        lie(content)
        return Message(RecordDict(content), reply_to=message)


@pytest.mark.parametrize("name", list(lies())[: LENGTHS.get("deployed")])
@counted("deployed")
def test_lying_node_affects_only_its_results(name, tmp_path):
    """Deploy the example with a lying node; compare with a run in which the node fails cleanly."""
    example = changed_example(tmp_path, name)
    # A node with a false roster is not used, so there are fewer participants to draw from.
    participants = NODES - (lies()[name][0] == ROSTER)
    config = f"rounds={ROUNDS} seed={SEED} participants={participants}"
    config += f" min-available-nodes={participants}"
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = str(ROOT)
    deployment = Deployment(tmp_path, "tls", NODES, "-c", config, example=example)
    try:
        code, log = deployment.finish()
    finally:
        deployment.stop()
        os.environ["PYTHONPATH"] = before
    assert code == 0, " | ".join([one for one in log.splitlines() if "rror" in one][-3:])
    left_out = [line for line in log.splitlines() if "left out" in line]
    assert left_out, "no line"
    node = deployment.node_log(LIAR).split("SuperNode ID: ")[1].split()[0]
    assert all(f"node {node} is left out" in line for line in left_out), left_out
    found = load_file(deployment.folder / "outputs" / "deployment" / "model.safetensors")
    expected = without_liar(example, tmp_path, deployment.folder / "data", participants)
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_allclose(found[key], array, atol=1e-4, err_msg=key)


def changed_example(folder, name):
    """Copy the example, and make its app lie."""
    example = folder / "example"
    shutil.copytree(EXAMPLE, example)
    with (example / "deployment_app" / "client_app.py").open("a") as file:
        file.write(LYING.format(name=name))
    return example


def without_liar(example, folder, data, participants):
    """Return the model of the same app in this process, where the liar fails cleanly."""
    for module in [one for one in sys.modules if one.split(".")[0] == "deployment_app"]:
        del sys.modules[module]
    sys.path.insert(0, str(example))
    try:
        from deployment_app.client_app import app as client_app
        from deployment_app.server_app import app as server_app
    finally:
        sys.path.remove(str(example))

    failing = Lying(client_app.honest, client_app.name, cleanly=True)

    def on_node(message, context):
        partition = context.node_config["partition-id"]
        context.node_config["data-path"] = str(data / f"node-{partition}.npz")
        return failing(message, context)

    text = (example / "pyproject.toml").read_text()
    config = tomllib.loads(text)["tool"]["flwr"]["app"]["config"] | {
        "output-dir": str(folder / "expected"), "rounds": ROUNDS, "seed": SEED,
        "min-available-nodes": participants, "participants": participants,
    }  # fmt: skip
    server_app(
        LocalGrid(on_node, nodes=NODES, run_config=config),
        Context(1, 1, {}, RecordDict(), config),
    )
    return load_file(folder / "expected" / "deployment" / "model.safetensors")
