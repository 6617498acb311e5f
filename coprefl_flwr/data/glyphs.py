"""An embedded dataset: 100 invented characters, drawn as if written by many people.

The dataset needs no download and is drawn in about a second. It behaves like a small handwriting
dataset: a linear model fails on it, because the glyphs are shifted, and a small convolutional
network reaches an accuracy of about 90 %. Seven of the classes are also drawn in four styles, which
serve as domains.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coprefl_flwr import seeds
from coprefl_flwr.data.dataset import ImageDataset, make_dataset

CLASSES = 100
SAMPLES_PER_CLASS = 120
SIZE = 28
STYLES = ("plain", "inverted", "outlined", "turned")
"""The domains: white on black as in `glyphs`, black on white, outlines, rotated by 90 degrees."""

_TEST_SAMPLES = 20  # test samples per class
_CLASSES_IN_DOMAINS = 7

# The variation of the handwriting. The large shift makes a linear model fail, and the random
# control points keep a convolutional network from an accuracy of 100 %.
_SHIFT = 3.7  # pixels
_ROTATION = 0.37  # radians
_SHEAR = 0.2
_SCALE = 0.17
_WOBBLE = 0.125  # standard deviation of the control points, as a fraction of half a glyph
_PEN = (0.6, 0.95)  # pixels, range of the standard deviation of the round Gaussian tip
_NOISE = 8.0  # grey levels, standard deviation

_POINTS_PER_STROKE = 20
_HALF_SIZE = 7.8  # pixels from the middle of a glyph to its border
_INK = 1.2

_Array = npt.NDArray[np.float64]


def glyphs() -> ImageDataset:
    """Draw the dataset of 100 glyphs: images uint8 (12000, 1, 28, 28), white on black.

    The images are ordered by class, with 120 images per class. The last 20 images of each class are
    the test split.
    """
    return _dataset("dataset 'glyphs'", [_draw_class(label) for label in range(CLASSES)], CLASSES)


def glyphs_in_domains() -> ImageDataset:
    """Draw the first 7 glyphs in each of the STYLES: images uint8 (3360, 1, 28, 28).

    The images are ordered by style and then by class, with 120 different images for each style and
    class. The last 20 of these 120 are the test split.
    """
    classes = range(_CLASSES_IN_DOMAINS)
    drawn = [in_style(style, _draw_class(label, style)) for style in STYLES for label in classes]
    domains = np.arange(len(STYLES)).repeat(len(classes) * SAMPLES_PER_CLASS)
    source = "dataset 'glyphs:domains'"
    return _dataset(source, drawn, len(classes), domains=domains, domain_names=STYLES)


def _dataset(
    source: str, drawn: Sequence[npt.NDArray[np.uint8]], classes: int, **columns: Any
) -> ImageDataset:
    """Return a dataset of arrays with the images of class 0, ..., classes-1, 0, ..., and so on."""
    dataset = make_dataset(
        source,
        torch.from_numpy(np.concatenate(drawn))[:, None],
        np.repeat(np.arange(len(drawn)) % classes, SAMPLES_PER_CLASS),
        [f"glyph-{label:02d}" for label in range(classes)],
        test=np.tile(np.arange(SAMPLES_PER_CLASS) >= SAMPLES_PER_CLASS - _TEST_SAMPLES, len(drawn)),
        **columns,
    )
    assert isinstance(dataset, ImageDataset)
    return dataset


def _draw_class(label: int, *hands: str) -> npt.NDArray[np.uint8]:
    """Draw a glyph, uint8 (SAMPLES_PER_CLASS, SIZE, SIZE); `hands` seed other handwriting."""
    rng = seeds.generator("glyphs", label)
    strokes = _invent(rng)
    if hands:
        rng = seeds.generator("glyphs", label, *hands)
    return _ink(_written(strokes, rng), rng)


def in_style(style: str, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Convert white-on-black images, uint8 (n, SIZE, SIZE), to one of the STYLES."""
    if style == "inverted":
        return 255 - images
    if style == "outlined":
        ink = torch.from_numpy(images)[:, None].float()
        thick = torch.nn.functional.max_pool2d(ink, 3, stride=1, padding=1)
        images = (thick - ink)[:, 0].numpy().astype(np.uint8)
    return np.rot90(images, axes=(1, 2)) if style == "turned" else images


def _invent(rng: np.random.Generator) -> _Array:
    """Invent a glyph: 2 or 3 quadratic Bezier strokes (strokes, 3 control points, xy)."""
    # Strokes connect points of a 3 x 3 lattice in -0.85..0.85. Most strokes begin at a point of
    # another stroke, so that the glyph looks like writing.
    lattice = 0.85 * (np.stack(np.divmod(np.arange(9), 3), axis=1) - 1)
    free = list(rng.permutation(9))
    used = [free.pop()]
    strokes = []
    for stroke in range(rng.integers(2, 4)):
        joined = stroke == 0 or rng.random() < 0.65
        begin = used[rng.integers(len(used))] if joined else free.pop()
        end = next((p for p in free if np.abs(lattice[p] - lattice[begin]).sum() > 1), free[0])
        free.remove(end)
        used += [begin, end]
        along = lattice[end] - lattice[begin]
        across = np.array([-along[1], along[0]])
        middle = (lattice[begin] + lattice[end]) / 2 + rng.uniform(-0.7, 0.7) * across
        strokes.append([lattice[begin], np.clip(middle, -1.3, 1.3), lattice[end]])
    return np.array(strokes)


def _written(strokes: _Array, rng: np.random.Generator) -> _Array:
    """Return points in pixels on the strokes of each sample of a glyph (samples, points, xy)."""
    n = SAMPLES_PER_CLASS
    control = strokes + rng.normal(0, _WOBBLE, (n, *strokes.shape))
    t = np.linspace(0, 1, _POINTS_PER_STROKE)
    bezier = np.stack([(1 - t) ** 2, 2 * t * (1 - t), t**2], axis=1)
    points = (bezier @ control).reshape(n, -1, 2)
    centre = (SIZE - 1) / 2 + rng.uniform(-_SHIFT, _SHIFT, (n, 1, 2))
    return centre + _HALF_SIZE * points @ _slants(rng)


def _slants(rng: np.random.Generator) -> _Array:
    """Draw a random rotation, shear and scale for each sample: their products (samples, 2, 2)."""
    n = SAMPLES_PER_CLASS
    angle = rng.uniform(-_ROTATION, _ROTATION, n)
    rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    shear = np.zeros((n, 2, 2))
    shear[:, 0, 0] = shear[:, 1, 1] = 1
    shear[:, 1, 0] = rng.uniform(-_SHEAR, _SHEAR, n)
    scale = rng.uniform(1 - _SCALE, 1 + _SCALE, (n, 1, 2))
    slants: _Array = shear @ np.moveaxis(rotation, -1, 0) * scale
    return slants


def _ink(points: _Array, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return uint8 images with a round Gaussian dot at every point (samples, points, xy)."""
    # A Gaussian is separable, so the sum of an image's dots is one product of two thin matrices.
    width = rng.uniform(*_PEN, (len(points), 1, 1))
    distance = points[:, :, :, None] - np.arange(SIZE)
    across, down = np.moveaxis(np.exp(-0.5 * (distance / width[..., None]) ** 2), 2, 0)
    ink = down.transpose(0, 2, 1) @ across
    grey = 255 * (1 - np.exp(-_INK * ink)) + rng.normal(0, _NOISE, ink.shape)
    images: npt.NDArray[np.uint8] = np.clip(np.rint(grey), 0, 255).astype(np.uint8)
    return images
