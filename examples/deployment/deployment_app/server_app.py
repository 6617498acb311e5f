"""The ServerApp: pre-trains with CoPreFL, and stores the model and a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.federation.flower import end_log_with
from coprefl_flwr.models import model_arrays, save_model
from coprefl_flwr.strategies import CoPreFL
from coprefl_flwr.studies.settings import Settings
from deployment_app import task

app = ServerApp()

NODE_CLIENTS = "node-clients"
"""A key of the run-config that is not a setting: a file, see docs/deployment.md."""

OPTIONS = ("gamma", "meta-learning-rate", "support-fraction")
"""Keys of the run-config that are options of CoPreFL."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Pre-train with the settings of the run-config."""
    try:
        nodes = str(context.run_config[NODE_CLIENTS])
        settings, options = settings_of(context.run_config), options_of(context.run_config)
        pretrain(grid, settings, options, nodes or None)
    except (SettingsError, RunFailedError) as error:
        end_log_with(error)
        raise


def pretrain(
    grid: Grid, settings: Settings, options: dict[str, Any], node_clients: str | None
) -> None:
    """Pre-train, and write the model to OUTPUT-DIR/RUN-NAME.

    A run of the same name continues after its last checkpoint.

    `options` are the options of CoPreFL.
    `node_clients` is the file with the client of each node; None: each node names its client.

    Raises
    ------
    SettingsError
        Before the first round, if a setting cannot be used.
    RunFailedError
        If a round failed too often. Run the app again to continue after the checkpoint.
    """
    folder = Path(settings.output_dir).expanduser().resolve() / settings.run_name
    checkpoint = folder / "checkpoint.safetensors"
    strategy = CoPreFL(
        gamma=options["gamma"],
        meta_learning_rate=options["meta-learning-rate"],
        participants=settings.participants,
        seed=settings.seed,
        run_name=settings.run_name,
        population="pretrain",
        min_available_nodes=settings.min_available_nodes,
        min_replies=settings.min_replies,
        max_failed_rounds=settings.max_failed_rounds,
        clients=node_clients,
        evaluate_every=0,  # The quality of a start is measured in tasks of new classes.
    )
    result = strategy.start(
        grid,
        to_record(model_arrays(task.initial_model(settings.seed))),
        settings.rounds,
        settings.timeout,
        checkpoint=checkpoint,
        checkpoint_every=settings.checkpoint_every,
        resume=checkpoint.exists(),
    )
    save_model(folder, from_record(result.arrays), about(settings, options))
    print(f"the model is in {folder}")


def about(settings: Settings, options: dict[str, Any]) -> dict[str, Any]:
    """Return the description of the model for its JSON file."""
    return {
        "model": task.MODEL,
        "num-classes": task.NUM_CLASSES,
        "image-shape": task.IMAGE_SHAPE,
        "pixel-mean": [task.PIXEL_MEAN],
        "pixel-std": [task.PIXEL_STD],
        "method": "coprefl",
        "rounds": settings.rounds,
        "participants": settings.participants,
        **options,
        "local-steps": settings.local_steps,
        "batch-size": settings.batch_size,
        "learning-rate": settings.learning_rate,
        "seed": settings.seed,
    }


def settings_of(config: Mapping[str, object]) -> Settings:
    """Return the settings in a run-config, without the app's own keys.

    `clients` is the largest allowed number: how many clients there are depends on the nodes.
    """
    others = {k: value for k, value in config.items() if k not in (NODE_CLIENTS, *OPTIONS)}
    return Settings.from_config({"clients": 1_000_000, **others})


def options_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return CoPreFL's options in a run-config."""
    return {key: config[key] for key in OPTIONS}
