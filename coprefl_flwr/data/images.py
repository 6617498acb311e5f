"""Image datasets held once per process, and the samples of them that a client holds."""

import functools
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.errors import SettingsError

_IDX_FILES = "raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"
# What torchvision looks for below its root, so that a machine without internet can be given it.
_TORCHVISION_FILES = {
    "CIFAR10": "cifar-10-python.tar.gz",
    "CIFAR100": "cifar-100-python.tar.gz",
    "EMNIST": "EMNIST/raw/gzip.zip",
    "FashionMNIST": f"FashionMNIST/{_IDX_FILES}",
    "KMNIST": f"KMNIST/{_IDX_FILES}",
    "MNIST": f"MNIST/{_IDX_FILES}",
    "SVHN": "{train,test}_32x32.mat",
    "USPS": "usps.bz2 and usps.t.bz2",
}
_EMBEDDED = "glyphs"
_NAMES = (_EMBEDDED, *_TORCHVISION_FILES)


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """All images of a source, train and test parts merged.

    Attributes
    ----------
    images : uint8 (N, C, H, W)
    labels : int64 (N,), in 0..len(classes)-1
    classes : names of the classes
    mean, std : float32 (C,), of images / 255 over the whole dataset
    """

    images: Tensor
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    mean: Tensor
    std: Tensor

    @classmethod
    def of(
        cls, source: str, images: Tensor, labels: npt.NDArray[Any], classes: Sequence[str] | None
    ) -> "ImageDataset":
        """Check the parts and measure mean and std; `classes` None means "0", "1", ...

        Raises SettingsError, which begins with `source`, where images are not uint8 (N, C, H, W),
        or labels not N integers in 0..len(classes)-1.
        """
        if images.dtype != torch.uint8 or images.ndim != 4 or not 0 < images.shape[1] <= 4:
            raise SettingsError(
                f"{source}: images are {str(images.dtype).removeprefix('torch.')} of shape "
                f"(N, C, H, W) = {tuple(images.shape)}; allowed are uint8 with 1 to 4 channels"
            )
        if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer):
            raise SettingsError(
                f"{source}: labels are {labels.dtype} of shape {labels.shape}; "
                f"{len(images)} integers are needed, one per image"
            )
        if not images.numel():
            raise SettingsError(f"{source}: there are no images")
        lowest, highest = int(labels.min()), int(labels.max())
        names = tuple(map(str, range(highest + 1) if classes is None else classes))
        if lowest < 0 or highest >= len(names):
            raise SettingsError(
                f"{source}: labels run from {lowest} to {highest}; with {len(names)} classes "
                f"they must lie in 0..{len(names) - 1}"
            )
        mean, std = _moments(images)
        return cls(images.contiguous(), labels.astype(np.int64), names, mean, std)


@dataclass(frozen=True, eq=False)
class Samples:
    """Some samples of a dataset under a task's labels: what a client holds.

    No pixel is copied until a batch is asked for. `indices` (n,) are rows of the dataset and
    `labels` (n,) the labels of the task, both int64; the dataset's own labels are not used.
    """

    dataset: ImageDataset
    indices: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, positions: npt.NDArray[np.int64]) -> "Samples":
        """Return the samples at `positions` (into these samples, not the dataset)."""
        return Samples(self.dataset, self.indices[positions], self.labels[positions])

    def batch(
        self, positions: npt.NDArray[np.int64] | slice, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return images, float32 (b, C, H, W) normalised on `device`, and labels, int64 (b,).

        Images lie channels last in memory, which convolutions take faster (1.3 times on a CPU).
        """
        data = self.dataset
        images = data.images[torch.from_numpy(self.indices[positions])].to(device)
        mean = data.mean.to(device)[:, None, None]
        std = data.std.to(device)[:, None, None]
        labels = torch.tensor(self.labels[positions], dtype=torch.int64, device=device)
        images = images.float().contiguous(memory_format=torch.channels_last)
        return images.div_(255).sub_(mean).div_(std), labels

    def batches(self, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every sample once, in order, cut as `batch_slices` says."""
        for part in batch_slices(len(self), batch_size):
            yield self.batch(part, device)


def batch_slices(n: int, batch_size: int) -> list[slice]:
    """Cut 0..n-1 into batches; a last batch of one sample joins the one before it.

    BatchNorm cannot take a single sample in train mode.
    """
    if batch_size < 1:
        raise SettingsError(f"batch size {batch_size}: at least 1 is needed")
    starts = list(range(0, n, batch_size))
    if len(starts) > 1 and n - starts[-1] == 1:
        starts.pop()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], n], strict=False)]


def load_images(name: str, data_dir: str | Path = "") -> ImageDataset:
    """Load a dataset; a second call in the same process returns the same object.

    Parameters
    ----------
    name : "glyphs" (drawn by this package), a torchvision dataset (CIFAR10, CIFAR100, EMNIST
        byclass, FashionMNIST, KMNIST, MNIST, SVHN, USPS), the path of an .npz file, or of a
        folder of images laid out as class/file, or as train/class/file with test/ or val/.
    data_dir : where torchvision keeps its files and downloads them to if they are missing;
        "" is ~/.cache/coprefl_flwr.

    Notes
    -----
    An .npz holds `images` and `labels`, or `train_images`, `train_labels`, `test_images` and
    `test_labels` (and `val_images`, `val_labels`), and may hold `classes`. Images are uint8
    (N, H, W) or (N, H, W, C), labels integers (N,) or (N, 1). Images of a folder are all of one
    size and become RGB unless every one is grey.

    Raises
    ------
    SettingsError
        An unknown name, a missing path, files that are not as described, or a failed download.
    """
    folder = Path(data_dir) if str(data_dir) else Path("~/.cache/coprefl_flwr")
    return _load(name, folder.expanduser())


@functools.cache
def _load(name: str, data_dir: Path) -> ImageDataset:
    if name == _EMBEDDED:
        # glyphs.py builds an ImageDataset, so it imports this module.
        from coprefl_flwr.data.glyphs import glyphs

        return glyphs()
    if name in _TORCHVISION_FILES:
        return _load_torchvision(name, data_dir)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _load_folder(path)
    if path.is_file() and path.suffix == ".npz":
        return _load_npz(path)
    raise SettingsError(_not_found(name, path))


def _not_found(name: str, path: Path) -> str:
    allowed = f"{', '.join(_NAMES)}, the path of an .npz file or of a folder of images"
    if path.is_file():
        return f"dataset '{name}': the file is not an .npz; allowed are {allowed}"
    if path.suffix == ".npz" or len(path.parts) > 1:
        return f"dataset '{name}': the path does not exist; allowed are {allowed}"
    spelled = {known.lower(): known for known in _NAMES}
    near = get_close_matches(name.lower(), spelled, n=1)
    hint = f" (nearest: {spelled[near[0]]})" if near else ""
    return f"dataset '{name}' is not known{hint}; allowed are {allowed}"


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and std of images / 255 per channel, exact, without a float copy of the images."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(dim=1):
        counts = torch.bincount(channel.reshape(-1), minlength=256).double()
        mean = (counts @ values) / counts.sum()
        variance = (counts @ (values - mean) ** 2) / counts.sum()
        means.append(mean)
        # A channel that never varies must not be divided by zero.
        stds.append(variance.sqrt() if variance > 0 else torch.ones_like(variance))
    return torch.stack(means).float(), torch.stack(stds).float()


def _load_torchvision(name: str, data_dir: Path) -> ImageDataset:
    try:
        parts = [_torchvision_part(name, data_dir, train) for train in (True, False)]
    except (OSError, RuntimeError) as error:
        reason = str(error).strip().replace("\n", " ")
        raise SettingsError(
            f"dataset '{name}' is neither in {data_dir} nor could it be downloaded ({reason}); "
            f"put {_TORCHVISION_FILES[name]} there by hand"
        ) from error
    labels = [part.labels if name == "SVHN" else part.targets for part in parts]
    return ImageDataset.of(
        f"dataset '{name}'",
        torch.cat([_channels_first(name, torch.as_tensor(part.data)) for part in parts]),
        np.concatenate([np.asarray(part, dtype=np.int64) for part in labels]),
        getattr(parts[0], "classes", tuple("0123456789")),
    )


def _torchvision_part(name: str, data_dir: Path, train: bool) -> Any:
    # Importing torchvision costs seconds, and the glyphs do without.
    from torchvision import datasets

    if name == "SVHN":
        return datasets.SVHN(data_dir, split="train" if train else "test", download=True)
    which = {"split": "byclass"} if name == "EMNIST" else {}
    return getattr(datasets, name)(data_dir, train=train, download=True, **which)


def _channels_first(name: str, images: Tensor) -> Tensor:
    if name == "EMNIST":
        # The files hold every character transposed, and torchvision leaves it so.
        images = images.transpose(1, 2)
    if images.ndim == 3:
        return images.unsqueeze(1)
    return images if name == "SVHN" else images.permute(0, 3, 1, 2)


def _load_npz(path: Path) -> ImageDataset:
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise SettingsError(f"{path}: not a readable .npz of plain arrays ({error})") from error
    images, labels = _npz_parts(path, arrays)
    if any(part.dtype != np.uint8 or part.ndim not in (3, 4) for part in images):
        found = ", ".join(f"{part.dtype} {part.shape}" for part in images)
        raise SettingsError(
            f"{path}: images are {found}; allowed are uint8 (N, H, W) or (N, H, W, C)"
        )
    if len({part.shape[1:] for part in images}) > 1:
        found = " and ".join(str(part.shape[1:]) for part in images)
        raise SettingsError(f"{path}: its parts hold images of different shapes, {found}")
    pixels = np.concatenate(images)
    pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1)
    flat = [part[:, 0] if part.ndim == 2 and part.shape[1] == 1 else part for part in labels]
    if any(part.ndim != 1 for part in flat):
        found = ", ".join(str(part.shape) for part in labels)
        raise SettingsError(f"{path}: labels have shape {found}; allowed are (N,) or (N, 1)")
    classes = tuple(map(str, arrays["classes"])) if "classes" in arrays else None
    images_, labels_ = torch.from_numpy(np.ascontiguousarray(pixels)), np.concatenate(flat)
    return ImageDataset.of(str(path), images_, labels_, classes)


def _npz_parts(
    path: Path, arrays: dict[str, npt.NDArray[Any]]
) -> tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]]]:
    """Return the images and the labels of each part, or say which keys are missing."""
    whole = {"images", "labels"}
    split = {"train_images", "train_labels", "test_images", "test_labels"}
    if whole <= arrays.keys():
        prefixes = [""]
    elif split <= arrays.keys():
        has_val = {"val_images", "val_labels"} <= arrays.keys()
        prefixes = ["train_", "val_", "test_"] if has_val else ["train_", "test_"]
    else:
        raise SettingsError(
            f"{path}: has the keys {', '.join(sorted(arrays)) or '(none)'}; needed are images and "
            "labels, or train_images, train_labels, test_images and test_labels"
        )
    images = [arrays[f"{prefix}images"] for prefix in prefixes]
    return images, [arrays[f"{prefix}labels"] for prefix in prefixes]


def _load_folder(root: Path) -> ImageDataset:
    parts = _folder_parts(root)
    # Over all parts, so that a class missing from one of them shifts no label.
    classes = sorted({folder.name for part in parts for folder in _folders(part)})
    files, labels = _folder_files(parts, classes)
    if not files:
        raise SettingsError(f"{root}: no images found; the layout is class/file")
    size, grey = _common_format(files)
    pixels = np.empty((len(files), size[1], size[0], 1 if grey else 3), dtype=np.uint8)
    for row, file in enumerate(files):
        pixels[row] = _read_image(file, grey).reshape(pixels.shape[1:])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    return ImageDataset.of(str(root), images, np.array(labels, dtype=np.int64), classes)


def _folder_parts(root: Path) -> list[Path]:
    """Return train/ and test/ or val/ of a divided folder, else the folder itself."""
    train = root / "train"
    others = [root / name for name in ("val", "test") if (root / name).is_dir()]
    # A class may be called "train": a part is told by the folders in it.
    if train.is_dir() and _folders(train):
        return [train, *others]
    return [root]


def _folders(parent: Path) -> list[Path]:
    return [p for p in sorted(parent.iterdir()) if p.is_dir() and not p.name.startswith(".")]


def _folder_files(parts: Iterable[Path], classes: Sequence[str]) -> tuple[list[Path], list[int]]:
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    index = {name: label for label, name in enumerate(classes)}
    found = [
        pair
        for part in parts
        for pair in make_dataset(str(part), index, IMG_EXTENSIONS, allow_empty=True)
    ]
    return [Path(file) for file, _ in found], [label for _, label in found]


def _common_format(files: Sequence[Path]) -> tuple[tuple[int, int], bool]:
    """Return the (width, height) that all files share, and whether all are grey."""
    from PIL import Image

    first: tuple[int, int] | None = None
    grey = True
    for file in files:
        try:
            with Image.open(file) as image:
                size, mode = image.size, image.mode
        except OSError as error:
            raise SettingsError(f"{file}: not a readable image ({error})") from error
        if mode.startswith(("I", "F")):
            raise SettingsError(f"{file}: has pixels of mode {mode}; allowed are 8-bit images")
        first = first or size
        if size != first:
            raise SettingsError(
                f"{file}: is {size[0]}x{size[1]} but {files[0]} is {first[0]}x{first[1]}; "
                "all images must have one size"
            )
        grey = grey and mode in ("1", "L", "LA")
    assert first is not None  # the caller has at least one file
    return first, grey


def _read_image(file: Path, grey: bool) -> npt.NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(file) as image:
            return np.asarray(image.convert("L" if grey else "RGB"))
    except OSError as error:
        raise SettingsError(f"{file}: not a readable image ({error})") from error
