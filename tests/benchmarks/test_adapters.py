"""The plain loop over adapters gives the adapters of the package."""

import itertools

import numpy as np
import pytest
import torch

from benchmarks import adapters

pytest.importorskip("peft")


class EnoughError(Exception):
    """Ends an endless loop."""


def after(rounds, program):
    """Return the adapters of a program after some rounds."""
    counted, found = itertools.count(1), {}

    def pause(arrays):
        found.update({name: torch.as_tensor(array).numpy() for name, array in arrays.items()})
        if next(counted) == rounds:
            raise EnoughError

    with pytest.raises(EnoughError):
        program(pause)
    return found


def test_plain_loop_gives_the_adapters_of_the_package(monkeypatch):
    for name, number in {"CLIENTS": 2, "BATCH": 10, "STEPS": 2, "LENGTH": 8}.items():
        monkeypatch.setattr(adapters, name, number)
    first = {n: p for n, p in adapters.network().named_parameters() if p.requires_grad}
    plain, packaged = (after(2, one) for one in (adapters.plain, adapters.packaged))
    assert [*plain] == [*packaged] == [*first]
    for name, array in plain.items():
        np.testing.assert_allclose(packaged[name], array, rtol=1e-4, atol=1e-6)
        assert not np.array_equal(array, first[name].detach().numpy()), name
