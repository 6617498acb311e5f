"""The settings of a study: one typed list, with defaults, units and limits.

It serves `flwr run` (run-config), Python and whatever else makes a `Settings`. Keys are the field's
terms with hyphens. Run-config has no null: the empty string means "not set".
"""

import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any

from coprefl_flwr.errors import SettingsError

Value = bool | int | float | str


def setting(
    default: Value | None,
    meaning: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare a field of `Settings`: its default, what it means, its unit and its limits."""
    limits = {"minimum": minimum, "maximum": maximum, "above": above, "choices": choices}
    return field(default=default, metadata={"meaning": meaning, "unit": unit, **limits})


PARTITIONS = ("iid", "dirichlet", "pathological", "linear", "square", "exponential", "natural")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything a study can be told; see the field's `meaning` in each declaration."""

    run_name: str = setting("", "name of the run and of its folder; not set: date and time")
    output_dir: str = setting(
        "outputs", "folder that holds the runs' folders; relative to where the SuperLink started"
    )
    resume: bool = setting(False, "go on with the run `run-name` where it stopped")
    seed: int = setting(0, "every random choice is a function of it", minimum=0)

    dataset: str = setting(
        "glyphs",
        "`glyphs` (embedded), `glyphs:domains` (7 of them in 4 styles), a torchvision name, "
        "`CIFAR100:coarse`, an .npz file (`FILE:NAME` for its labels NAME), a folder of images (by "
        "class, or by domain and class), of Tiny-ImageNet or of LEAF's FEMNIST, or a .txt of "
        "speeches",
    )
    data_dir: str = setting("", "where torchvision datasets are, or are downloaded to")
    samples_per_class: int = setting(
        0, "most samples of a class of `dataset` that are used, drawn by seed; 0: all", minimum=0
    )
    image_size: int = setting(
        0,
        "side of the images, resized once as they are loaded (shorter side, then the middle); "
        "0: as they are, which folders of images of several sizes do not allow",
        unit="pixels",
        minimum=0,
    )
    task_dataset: str = setting(
        "",
        "dataset of the downstream tasks, normalised as the pre-training's; not set: the same; "
        "grey images become colour where the other's are",
    )
    downstream_classes: str = setting(
        "20", "classes of the downstream tasks: how many, drawn by seed, or `list:80-99`"
    )
    pretraining_classes: str = setting("", "classes of the pre-training; not set: all the others")
    downstream_domains: str = setting(
        "", "domains of the downstream tasks, such as `sketch`, or `list:3`; not set: all"
    )
    pretraining_domains: str = setting(
        "",
        "domains of the pre-training, such as `photo cartoon`, or `list:0-2`; not set: all. Pixels "
        "are normalised by these alone",
    )
    allow_class_overlap: bool = setting(
        False,
        "let the two lists of classes overlap, as they always may where the phases share no domain "
        "or no dataset; tasks then also test on samples that the pre-training saw, unless "
        "task-reserve keeps some from it",
    )
    task_reserve: float = setting(
        0.0,
        "part of the samples of each class of both phases that the tasks alone have, the "
        "pre-training the rest; 0: the tasks have all, the pre-training too, as in the paper",
        minimum=0,
        maximum=0.9,
    )
    clients: int = setting(100, "clients of the pre-training, |M|", minimum=1)
    partition: str = setting(
        "dirichlet",
        "how samples are spread over the clients; `natural`: one writer or speaker each",
        choices=PARTITIONS,
    )
    alpha: float = setting(0.5, "concentration of the Dirichlet partition", above=0)
    classes_per_client: int = setting(2, "classes a client has, `pathological` only", minimum=1)
    min_samples: int = setting(10, "fewest samples a client may hold", unit="samples", minimum=2)
    server_reserve: float = setting(
        0.05, "part of the pre-training samples that no client holds; 0 gives all to the clients",
        minimum=0, maximum=0.9,
    )  # fmt: skip
    server_share: float | None = setting(
        None,
        "part of the pre-training samples that the server uses; not set: all of the reserve",
        minimum=0,
        maximum=0.9,
    )
    test_every: int = setting(
        0,
        "rounds between tests of the pre-trained model on the dataset's own test part, which no "
        "client holds then; 0: no test, and the clients hold all",
        unit="rounds",
        minimum=0,
    )

    model: str = setting(
        "femnist-cnn",
        "`resnet18`, `resnet8`, `lenet5`, `femnist-cnn`, `femnist-cnn-linear`, "
        "`fashion-mnist-cnn`, `char-lstm` or `module:function`",
    )
    norm: str = setting("batch", "normalisation of the ResNets", choices=("batch", "group"))

    method: str = setting(
        "random fedavg coprefl",
        "methods to pre-train with and compare, separated by spaces; each may have settings of its "
        "own as in `coprefl:gamma=0.25,rounds=20`, and `cyclic+fedavg` is one after the other",
    )
    rounds: int = setting(
        50, "pre-training rounds T, of each phase of `A+B`", unit="rounds", minimum=1
    )
    participants: int = setting(20, "clients per pre-training round, |m|", minimum=1)
    local_steps: int | None = setting(
        None, "SGD steps per participation; not set: 5, or local-epochs", unit="steps", minimum=1
    )
    local_epochs: int | None = setting(
        None, "passes over the local data per participation", unit="epochs", minimum=1
    )
    batch_size: int | None = setting(
        None,
        "samples per step, in tasks too; not set: 32, centralised 64",
        unit="samples",
        minimum=1,
    )
    learning_rate: float = setting(1e-3, "local learning rate eta of the pre-training", above=0)
    learning_rate_decay: float = setting(1.0, "factor on it per round", above=0, maximum=1)
    momentum: float = setting(
        0.0, "momentum of local SGD in the pre-training", minimum=0, maximum=0.9999
    )
    weight_decay: float | None = setting(
        None, "weight decay of local training; not set: 0, in a personalised study 1e-4", minimum=0
    )
    clip_norm: float | None = setting(
        None, "largest l2 norm of a gradient in the pre-training", above=0
    )
    max_local_steps: int | None = setting(
        None, "most SGD steps per participation, where epochs would take more", unit="steps",
        minimum=1,
    )  # fmt: skip

    gamma: float | None = setting(
        None, "CoPreFL's balance: 1 the sum of query losses, 0 their variance", minimum=0, maximum=1
    )
    meta_learning_rate: float | None = setting(
        None,
        "step size of the meta update (CoPreFL's zeta, FedMeta's beta, pFedMe's eta)",
        minimum=0,
    )
    support_fraction: float | None = setting(
        None, "part of a client's samples that is the support set", above=0, maximum=0.99
    )
    resplit: bool | None = setting(None, "draw support and query sets anew every round")
    mu: float | None = setting(
        None,
        "weight of FedProx's proximal term, MOON's contrastive one, FedProto's distance, and "
        "pFedMe's lambda",
        minimum=0,
    )
    q: float | None = setting(None, "q-FFL's exponent of the losses", minimum=0)
    temperature: float | None = setting(None, "temperature tau of MOON and FedPCL", above=0)
    feddyn_alpha: float | None = setting(None, "weight of FedDyn's regulariser", above=0)
    variant: str = setting("", "which form of a method that has several")
    global_learning_rate: float | None = setting(
        None, "server step: SCAFFOLD's eta_g, pFedMe's beta", above=0
    )
    inner_learning_rate: float | None = setting(
        None, "step size of the adaptation in FedMeta and Per-FedAvg", minimum=0
    )
    inner_steps: int | None = setting(
        None, "steps of FedMeta's adaptation, and of pFedMe's own model on a batch", minimum=1
    )
    server_steps: int | None = setting(
        None, "SGD steps on the server's data per round, by the refined methods", minimum=0
    )
    server_learning_rate: float | None = setting(None, "their learning rate", above=0)

    tasks: int = setting(3, "downstream tasks X; 0 ends after the pre-training", minimum=0)
    task_classes: int = setting(5, "classes a task draws", minimum=2)
    head: str = setting(
        "fresh",
        "last layer a task begins with: `fresh`, or `keep` the pre-trained one, where a task's "
        "classes are the pre-training's",
        choices=("fresh", "keep"),
    )
    task_clients: int = setting(10, "clients of a task, |G|, all of whom take part", minimum=1)
    task_partition: str = setting(
        "dirichlet", "how a task's samples are spread over its clients", choices=PARTITIONS
    )
    task_alpha: float = setting(0.5, "concentration of a task's Dirichlet partition", above=0)
    task_train_fraction: float = setting(
        0.8, "part of a task client's samples to train on; it is tested on the rest",
        above=0, maximum=0.99,
    )  # fmt: skip
    task_method: str = setting(
        "fedavg", "algorithm of the tasks, with settings of its own as in `fedprox:mu=1`"
    )
    task_rounds: int = setting(50, "rounds R of a task", unit="rounds", minimum=1)
    task_local_steps: int | None = setting(
        None, "as local-steps, in the tasks", unit="steps", minimum=1
    )
    task_local_epochs: int | None = setting(
        None, "as local-epochs, in the tasks", unit="epochs", minimum=1
    )
    task_learning_rate: float = setting(1e-3, "local learning rate in the tasks", above=0)
    task_evaluate_every: int = setting(
        1, "rounds between evaluations in a task; 0: after the last only", unit="rounds", minimum=0
    )

    personal_datasets: str = setting(
        "",
        "datasets of the same classes, separated by spaces, for a personalised study; of one with "
        "domains `DATASET@NAME` is one and `DATASET@*` are all; not set: `dataset`",
    )
    personal_clients: int | None = setting(
        None, "clients of it; not set: one a dataset, or 5 where there is only one", minimum=1
    )
    shift: str | None = setting(
        None,
        "how its clients differ: by dataset (`feature`), by the Dirichlet partition of classes "
        "(`label`, one dataset), or `both`; not set: feature, of one dataset label",
        choices=("feature", "label", "both"),
    )
    train_per_class: int = setting(
        10, "samples of a class that a client of it trains on, in the mean", minimum=1
    )
    test_per_class: int = setting(
        90, "most that it is tested on, in the same proportions of classes", minimum=1
    )
    backbones: str = setting(
        "pixels",
        "frozen networks that make its features, separated by spaces: a model of this package (its "
        "folder), `resnet18` or another of torchvision, `resnet18=FILE`; `pixels`: none, and "
        "`scratch`: none, and `model` is trained in place of the head",
    )
    head_norm: str | None = setting(
        None, "normalisation in its heads; not set: FedPCL none, all others batch",
        choices=("none", "batch"),
    )  # fmt: skip
    noise_on: str | None = setting(
        None,
        "what noise is laid over: the training images or FedPCL's prototypes; not set: nothing",
        choices=("prototypes", "images"),
    )
    noise_kind: str = setting("laplace", "its distribution", choices=("laplace", "gaussian"))
    noise_scale: float = setting(0.05, "its scale s, of pixels from 0 to 1", minimum=0)
    noise_share: float = setting(0.1, "p in (1 - p) x + noise", minimum=0, maximum=1)

    min_nodes: int = setting(1, "nodes to wait for before the first round", minimum=1)
    min_replies: int = setting(1, "good replies an exchange needs", minimum=1)
    max_failed_rounds: int = setting(3, "attempts at a round before the run fails", minimum=1)
    timeout: float = setting(3600.0, "longest wait for an exchange", unit="s", above=0)
    checkpoint_every: int = setting(5, "rounds between checkpoints", unit="rounds", minimum=1)

    def __post_init__(self) -> None:
        """Check each value, then what must hold between them."""
        for declared in fields(self):
            _check(declared, getattr(self, declared.name))
        for steps, epochs in (
            ("local_steps", "local_epochs"),
            ("task_local_steps", "task_local_epochs"),
        ):
            if getattr(self, steps) is not None and getattr(self, epochs) is not None:
                raise SettingsError(
                    f"{key_of(steps)} = {getattr(self, steps)} and {key_of(epochs)} = "
                    f"{getattr(self, epochs)}: set one of them, not both"
                )
        if self.participants > self.clients:
            raise SettingsError(
                f"participants = {self.participants}: must be at most clients = {self.clients}"
            )
        if not re.fullmatch(r"([A-Za-z0-9_][A-Za-z0-9._-]*)?", self.run_name):
            raise SettingsError(
                f"run-name = {self.run_name!r}: must be letters, digits, '_', '-' and '.', as it "
                "names a folder"
            )
        if self.min_replies > self.participants:
            raise SettingsError(
                f"min-replies = {self.min_replies}: must be at most participants = "
                f"{self.participants}"
            )
        if self.server_share is not None and self.server_share > self.server_reserve:
            raise SettingsError(
                f"server-share = {self.server_share}: must be at most server-reserve = "
                f"{self.server_reserve}, the samples that no client holds"
            )
        if self.resume and not self.run_name:
            raise SettingsError("resume = true: needs the run-name of the run to go on with")

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> "Settings":
        """Make settings from hyphenated keys, as run-config has them.

        Raises
        ------
        SettingsError
            For an unknown key, a wrong type or a value out of its range, in one line.
        """
        known = {key_of(declared.name): declared for declared in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in config.items():
            if key not in known:
                raise SettingsError(unknown("setting", key, list(known)))
            values[known[key].name] = _typed(key, value, _types()[known[key].name])
        return cls(**values)

    def to_config(self) -> dict[str, Value]:
        """Return the settings under hyphenated keys; what is not set is the empty string."""
        return {key_of(n): "" if value is None else value for n, value in asdict(self).items()}


def training_fields() -> tuple[str, ...]:
    """Return the fields that say how methods train, and nothing about data: those between two."""
    names = [declared.name for declared in fields(Settings)]
    return tuple(names[names.index("method") : names.index("tasks")])


def checked(key: str, value: object) -> Value:
    """Return one setting's value with its right type; "" is "not set".

    Raises
    ------
    SettingsError
        For an unknown key, a wrong type or a value out of its range, in one line.
    """
    known = {key_of(declared.name): declared for declared in fields(Settings)}
    if key not in known:
        raise SettingsError(unknown("setting", key, list(known)))
    typed: Any = _typed(key, value, _types()[known[key].name])
    _check(known[key], typed)
    return "" if typed is None else typed


def key_of(name: str) -> str:
    """Return the run-config key of a field."""
    return name.replace("_", "-")


def field_of(key: str) -> str:
    """Return the field of a run-config key."""
    return key.replace("-", "_")


def unknown(what: str, name: str, known: list[str]) -> str:
    """Return a line that says `name` is unknown, with the nearest known one."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known) or 'none'}"
    return f"unknown {what} '{name}': {hint}"


@functools.cache
def _types() -> dict[str, tuple[type, ...]]:
    """Return {field: its allowed types}."""
    hints = typing.get_type_hints(Settings)
    return {
        name: typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        for name, hint in hints.items()
    }


def _typed(key: str, value: object, allowed: tuple[type, ...]) -> object:
    """Return `value` as one of its allowed types; "" is None where None is allowed."""
    if value == "" and type(None) in allowed:
        return None
    if type(value) in allowed:
        return value
    if float in allowed and type(value) is int:
        return float(value)
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    wanted = " or ".join(kinds[kind] for kind in allowed if kind in kinds)
    raise SettingsError(f"{key} = {value!r}: must be {wanted}")


def _check(declared: "Field[Any]", value: Any) -> None:
    """Raise a SettingsError if `value` is outside of the field's limits."""
    if value is None:
        return
    limits, key = declared.metadata, key_of(declared.name)
    if limits["choices"] and value not in limits["choices"]:
        raise SettingsError(f"{key}: {unknown('value', str(value), list(limits['choices']))}")
    low, high, above = limits["minimum"], limits["maximum"], limits["above"]
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"{key} = {value}: must be a finite number")
    fits = (low is None or value >= low) and (high is None or value <= high)
    if not (fits and (above is None or value > above)):
        raise SettingsError(f"{key} = {value}: must be {limits_text(declared)}")


def limits_text(declared: "Field[Any]") -> str:
    """Return a field's limits in words, "" if it has none."""
    low, high, above = (declared.metadata[name] for name in ("minimum", "maximum", "above"))
    if declared.metadata["choices"]:
        return "one of " + ", ".join(declared.metadata["choices"])
    if low is not None and high is not None:
        return f"between {low} and {high}"
    bounds = []
    if above is not None:
        bounds.append(f"above {above}")
    if low is not None:
        bounds.append(f"at least {low}")
    if high is not None:
        bounds.append(f"at most {high}")
    return " and ".join(bounds)


def settings_table() -> str:
    """Return the list of settings as a Markdown table."""
    lines = ["| key | default | limits | meaning |", "| --- | --- | --- | --- |"]
    for declared in fields(Settings):
        default = "" if declared.default is None else declared.default
        shown = str(default).lower() if isinstance(default, bool) else default
        unit = f" ({declared.metadata['unit']})" if declared.metadata["unit"] else ""
        key = key_of(declared.name)
        cell = f"`{shown}`" if shown != "" else "not set"
        meaning = declared.metadata["meaning"].replace("|", "\\|")
        lines.append(f"| `{key}` | {cell}{unit} | {limits_text(declared)} | {meaning} |")
    return "\n".join(lines) + "\n"
