"""Split the data into pre-training and downstream tasks: by classes, domains and samples."""

import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr import seeds
from coprefl_flwr.data.dataset import Dataset, ImageDataset, Rows, Samples, check_numbers
from coprefl_flwr.data.partition import SCHEMES, Spread
from coprefl_flwr.data.sources import load_dataset
from coprefl_flwr.data.text import TextDataset
from coprefl_flwr.errors import SettingsError, about_settings, check_name
from coprefl_flwr.options import COUNT, NUMBERS, WORDS, Checked, option

_Key = tuple[str | int, ...]
_LIST = "a list such as list:3,7,80-99"

SERVER_RESERVE = 0.05
"""The default of `server-reserve` if a method uses the server's data (CoPreFL, section 4.1)."""


@dataclass(frozen=True, kw_only=True)
class DatasetSettings(Checked):
    """Settings of the datasets, and of the split between pre-training and tasks."""

    dataset: str = option(
        "glyphs",
        "`glyphs`, `glyphs:domains` (7 classes in 4 styles, the domains), `fractals`, a "
        "torchvision name, `CIFAR100:coarse`, an .npz file (`FILE:NAME`: its labels NAME), "
        "`hf:NAME` or `hf:FOLDER` of Hugging Face (`hf:cifar100:label=fine_label,image=img`), or "
        "your own function, as module:NAME or file.py:NAME",
    )
    data_dir: str = option(
        "", "folder of the torchvision datasets; missing ones are downloaded to it", counts=False
    )
    data_seed: int | None = option(
        None, "seed of clients, tasks and classes, which `seed` draws if this is not set", minimum=0
    )
    samples_per_class: int = option(
        0, "largest number of samples per class of `dataset`, drawn by the seed; 0: all", minimum=0
    )
    relabel: bool = option(
        False, "number the labels 0, 1, 2, ... in their order; false: labels with gaps are refused"
    )
    image_size: int = option(
        0,
        "side of the images: the shorter side is resized to it, and the middle cut out; 0: as they "
        "are, all of one size",
        unit="pixels",
        minimum=0,
    )
    task_dataset: str = option(
        "",
        "dataset of the downstream tasks; not set: `dataset`; images are normalised like those of "
        "the pre-training, and grey ones get colours if the other dataset has colours",
    )
    downstream_classes: str = option(
        "20",
        "classes of the downstream tasks: how many, drawn by the seed, or a list as `list:80-99`",
        takes=(COUNT, NUMBERS),
    )
    pretraining_classes: str = option(
        "",
        "classes of the pre-training; not set: all classes that the tasks do not use",
        takes=(COUNT, NUMBERS),
    )
    downstream_domains: str = option(
        "",
        "domains of the downstream tasks, such as `sketch`, or `list:3`; not set: all",
        takes=(NUMBERS, WORDS),
    )
    pretraining_domains: str = option(
        "",
        "domains of the pre-training, such as `photo cartoon`, or `list:0-2`; not set: all; pixels "
        "are normalised by these domains alone",
        takes=(NUMBERS, WORDS),
    )
    allow_class_overlap: bool = option(
        False,
        "the pre-training and the tasks may share classes (always if their datasets or domains "
        "differ); the pre-training then sees test samples of tasks, unless `task-reserve` is set",
    )
    task_reserve: float = option(
        0.0,
        "fraction of each shared class's samples that only the tasks use; 0: both use all samples",
        minimum=0,
        maximum=0.9,
    )

    @property
    def has_task_dataset(self) -> bool:
        """Whether the tasks use another dataset than the pre-training."""
        return self.task_dataset not in ("", self.dataset)


@dataclass(frozen=True, kw_only=True)
class DataSettings(Spread, DatasetSettings):
    """Settings of the data: the datasets, the clients of the pre-training, and the server."""

    clients: int = option(100, "clients of the pre-training, |M|", minimum=1, maximum=10**6)
    partition: str = option(
        "dirichlet",
        "how samples are distributed over the clients; `natural`: one writer or speaker per "
        "client; or a partitioner of flwr-datasets by its class name, as "
        "`InnerDirichletPartitioner:partition_sizes=50,alpha=0.1`",
        choices=SCHEMES,
        own="partition",
    )
    server_reserve: float | None = option(
        None,
        "fraction of the pre-training samples that no client holds; 0: the clients hold all; not "
        f"set: {SERVER_RESERVE} if a method of the study uses the server's data, else 0",
        minimum=0,
        maximum=0.9,
    )
    server_share: float | None = option(
        None,
        "fraction of the pre-training samples that the server uses; not set: all of the reserve",
        minimum=0,
        maximum=0.9,
    )
    test_every: int = option(
        0,
        "rounds between tests of the pre-trained model on the dataset's test part, in float32; "
        "clients then hold none of it; 0: no test, and the clients hold all samples",
        unit="rounds",
        minimum=0,
    )

    def __post_init__(self) -> None:
        """Check each value, and that server-share is at most server-reserve."""
        super().__post_init__()
        reserve = SERVER_RESERVE if self.server_reserve is None else self.server_reserve
        if self.server_share is not None and self.server_share > reserve:
            most = f"must be at most server-reserve = {reserve}"
            raise SettingsError(f"server-share = {self.server_share}: {most}", "server-share")


@dataclass(frozen=True)
class Datasets:
    """The datasets, classes, domains and samples of both phases: pre-training (0) and tasks (1).

    Random choices depend on `seed`.
    """

    settings: DataSettings
    seed: int

    @functools.cached_property
    def loaded(self) -> tuple[Dataset, Dataset]:
        """(dataset of the pre-training, dataset of the tasks), with inputs of the same shape."""
        settings = self.settings
        with about_settings("dataset"):
            source = self._load(settings.dataset, settings.samples_per_class)
        names = source.domain_names
        domains = choose_domains("pretraining-domains", settings.pretraining_domains, names)
        if isinstance(source, ImageDataset) and len(domains) < len(names):
            # The normalisation must not use pixels of the domains that are held out.
            rows = rows_of(source, range(len(source.classes)), domains)
            source = source.normalised_on(rows)
        if not settings.has_task_dataset:
            return source, source
        with about_settings("task-dataset"):
            return self._match_channels(source, self._load(settings.task_dataset))

    def _load(self, name: str, samples_per_class: int = 0) -> Dataset:
        dataset = load_dataset(
            name,
            self.settings.data_dir,
            image_size=self.settings.image_size,
            samples_per_class=samples_per_class,
            seed=self.seed,
            relabel=self.settings.relabel,
        )
        check_numbers(f"dataset '{name}'", dataset)
        return dataset

    def _match_channels(self, source: Dataset, other: Dataset) -> tuple[Dataset, Dataset]:
        """Return both datasets with equal channels, `other` with the mean and std of `source`."""
        # The first layer of the starting model is trained on inputs with this mean and std.
        if isinstance(source, ImageDataset) and isinstance(other, ImageDataset):
            if {source.shape[0], other.shape[0]} == {1, 3}:
                source, other = source.in_colour(), other.in_colour()
            other = other.normalised_as(source) if source.shape == other.shape else other
        kinds = [
            f"{'x'.join(map(str, one.shape))} of type {type(one).__name__} with {one.target_kind()}"
            for one in (other, source)
        ]
        if kinds[0] == kinds[1] and not isinstance(source, TextDataset):
            return source, other
        both = f"task-dataset and dataset: samples are {kinds[0]}, and {kinds[1]}"
        raise SettingsError(f"{both}; one kind and one shape are needed: set image-size")

    @functools.cached_property
    def classes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(classes of the pre-training, classes of the tasks), ascending.

        A class is an index in the `classes` of the phase's dataset. The two phases may share
        classes if their datasets or domains differ, or with `allow-class-overlap`.
        """
        settings, key = self.settings, (self.seed, "class-split")
        disjoint = bool(self.domains[0]) and not set(self.domains[0]) & set(self.domains[1])
        allowed = disjoint or settings.allow_class_overlap
        if not self.loaded[0].has_classes:
            if not (allowed or settings.has_task_dataset or settings.task_reserve):
                problem = "without classes, the tasks would have the samples of the pre-training"
                raise SettingsError(f"{problem}: set task-reserve or domains", "task-reserve")
            first, second = (tuple(range(len(source.classes))) for source in self.loaded)
            return first, second
        if settings.has_task_dataset:
            pretraining_size, task_size = (len(source.classes) for source in self.loaded)
            texts = settings.pretraining_classes, settings.downstream_classes
            return (
                choose_classes("pretraining-classes", texts[0], pretraining_size, seed_key=key),
                choose_classes("downstream-classes", texts[1], task_size, seed_key=key),
            )
        return split_classes(
            len(self.loaded[0].classes),
            downstream=settings.downstream_classes,
            pretraining=settings.pretraining_classes,
            allow_overlap=allowed,
            seed_key=key,
        )

    @functools.cached_property
    def domains(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(domains of the pre-training, domains of the tasks), ascending; () if there are none.

        A domain is an index in the `domain_names` of the phase's dataset.
        """
        settings, (first, second) = self.settings, (source.domain_names for source in self.loaded)
        return (
            choose_domains("pretraining-domains", settings.pretraining_domains, first),
            choose_domains("downstream-domains", settings.downstream_domains, second),
        )

    def samples(self, phase: int, classes: tuple[int, ...]) -> Samples:
        """Return all samples of some classes in a phase: 0 is the pre-training, 1 the tasks.

        Samples that only the other phase uses (see `task-reserve`) are left out. A sample's label
        is the position of its class in the sorted `classes`.
        """
        source, others = self.loaded[phase], self._divided[1 - phase]
        rows = rows_of(source, classes, self.domains[phase])
        if len(others):  # Without `others`, setdiff1d would only sort the rows.
            rows = np.setdiff1d(rows, others)
        return Samples(source, rows, task_labels(source.labels[rows], classes))

    @functools.cached_property
    def _divided(self) -> tuple[Rows, Rows]:
        """Indices of samples of shared classes used (only in pre-training, only in tasks)."""
        # Both are empty if `task-reserve` is 0: then both phases use all samples of such a class.
        no_rows = np.empty(0, dtype=np.int64)
        divided = [(no_rows, no_rows)]
        domains = tuple(set.intersection(*map(set, self.domains)))
        if self.settings.task_reserve and not self.settings.has_task_dataset:
            for number in sorted(set(self.classes[0]) & set(self.classes[1])):
                rows = rows_of(self.loaded[0], (number,), domains)
                if len(rows):  # There are no rows if the phases have no common domain.
                    rng = seeds.generator(self.seed, "task-reserve", number)
                    reserved, others = split_in_two(len(rows), self.settings.task_reserve, rng)
                    divided.append((rows[others], rows[reserved]))
        of_pretraining, of_tasks = map(np.concatenate, zip(*divided, strict=True))
        return of_pretraining, of_tasks


def rows_of(source: Dataset, classes: Sequence[int], domains: Sequence[int]) -> Rows:
    """Return the indices of all samples of some classes, in some domains if the source has any."""
    chosen = np.isin(source.labels, classes)
    if source.domains is not None:
        chosen &= np.isin(source.domains, domains)
    return np.flatnonzero(chosen)


# ---- settings that select classes and domains ----------------------------------------------------


def split_classes(
    num_classes: int, *, downstream: str, pretraining: str, allow_overlap: bool, seed_key: _Key
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (pre-training classes, downstream classes), each sorted, out of 0..num_classes-1.

    `pretraining` and `downstream` are strings of one of these forms. "20" is a number of classes,
    which are drawn by `seed_key` from the classes that the other phase does not use.
    "list:3,7,80-99" is a list of classes. "" is all classes that the other phase does not use. With
    `allow_overlap` the two phases may share classes, so that tasks can have classes that were seen
    in pre-training. Raises a SettingsError if a string has another form, a class is out of range,
    the phases share a class without `allow_overlap`, or a phase has no classes.
    """
    what, everything = "pretraining-classes", set(range(num_classes))
    reserved = _listed(what, pretraining, num_classes) or ()
    second = choose_classes(
        "downstream-classes", downstream, num_classes, everything - set(reserved), seed_key=seed_key
    )
    pool = everything - set(second)
    first = choose_classes(what, pretraining, num_classes, pool, seed_key=seed_key)
    if not first:
        raise _refused(what, pretraining, f"downstream-classes takes all {num_classes} classes")
    shared = ", ".join(map(str, sorted(set(first) & set(second))))
    if shared and not allow_overlap:
        why = f"shares classes {shared} with downstream-classes; set allow-class-overlap = true"
        raise _refused(what, pretraining, f"{why}, or make them differ")
    return first, second


def choose_classes(
    what: str, text: str, num_classes: int, pool: Iterable[int] | None = None, *, seed_key: _Key
) -> tuple[int, ...]:
    """Return the classes, sorted, out of 0..num_classes-1, that the value of a setting selects.

    `what` is the name of the setting and `text` its value. "list:3,7,80-99" is a list of classes.
    "20" is a number of classes, drawn from `pool` by `seed_key`. "" is all classes of `pool`, which
    is by default all classes. Raises a SettingsError if the value has another form, a class is out
    of range, or `pool` has too few classes.
    """
    listed = _listed(what, text, num_classes)
    if listed is not None:
        return listed
    candidates = sorted(range(num_classes) if pool is None else pool)
    if not text.strip():
        return tuple(candidates)
    if not text.strip().isdecimal() or not 1 <= int(text) <= len(candidates):
        raise _refused(what, text, f"must be a count of 1 to {len(candidates)}, or {_LIST}")
    rng = seeds.generator(*seed_key, what.removesuffix("-classes"), "classes")
    return tuple(sorted(candidates[i] for i in rng.permutation(len(candidates))[: int(text)]))


def choose_domains(what: str, text: str, names: Sequence[str]) -> tuple[int, ...]:
    """Return the domains, sorted, that the value of a setting selects: indices in `names`.

    `what` is the name of the setting, `text` its value, and `names` the names of the dataset's
    domains. "photo cartoon" are names, "list:0-2" are indices, and "" is all domains. Raises a
    SettingsError if a name is unknown, an index is out of range, or the dataset has no domains and
    the value is not "".
    """
    if not text.strip():
        return tuple(range(len(names)))
    if not names:
        raise _refused(what, text, "the dataset has no domains")
    listed = _listed(what, text, len(names))
    if listed is not None:
        return listed
    for name in text.split():
        check_name("domain", name, names, f"{what} = '{text}'", what)
    return tuple(number for number, name in enumerate(names) if name in text.split())


def _refused(what: str, text: str, why: str) -> SettingsError:
    return SettingsError(f"{what} = '{text}': {why}", what)


def _listed(what: str, text: str, count: int) -> tuple[int, ...] | None:
    """Return the numbers in "list:3,7,80-99", sorted and below `count`; None for another text."""
    if not text.strip().startswith("list:"):
        return None
    numbers: list[int] = []
    for item in text.strip().removeprefix("list:").split(","):
        bounds = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", item)
        found = range(int(bounds[1]), int(bounds[2] or bounds[1]) + 1) if bounds else range(0)
        if not found or found[-1] >= count or set(found) & set(numbers):
            allowed = f"use different, ascending numbers in 0..{count - 1}, in {_LIST}"
            raise _refused(what, text, f"'{item}' is not possible here; {allowed}")
        numbers += found
    return tuple(sorted(numbers))


def part_of(n: int, fraction: float) -> int:
    """Return the number of samples in a fraction of n samples: floor(fraction * n)."""
    # 0.29 * 100 is 28.999...96 in floating point, and its floor must still be 29.
    return math.floor(fraction * n + 1e-9)


def split_in_two(n: int, fraction: float, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Split the indices 0..n-1 at random into floor(fraction * n) indices and the others.

    Both arrays are int64, sorted and disjoint. Raises a SettingsError if an array would be empty.
    """
    first = part_of(n, fraction)
    if not 0 < first < n:
        raise SettingsError(f"{n} samples cannot be split at {fraction:g}: a part would be empty")
    order = rng.permutation(n).astype(np.int64)
    return np.sort(order[:first]), np.sort(order[first:])


def task_labels(labels: npt.NDArray[Any], classes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Map each label to its position in the sorted `classes`: int64 in 0..len(classes)-1."""
    sorted_classes = np.sort(np.asarray(classes, dtype=np.int64))
    return np.searchsorted(sorted_classes, labels).astype(np.int64)
