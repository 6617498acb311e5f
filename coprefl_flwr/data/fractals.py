"""An embedded dataset: 1,000 fractals, each drawn 20 times from slightly changed equations.

The dataset needs no download and contains nothing of any person. A start that was trained on it
shows what a start is worth that has seen no data (Chen et al. 2023, arxiv.org/abs/2206.11488).
"""

import numpy as np
import numpy.typing as npt
import torch

from coprefl_flwr import seeds
from coprefl_flwr.data.dataset import Dataset, make_dataset

CLASSES = 1000
SAMPLES_PER_CLASS = 20
SIZE = 32

_TEST_SAMPLES = 4  # test samples per class
_MAPS = 2, 7  # affine maps of a system, at least and at most
_SIDES = (0.75, 1.0), (0.45, 0.75)  # of an image, the side of a single fractal, and of one of two
_CHANGE = 0.8, 1.0  # factor on one map of a system in each copy
_POINTS, _WARM, _STEPS = 300, 10, 10  # points at a time, steps that are not drawn, steps drawn

_Array = npt.NDArray[np.float64]


def fractals() -> Dataset:
    """Draw the dataset of 1,000 fractals: images uint8 (20000, 1, 32, 32), white on black.

    The images are ordered by class, with 20 images per class. The last 4 images of each class are
    the test split.
    """
    number = np.arange(CLASSES * SAMPLES_PER_CLASS)
    return make_dataset(
        "dataset 'fractals'",
        torch.from_numpy(np.concatenate([_draw_class(label) for label in range(CLASSES)]))[:, None],
        number // SAMPLES_PER_CLASS,
        [f"fractal-{label:03d}" for label in range(CLASSES)],
        test=number % SAMPLES_PER_CLASS >= SAMPLES_PER_CLASS - _TEST_SAMPLES,
    )


def _draw_class(label: int) -> npt.NDArray[np.uint8]:
    """Draw a fractal, uint8 (SAMPLES_PER_CLASS, SIZE, SIZE), with one or two copies in each."""
    rng = seeds.generator("fractals", label)
    maps, weights = invented(rng)
    two = rng.random(SAMPLES_PER_CLASS) < 0.5
    image = np.arange(SAMPLES_PER_CLASS).repeat(1 + two)
    side = np.where(two[image], *(rng.uniform(*range_, len(image)) for range_ in _SIDES[::-1]))
    points = _attractors(_changed(maps, len(image), rng), weights, rng)
    low, high = points.min(axis=1, keepdims=True), points.max(axis=1, keepdims=True)
    scale = side / np.maximum(high - low, 1e-6)
    corner = rng.random((2, 1, len(image))) * (1 - side)
    return _ink((points - low) * scale.astype(np.float32) + corner.astype(np.float32), image)


def invented(rng: np.random.Generator) -> tuple[_Array, _Array]:
    """Invent a system of n affine maps (n, 2, 3); return also how often each is taken (n,).

    The singular values s1 >= s2 of the maps are uniform in 0..1, on condition that the sum of
    s1 + 2 s2 over the maps is in (5 + n) / 2..(6 + n) / 2. Smaller values give a few dots, larger
    ones a blot. A map is taken in proportion to its area.
    """
    n = int(rng.integers(_MAPS[0], _MAPS[1] + 1))
    values = np.zeros((n, 2))
    while not (5 + n) / 2 <= (values @ [1, 2]).sum() <= (6 + n) / 2:
        values = np.sort(rng.random((n, 2)))[:, ::-1]
    angles = rng.uniform(-np.pi, np.pi, (2, n))
    turns = np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]])
    before, after = turns.transpose(2, 3, 0, 1)
    linear = after @ ((values * rng.choice([-1, 1], (n, 2)))[:, :, None] * before)
    areas = np.maximum(values.prod(axis=1), 0.02)
    return np.concatenate([linear, rng.uniform(-1, 1, (n, 2, 1))], axis=2), areas / areas.sum()


def _changed(maps: _Array, copies: int, rng: np.random.Generator) -> _Array:
    """Return copies (copies, n, 2, 3) of a system, transposed and flipped, with one map scaled."""
    changed = maps[None].repeat(copies, axis=0)
    changed[np.arange(copies), rng.integers(len(maps), size=copies)] *= rng.uniform(
        *_CHANGE, (copies, 1, 1)
    )
    # Conjugation with a signed permutation of the axes does to the fractal what it does to a point.
    axes = np.where(rng.random((copies, 1, 1, 1)) < 0.5, np.eye(2), np.eye(2)[::-1])
    axes = axes * rng.choice([-1, 1], (copies, 1, 2, 1))
    linear = axes @ changed[..., :2] @ axes.transpose(0, 1, 3, 2)
    return np.concatenate([linear, axes @ changed[..., 2:]], axis=3)


def _attractors(maps: _Array, weights: _Array, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return points on the fractals of systems (k, n, 2, 3): (xy, points, k).

    All points move at once. In each step, a fraction `weights` of them, drawn again, takes a map.
    """
    taken = np.searchsorted(weights.cumsum()[:-1], (np.arange(_POINTS) + 0.5) / _POINTS)
    (a, b, e), (c, d, f) = maps.transpose(2, 3, 1, 0)[:, :, taken].astype(np.float32)
    x, y = np.zeros((2, _POINTS, len(maps)), np.float32)
    drawn = np.empty((2, _STEPS, _POINTS, len(maps)), np.float32)
    for step in range(-_WARM, _STEPS):
        order = rng.permutation(_POINTS)
        x, y = x[order], y[order]
        x, y = a * x + b * y + e, c * x + d * y + f
        if step >= 0:
            drawn[:, step] = x, y
    return drawn.reshape(2, -1, len(maps))


def _ink(points: npt.NDArray[np.float32], image: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Draw points (xy, points, k) in 0..1, uint8; fractal k is in the image `image[k]`.

    The grey level grows with a pixel's number of points, relative to the mean of the pixels that
    have some.
    """
    shape = SAMPLES_PER_CLASS, SIZE, SIZE
    column, row = (points * (SIZE - 0.001)).astype(np.int64)
    cell = (image * SIZE + row) * SIZE + column
    counts = np.bincount(cell.ravel(), minlength=SAMPLES_PER_CLASS * SIZE**2).reshape(shape)
    mean = np.nanmean(np.where(counts, counts, np.nan), axis=(1, 2), keepdims=True)
    grey: npt.NDArray[np.uint8] = np.rint(255 * (1 - np.exp(-counts / mean))).astype(np.uint8)
    return grey
