"""The data of a pre-training and of its tasks: which classes, domains and samples are whose."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coprefl_flwr import seeds
from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.labels import check_numbers
from coprefl_flwr.data.load import load_dataset
from coprefl_flwr.data.of_torch import TensorDataset
from coprefl_flwr.data.partition import SCHEMES
from coprefl_flwr.data.samples import Dataset, Samples
from coprefl_flwr.data.splits import (
    choose_classes,
    choose_domains,
    relabel,
    split_classes,
    split_in_two,
)
from coprefl_flwr.errors import SettingsError, concerning
from coprefl_flwr.options import COUNT, NUMBERS, WORDS, check_declared, option

_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The data of the pre-training, and which of it the tasks have."""

    dataset: str = option(
        "glyphs",
        "`glyphs` (embedded), `glyphs:domains` (7 of them in 4 styles), a torchvision name, "
        "`CIFAR100:coarse`, an .npz file (`FILE:NAME` for its labels NAME), a folder of images (by "
        "class, or by domain and class), of Tiny-ImageNet or of LEAF's FEMNIST, a .txt of "
        "speeches (windows 10 characters apart; `FILE:1`: as many as there are), `hf:NAME` or "
        "`hf:FOLDER` of Hugging Face (`hf:cifar100:label=fine_label,image=img`), or module:NAME",
    )
    data_dir: str = option("", "where torchvision datasets are, or are downloaded to")
    samples_per_class: int = option(
        0, "most samples of a class of `dataset` that are used, drawn by seed; 0: all", minimum=0
    )
    relabel: bool = option(
        False,
        "number the labels of the datasets 0, 1, 2, ... in their order, without the classes that "
        "have no sample; false: labels with gaps are refused",
    )
    image_size: int = option(
        0,
        "side of the images, resized once as they are loaded (shorter side, then the middle); "
        "0: as they are, which folders of images of several sizes do not allow",
        unit="pixels",
        minimum=0,
    )
    task_dataset: str = option(
        "",
        "dataset of the downstream tasks, images of bytes normalised as the pre-training's; not "
        "set: the same; grey images become colour where the other's are",
    )
    downstream_classes: str = option(
        "20",
        "classes of the downstream tasks: how many, drawn by seed, or `list:80-99`",
        takes=(COUNT, NUMBERS),
    )
    pretraining_classes: str = option(
        "", "classes of the pre-training; not set: all the others", takes=(COUNT, NUMBERS)
    )
    downstream_domains: str = option(
        "",
        "domains of the downstream tasks, such as `sketch`, or `list:3`; not set: all",
        takes=(NUMBERS, WORDS),
    )
    pretraining_domains: str = option(
        "",
        "domains of the pre-training, such as `photo cartoon`, or `list:0-2`; not set: all. Pixels "
        "are normalised by these alone",
        takes=(NUMBERS, WORDS),
    )
    allow_class_overlap: bool = option(
        False,
        "let the two lists of classes overlap, as they always may where the phases share no domain "
        "or no dataset; tasks then also test on samples that the pre-training saw, unless "
        "task-reserve keeps some from it",
    )
    task_reserve: float = option(
        0.0,
        "part of the samples of each class of both phases that the tasks alone have, the "
        "pre-training the rest; 0: the tasks have all, the pre-training too",
        minimum=0,
        maximum=0.9,
    )
    clients: int = option(100, "clients of the pre-training, |M|", minimum=1)
    partition: str = option(
        "dirichlet",
        "how samples are spread over the clients; `natural`: one writer or speaker each; or a "
        "partitioner of flwr-datasets by its class, as "
        "`InnerDirichletPartitioner:partition_sizes=50,alpha=0.1`",
        choices=SCHEMES,
        own="partition",
    )
    alpha: float = option(0.5, "concentration of the Dirichlet partition", above=0)
    classes_per_client: int = option(2, "classes a client has, `pathological` only", minimum=1)
    min_samples: int = option(10, "fewest samples a client may hold", unit="samples", minimum=2)
    server_reserve: float = option(
        0.05,
        "part of the pre-training samples that no client holds; 0 gives all to the clients",
        minimum=0,
        maximum=0.9,
    )
    server_share: float | None = option(
        None,
        "part of the pre-training samples that the server uses; not set: all of the reserve",
        minimum=0,
        maximum=0.9,
    )
    test_every: int = option(
        0,
        "rounds between tests of the pre-trained model on the dataset's own test part, which no "
        "client holds then, in float32 whatever `precision` is; 0: no test, and the clients hold "
        "all",
        unit="rounds",
        minimum=0,
    )

    def __post_init__(self) -> None:
        """Check each value, then what must hold between them."""
        check_declared(self)
        if self.server_share is not None and self.server_share > self.server_reserve:
            raise SettingsError(
                f"server-share = {self.server_share}: must be at most server-reserve = "
                f"{self.server_reserve}, the samples that no client holds",
                "server-share",
            )

    @property
    def has_task_dataset(self) -> bool:
        """Whether the tasks have a dataset of their own."""
        return self.task_dataset not in ("", self.dataset)


@dataclass(frozen=True)
class Datasets:
    """The datasets of both phases, and their division into classes and domains, drawn by `seed`."""

    settings: DataSettings
    seed: int

    @functools.cached_property
    def loaded(self) -> tuple[Dataset, Dataset]:
        """The datasets of the pre-training and of the tasks, of one shape."""
        chosen = self.settings
        with concerning("dataset"):
            source = load_dataset(
                chosen.dataset,
                chosen.data_dir,
                image_size=chosen.image_size,
                samples_per_class=chosen.samples_per_class,
                seed=self.seed,
                relabel=chosen.relabel,
            )
            check_numbers(f"dataset '{chosen.dataset}'", source)
        names = source.domain_names
        domains = choose_domains("pretraining-domains", chosen.pretraining_domains, names)
        if isinstance(source, ImageDataset) and len(domains) < len(names):
            # A held-out domain must not be known by its brightness.
            rows = rows_of(source, range(len(source.classes)), domains)
            source = source.measured_on(rows)
        if not chosen.has_task_dataset:
            return source, source
        with concerning("task-dataset"):
            other = load_dataset(
                chosen.task_dataset,
                chosen.data_dir,
                image_size=chosen.image_size,
                relabel=chosen.relabel,
            )
            check_numbers(f"dataset '{chosen.task_dataset}'", other)
            return self._alike(source, other)

    def _alike(self, source: Dataset, other: Dataset) -> tuple[Dataset, Dataset]:
        """Return two datasets with as many channels, the second normalised as the first.

        The starting model's first layer was trained on inputs that were normalised so.
        """
        chosen = self.settings
        names = f"task-dataset = '{chosen.task_dataset}' and dataset = '{chosen.dataset}'"
        if isinstance(source, TensorDataset) and isinstance(other, TensorDataset):
            found = [(tuple(one.values.shape[1:]), one.values.dtype) for one in (other, source)]
            if found[0] == found[1]:
                return source, other
            told = " and ".join(f"{'x'.join(map(str, shape))} of {kind}" for shape, kind in found)
            raise SettingsError(f"{names}: values are {told}; they must be alike", "task-dataset")
        if not (isinstance(source, ImageDataset) and isinstance(other, ImageDataset)):
            line = (
                f"{names}: both must be images of bytes, or both tensors that a model is given as "
                "they are; texts have no tasks"
            )
            raise SettingsError(line, "task-dataset")
        if {source.shape[0], other.shape[0]} == {1, 3}:
            source, other = source.in_colour(), other.in_colour()
        if source.shape != other.shape:
            shapes = " and ".join("x".join(map(str, one.shape)) for one in (other, source))
            line = f"{names}: images are {shapes} (channels, height, width); set image-size to"
            raise SettingsError(f"{line} make them alike", "task-dataset")
        return source, other.normalised_as(source)

    @functools.cached_property
    def classes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The classes of both phases, ascending: numbers of each phase's own dataset.

        They may be the same where datasets or domains differ.
        """
        chosen, key = self.settings, (self.seed, "class-split")
        if chosen.has_task_dataset:
            first, second = (len(source.classes) for source in self.loaded)
            texts = chosen.pretraining_classes, chosen.downstream_classes
            return (
                choose_classes("pretraining-classes", texts[0], first, seed_key=key),
                choose_classes("downstream-classes", texts[1], second, seed_key=key),
            )
        disjoint = bool(self.domains[0]) and not set(self.domains[0]) & set(self.domains[1])
        return split_classes(
            len(self.loaded[0].classes),
            downstream=chosen.downstream_classes,
            pretraining=chosen.pretraining_classes,
            allow_overlap=chosen.allow_class_overlap or disjoint,
            seed_key=key,
        )

    @functools.cached_property
    def domains(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The domains of the pre-training and of the tasks; () where a dataset has none."""
        chosen, (first, second) = self.settings, (source.domain_names for source in self.loaded)
        return (
            choose_domains("pretraining-domains", chosen.pretraining_domains, first),
            choose_domains("downstream-domains", chosen.downstream_domains, second),
        )

    def samples(self, phase: int, classes: tuple[int, ...]) -> Samples:
        """Return all samples of some classes of a phase (0, 1), labelled by their positions."""
        source, others = self.loaded[phase], self._divided[1 - phase]
        rows = rows_of(source, classes, self.domains[phase])
        if len(others):  # Else this would only sort them.
            rows = np.setdiff1d(rows, others)
        return Samples(source, rows, relabel(source.labels[rows], classes))

    @functools.cached_property
    def _divided(self) -> tuple[_Rows, _Rows]:
        """The samples of classes of both phases that only the pre-training, or only a task, has.

        Both are empty where `task-reserve` is 0: then both phases use all samples of such a class.
        """
        none = np.empty(0, dtype=np.int64)
        divided = [(none, none)]
        domains = tuple(set.intersection(*map(set, self.domains)))
        if self.settings.task_reserve and not self.settings.has_task_dataset:
            for number in sorted(set(self.classes[0]) & set(self.classes[1])):
                rows = rows_of(self.loaded[0], (number,), domains)
                if len(rows):  # None where the phases have domains of their own.
                    rng = seeds.generator(self.seed, "task-reserve", number)
                    reserved, others = split_in_two(len(rows), self.settings.task_reserve, rng)
                    divided.append((rows[others], rows[reserved]))
        of_pretraining, of_tasks = map(np.concatenate, zip(*divided, strict=True))
        return of_pretraining, of_tasks


def rows_of(source: Dataset, classes: Sequence[int], domains: Sequence[int]) -> _Rows:
    """Return the positions of all samples of some classes, in some domains if there are any."""
    chosen = np.isin(source.labels, classes)
    if source.domains is not None:
        chosen &= np.isin(source.domains, domains)
    return np.flatnonzero(chosen)
