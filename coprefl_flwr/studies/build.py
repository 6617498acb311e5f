"""Settings become a study in one place; whatever runs or takes part in one gets it here."""

import functools
import logging
from pathlib import Path

from flwr.serverapp import Grid

from coprefl_flwr.federation.progress import Progress, quiet_flower
from coprefl_flwr.files import remove_named
from coprefl_flwr.methods import PERSONALISED
from coprefl_flwr.studies.identity import texts_of
from coprefl_flwr.studies.personal_data import FEATURE_FILE
from coprefl_flwr.studies.personalised import Personalised
from coprefl_flwr.studies.results import write_results
from coprefl_flwr.studies.settings import STARTS, Settings
from coprefl_flwr.studies.stage import check_folders, run_stage
from coprefl_flwr.studies.starts import Starts
from coprefl_flwr.studies.study import Study, StudyFolder, own_folder, with_run_name

logger = logging.getLogger("flwr.coprefl")

KINDS: dict[str, type[Starts] | type[Personalised]] = {STARTS: Starts, PERSONALISED: Personalised}


def build(settings: Settings) -> Study:
    """Return the study of these settings, held once per process while a user's files stay the same.

    It is another one after a change of folder, from which a relative `output-dir` counts.

    Raises a SettingsError for what can be seen without loading data: an unknown method or option,
    an entry of `method` named twice, an option that no method has, a setting that is not heeded.
    """
    return _built(settings, texts_of(settings), Path.cwd())


@functools.lru_cache(maxsize=8)
def _built(settings: Settings, _: tuple[str, ...], __: Path) -> Study:
    return KINDS[settings.study](settings)


def run_study(grid: Grid, settings: Settings) -> Path:
    """Run the study in a folder of its own, and return that.

    Raises a SettingsError before any work, if something set cannot be used.
    Raises a RunFailedError if the clients failed a round too often; what was finished stays, and
    can be resumed.
    """
    settings = with_run_name(settings)
    study = build(settings)
    study.check()
    store = StudyFolder(study.root / settings.run_name)
    check_folders(study.stages, store)
    with own_folder(settings):
        logger.info("results go to %s", store.root)
        progress = Progress()
        progress.add((stage.kind, stage.rounds) for stage in study.stages)
        with quiet_flower():
            for stage in study.stages:
                run_stage(stage, grid, store, progress)
        remove_named(store.root / "features", FEATURE_FILE)
        write_results(study, store, store.root)
        return store.root
