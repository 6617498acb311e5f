"""Fixtures of the tests in this folder."""

from dataclasses import replace

import pytest

from coprefl_flwr.client_app import app
from coprefl_flwr.federation.progress import quiet_flower
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.methods import PERSONALISED
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.known_methods import with_role
from coprefl_flwr.studies.running import run_stage
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.store import Layout, Store
from tests.common.data import write_domain


@pytest.fixture
def run_stages():
    """Return a function that runs a study's stages and returns the study and its store."""

    def run(settings, folder):
        settings = replace(settings, output_dir=str(folder))
        study = build(settings)
        study.check()
        store, grid = Store(folder / "tiny", Layout.PATH), LocalGrid(app, 1, settings.to_config())
        with quiet_flower():
            for stage in study.stages:
                run_stage(stage, grid, store)
        return study, store

    return run


@pytest.fixture
def personalised(tmp_path):
    """Settings of all personalised methods, on the pixels of two datasets."""
    for number in range(2):
        write_domain(tmp_path / f"{number}.npz", number)
    return Settings(
        study=PERSONALISED,
        run_name="tiny",
        personal_datasets=f"{tmp_path / '0.npz'} {tmp_path / '1.npz'}",
        method=" ".join(with_role(PERSONALISED)),
        rounds=2,
        local_steps=1,
        train_per_class=3,
        test_per_class=5,
        batch_size=8,
    )
