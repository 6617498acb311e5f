"""Which classes and domains each phase uses, and random splits of samples into two parts."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr import seeds
from coprefl_flwr.errors import SettingsError, unknown

_Positions = npt.NDArray[np.int64]
_Key = tuple[str | int, ...]
_LIST = "a list such as list:3,7,80-99"
_FORMS = f"a count such as 20, or {_LIST}"


def split_classes(
    num_classes: int, *, downstream: str, pretraining: str, allow_overlap: bool, seed_key: _Key
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (pre-training classes, downstream classes), each sorted, out of 0..num_classes-1.

    In a text, "20" is that many classes, drawn by `seed_key` from those that the other phase does
    not use; "list:3,7,80-99" names them; and "", for `pretraining` only, is all that are not
    downstream. With `allow_overlap` two lists may share classes, for tasks of seen and unseen ones.
    Raises a SettingsError for text of another form, a class out of range, lists that overlap, or a
    phase without classes.
    """
    what = "pretraining-classes"
    everything = range(num_classes)
    reserved = _listed(what, pretraining, num_classes, _FORMS) or ()
    left = sorted(set(everything) - set(reserved))
    listed = _chosen("downstream-classes", downstream, num_classes, left, seed_key)
    left = sorted(set(everything) - set(listed))
    pretrained = tuple(left)
    if pretraining.strip():
        pretrained = _chosen(what, pretraining, num_classes, left, seed_key)
    if not pretrained:
        why = f"none are left, as downstream-classes takes all {num_classes}"
        raise _refused(what, pretraining, why)
    shared = ", ".join(map(str, sorted(set(pretrained) & set(listed))))
    if shared and not allow_overlap:
        line = f"{what} = '{pretraining}' and downstream-classes = '{downstream}' share {shared}"
        raise SettingsError(
            f"{line}; they must differ, or set allow-class-overlap = true",
            what,
            "downstream-classes",
        )
    return pretrained, listed


def choose_classes(what: str, text: str, num_classes: int, *, seed_key: _Key) -> tuple[int, ...]:
    """Return classes, sorted, for a dataset that one phase has alone.

    `what` is the setting, and `text` is as in `split_classes`, where "" is all; so are the errors.
    """
    everything = tuple(range(num_classes))
    return _chosen(what, text, num_classes, everything, seed_key) if text.strip() else everything


def choose_domains(what: str, text: str, names: Sequence[str]) -> tuple[int, ...]:
    """Return numbers of domains, sorted, of those that `names` has, the dataset's.

    Of the setting `what`, "photo cartoon" names the domains, "list:0-2" gives their numbers, and ""
    is all. Raises a SettingsError for an unknown name, a number out of range, or any text where
    there are no domains.
    """
    if not text.strip():
        return tuple(range(len(names)))
    if not names:
        others = "glyphs:domains, a folder of domain/class/file, and an .npz with domains do"
        raise _refused(what, text, f"the dataset has no domains; {others}")
    listed = _listed(what, text, len(names), f"names of domains, or {_LIST}")
    if listed is not None:
        return listed
    for name in text.split():
        if name not in names:
            raise _refused(what, text, unknown("domain", name, names))
    return tuple(sorted({names.index(name) for name in text.split()}))


def _refused(what: str, text: str, why: str) -> SettingsError:
    return SettingsError(f"{what} = '{text}': {why}", what)


def _listed(what: str, text: str, count: int, forms: str) -> tuple[int, ...] | None:
    """Return the numbers below `count` that "list:..." names, or None for text that is no list."""
    if not text.strip().startswith("list:"):
        return None
    found: list[int] = []
    for item in text.strip().removeprefix("list:").split(","):
        bounds = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", item)
        if bounds is None:
            raise _refused(what, text, f"'{item}' is no number or range; use {forms}")
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        if first > last or last >= count:
            raise _refused(what, text, f"'{item}' must rise and lie in 0..{count - 1}")
        found += range(first, last + 1)
    twice = [number for number in found if found.count(number) > 1]
    if twice:
        raise _refused(what, text, f"{twice[0]} is named twice")
    return tuple(sorted(found))


def _chosen(
    what: str, text: str, num_classes: int, pool: Sequence[int], key: _Key
) -> tuple[int, ...]:
    """Return the classes that a list names, or draw as many from `pool` as `text` says."""
    listed = _listed(what, text, num_classes, _FORMS)
    if listed is not None:
        return listed
    if re.fullmatch(r"\s*\d+\s*", text) is None:
        raise _refused(what, text, f"cannot be read; use {_FORMS}")
    if not 1 <= int(text) <= len(pool):
        raise _refused(what, text, f"1 to {len(pool)} can be drawn, the classes left")
    rng = seeds.generator(*key, what.removesuffix("-classes"), "classes")
    return tuple(sorted(pool[i] for i in rng.permutation(len(pool))[: int(text)]))


def part_of(n: int, fraction: float) -> int:
    """Return how many of n samples a part is: floor(fraction * n)."""
    # 0.29 * 100 is 28.999...96 in floating point, and its floor must still be 29.
    return math.floor(fraction * n + 1e-9)


def split_in_two(
    n: int, fraction: float, rng: np.random.Generator
) -> tuple[_Positions, _Positions]:
    """Split positions 0..n-1 at random: floor(fraction * n) of them, and the rest.

    Both are int64, sorted and disjoint. Raises a SettingsError if one would be empty.
    """
    first = part_of(n, fraction)
    if not 0 < first < n:
        line = f"{n} samples cannot be split at {fraction:g}: neither part may be empty"
        raise SettingsError(line)
    order = rng.permutation(n).astype(np.int64)
    return np.sort(order[:first]), np.sort(order[first:])


def relabel(labels: npt.NDArray[Any], classes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Map each label to its position in the sorted `classes`: int64 in 0..len(classes)-1.

    Raises a SettingsError if a label is not among `classes`.
    """
    known = np.sort(np.asarray(classes, dtype=np.int64))
    strangers = np.setdiff1d(labels, known)
    if len(strangers):
        line = f"label {strangers[0]} is not among the task's classes"
        raise SettingsError(f"{line} {', '.join(map(str, known))}")
    return np.searchsorted(known, labels).astype(np.int64)
