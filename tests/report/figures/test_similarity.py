"""The heat map of Figure 3: the scores by hand, and a figure from the folders of runs."""

from dataclasses import replace

import numpy as np
import pytest

from coprefl_flwr.client_app import app
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.report.figures.similarity import main, similarities
from coprefl_flwr.studies.build import run_study
from coprefl_flwr.studies.settings import Settings
from tests.common.data import write_domain


def test_scores_by_hand():
    """Client 0 is as near to both; client 10, a column later than 2, is near to the first."""
    x, y = [1.0, 0.0], [0.0, 1.0]
    fused = {"10": np.array([x, y]), "0": np.array([x, x]), "2": np.array([y, y])}
    first = {"10": np.array([x, y]), "0": np.array([x, y]), "2": np.array([y, x])}
    other = {"10": np.array([y, y]), "0": np.array([y, x]), "2": np.array([y, y])}
    found = similarities([first, other], fused)
    assert found == pytest.approx(np.array([[1 / 2, 1 / 3, 2 / 3], [1 / 2, 2 / 3, 1 / 3]]))


def test_other_clients_are_refused():
    with pytest.raises(SettingsError, match="not of the same clients and classes"):
        similarities([{"0": np.ones((2, 2))}], {"1": np.ones((2, 2))})


def test_a_figure_of_runs(tmp_path):
    for number in (0, 1):
        write_domain(tmp_path / f"d{number}.npz", number)
    settings = Settings(
        personal_datasets=f"{tmp_path / 'd0.npz'} {tmp_path / 'd1.npz'}", method="fedpcl", rounds=2,
        study="personalised", train_per_class=4, test_per_class=4,
        output_dir=str(tmp_path / "outputs"),
    )  # fmt: skip
    folders = []
    for seed in (0, 1, 2):
        one = replace(settings, run_name=f"run{seed}", seed=seed)
        folders.append(run_study(LocalGrid(app, 1, one.to_config()), one))
    main([str(tmp_path / "figure.png"), *map(str, folders)])
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SettingsError, match="name a figure, the runs of single backbones"):
        main([str(tmp_path / "figure.png"), str(folders[0])])
