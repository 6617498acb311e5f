"""The clients' data in a personalised study: datasets, distribution shifts and features."""

import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from coprefl_flwr import seeds
from coprefl_flwr.data import ClientData, DataSettings, ImageDataset, Samples, load_dataset
from coprefl_flwr.data.dataset import check_numbers
from coprefl_flwr.data.features import Encoder, features_of
from coprefl_flwr.data.partition import Domain, deal, dirichlet_counts
from coprefl_flwr.errors import SettingsError, about_settings, unknown
from coprefl_flwr.learning.device import default_device
from coprefl_flwr.learning.noise import Noise
from coprefl_flwr.models.backbones import Backbone, fitted, load_backbone
from coprefl_flwr.options import WORDS, Checked, option
from coprefl_flwr.studies.hashes import content_hashes, values_of

PERSONAL = "personal"
"""Name of the population of a personalised study."""

PIXELS, SCRATCH = "pixels", "scratch"

_OF_STARTS = (
    "clients participants samples-per-class task-dataset downstream-classes pretraining-classes "
    "downstream-domains pretraining-domains allow-class-overlap task-reserve partition "
    "classes-per-client server-reserve server-share client-wrapper client-wrapper-share momentum "
    "keep trainable adapter average-window average-decay"
)
UNUSED = tuple(_OF_STARTS.split())
"""Keys of the settings of pre-trainings that a personalised study does not use."""


@dataclass(frozen=True, kw_only=True)
class PersonalOptions(Checked):
    """Settings of the clients in a personalised study, of their data and of their features."""

    personal_datasets: str = option(
        "",
        "datasets of the same classes, separated by spaces; `DATASET@NAME` is one domain of a "
        "dataset, `DATASET@*` all its domains; not set: `dataset`",
        takes=(WORDS,),
    )
    personal_clients: int | None = option(
        None,
        "clients of a personalised study; not set: one per dataset, or 5 for a single dataset",
        minimum=1,
        maximum=10**6,
    )
    shift: str | None = option(
        None,
        "how the clients differ: by dataset (`feature`), by the Dirichlet partition of classes "
        "(`label`, one dataset only), or `both`; not set: `feature`, for a single dataset `label`",
        choices=("feature", "label", "both"),
    )
    train_per_class: int = option(
        10, "training samples per class and client, on average", minimum=1
    )
    test_per_class: int = option(
        90,
        "most test samples per class and client, in the proportions of the training samples",
        minimum=1,
    )
    backbones: str = option(
        "pixels",
        "frozen networks that compute the features, separated by spaces: the folder of a model of "
        "this package, `resnet18` or another name of torchvision, `resnet18=FILE`, `pixels` (no "
        "network), or `scratch` (no frozen network: `model` is trained instead of a head)",
        takes=(WORDS,),
    )
    head_norm: str | None = option(
        None,
        "normalisation in the heads; not set: `batch`, as in FedPCL's Table 7",
        choices=("none", "batch"),
    )
    noise_on: str | None = option(
        None,
        "what receives noise: the training images or FedPCL's prototypes; not set: no noise",
        choices=("prototypes", "images"),
    )
    noise_kind: str = option(
        "laplace", "distribution of the noise", choices=("laplace", "gaussian")
    )
    noise_scale: float = option(0.05, "scale s of the noise, for pixels in 0..1", minimum=0)
    noise_share: float = option(
        0.1,
        "p in (1 - p) x + noise: the fraction by which x is scaled down before the noise is added",
        minimum=0,
        maximum=1,
    )

    @property
    def from_scratch(self) -> bool:
        """Whether clients train a whole network on images, instead of a head on features."""
        return self.backbones.strip() == SCRATCH

    def noise(self, over: str) -> Noise | None:
        """Return the noise that is added to `over` ("images" or "prototypes"), or None."""
        if self.noise_on != over:
            return None
        return Noise(kind=self.noise_kind, scale=self.noise_scale, share=self.noise_share)


@dataclass(frozen=True, eq=False)
class PersonalData:
    """The samples of every client in a personalised study, and the networks that compute features.

    Parameters
    ----------
    options : PersonalOptions
        Settings of the clients and of the features.
    settings : DataSettings
        Settings of the datasets and of the label shift.
    seed : int
        Seed of all random draws.
    precision : str
        Precision in which the frozen networks compute, such as "float32".
    """

    options: PersonalOptions
    settings: DataSettings
    seed: int
    precision: str
    _features: dict[tuple[int, Path], ClientData] = field(default_factory=dict, init=False)

    @property
    def datasets(self) -> str:
        """The names of the datasets, separated by spaces."""
        return self.options.personal_datasets or self.settings.dataset

    @functools.cached_property
    @about_settings("personal-datasets", "dataset")
    def domains(self) -> tuple[Domain, ...]:
        """The datasets or domains, in the order of the setting.

        Raises a SettingsError if a dataset cannot be loaded, does not consist of images, or has
        other classes than the first dataset.
        """
        domains = tuple(domain for name in self.datasets.split() for domain in self._of(name))
        first = domains[0].images.classes
        for domain in domains[1:]:
            classes = domain.images.classes
            reordered = classes != first and sorted(classes) == sorted(first)
            if len(classes) != len(first) or reordered:
                problem = f"personal-datasets: {domain.name} has the classes {', '.join(classes)}"
                raise SettingsError(f"{problem}; they must be, in this order: {', '.join(first)}")
        return domains

    def _of(self, name: str) -> list[Domain]:
        """Return the domains of one entry: DATASET, DATASET@DOMAIN, or DATASET@* (all domains)."""
        path, at, wanted = name.rpartition("@")
        file = path if at else name
        how = self.settings
        source = load_dataset(file, how.data_dir, image_size=how.image_size, relabel=how.relabel)
        check_numbers(file, source)
        if not isinstance(source, ImageDataset) or not source.has_classes:
            raise SettingsError(f"personal-datasets: {name} is not a dataset of images of classes")
        if not at:
            short = Path(name).stem if "/" in name or name.endswith(".npz") else name
            rows_of = {short: np.arange(len(source.labels))}
        else:
            known = source.domain_names
            if source.domains is None or wanted not in ("*", *known):
                raise SettingsError(f"personal-datasets: {unknown('domain', wanted, known)}")
            numbers = [n for n, domain in enumerate(known) if wanted in ("*", domain)]
            rows_of = {known[n]: np.flatnonzero(source.domains == n) for n in numbers}
        return [
            Domain(domain, Samples(source, rows, source.labels[rows]))
            for domain, rows in rows_of.items()
        ]

    @property
    def num_classes(self) -> int:
        """The number of classes. All datasets have the same classes."""
        return len(self.domains[0].images.classes)

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        sources = len(self.domains)
        return self.options.personal_clients or (sources if sources > 1 else 5)

    @property
    def shift(self) -> str:
        """The distribution shift between clients: "feature", "label" or "both".

        Raises a SettingsError for a label shift with several datasets.
        """
        sources = len(self.domains)
        if self.options.shift == "label" and sources > 1:
            raise SettingsError(f"shift = label: personal-datasets has {sources}, not one", "shift")
        return self.options.shift or ("feature" if sources > 1 else "label")

    def domain_of(self, client: int) -> Domain:
        """Return a client's dataset: client i has the dataset with index i modulo their number."""
        return self.domains[client % len(self.domains)]

    @functools.cached_property
    def images(self) -> tuple[ClientData, ...]:
        """The training and test images of each client.

        With a label shift, the total number of samples is the same as without it. The samples of
        each class are then partitioned by Dirichlet(alpha) (Tables 8 to 10 of FedPCL).

        Raises a SettingsError if a dataset has too few samples of a class, or if a client gets no
        test sample.
        """
        wanted, key = self.options.train_per_class, (self.seed, PERSONAL)
        counts = np.full((self.num_clients, self.num_classes), wanted)
        if self.shift != "feature":
            how = self.settings
            counts = dirichlet_counts(
                self.domains, counts, key, alpha=how.alpha, min_samples=how.min_samples
            )
        ratio = self.options.test_per_class / wanted
        dealt = deal(self.domains, counts, ratio, (*key, "samples"))
        for client, (_, test) in enumerate(dealt):
            if not len(test):
                problem = f"client {client} gets no test sample of {self.domain_of(client).name}"
                raise SettingsError(f"train-per-class = {wanted}: {problem}", "train-per-class")
        return tuple(ClientData(train, test) for train, test in dealt)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a training input: (features,), or the image's shape with `scratch`."""
        shape = self.domains[0].images.shape
        if self.options.from_scratch:
            return shape
        sizes = [backbone.size for backbone in self.networks]
        return (sum(sizes) if sizes else int(np.prod(shape)),)

    @property
    def networks(self) -> tuple[Backbone, ...]:
        """The frozen networks; () for `pixels` and `scratch`."""
        return _loaded(self.options.backbones)

    def pixels(self, batch: Tensor) -> Tensor:
        """Return images in the size and with the normalisation of the first dataset.

        The images are flattened to (b, pixels), except with `scratch`.
        """
        first = self.domains[0].images
        mean, std = (values.to(batch.device)[:, None, None] for values in (first.mean, first.std))
        values = (fitted(batch, first.shape) - mean) / std
        return values if self.options.from_scratch else values.flatten(1)

    def features_of(self, client: int, folder: Path) -> ClientData:
        """Return a client's features, which are read from files in `folder` or else computed."""
        if (client, folder) not in self._features:
            images, device = self.images[client], default_device()
            assert images.test is not None
            encoders: list[Encoder] = [
                functools.partial(network.features, precision=self.precision)
                for network in self.networks
            ] or [self.pixels]
            files = [folder / f"{client}-{part}.npy" for part in ("train", "test")]
            noise = self.options.noise("images")
            rng = seeds.generator(self.seed, PERSONAL, client, "image-noise")
            change = functools.partial(noise.on, rng=rng) if noise else None
            self._features[client, folder] = ClientData(
                features_of(images.train, encoders, device, files[0], change),
                features_of(images.test, encoders, device, files[1]),
            )
        return self._features[client, folder]

    def identity(self, model: str) -> dict[str, Any]:
        """Return the inputs of the features by key, and a hash of `model` if it is your own."""
        options = self.options
        about = values_of(options) | {"seed": self.seed, "dataset": self.datasets}
        about |= {"image-size": self.settings.image_size, "relabel": self.settings.relabel}
        about["precision"] = self.precision
        if options.shift != "feature":  # A feature shift does not use Dirichlet(alpha).
            about |= {"alpha": self.settings.alpha, "min-samples": self.settings.min_samples}
        weights = [name.partition("=")[2] or name for name in options.backbones.split()]
        files = [*self.datasets.split(), *weights, model]
        return about | {"contents": content_hashes(files)}


# All methods of a study, and all studies of a recipe, share the networks.
@functools.lru_cache(maxsize=2)
@about_settings("backbones")
def _loaded(text: str) -> tuple[Backbone, ...]:
    """Return the frozen networks of a setting `backbones`; () for `pixels` and `scratch`."""
    names = text.split()
    alone = [name for name in names if name in (PIXELS, SCRATCH)]
    if not names or (alone and len(names) > 1):
        raise SettingsError(f"backbones = {text}: networks, or only {PIXELS}, or only {SCRATCH}")
    return () if alone else tuple(load_backbone(name) for name in names)


FEATURE_FILE = re.compile(r"[0-9]+-(train|test)\.npy")
"""The pattern of the file names of clients' features."""
