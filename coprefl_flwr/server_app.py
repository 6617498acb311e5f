"""The ServerApp that `flwr run` loads: a study of starting models, or a personalised one."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.flower import end_log_with
from coprefl_flwr.studies.personal_methods import is_personalised
from coprefl_flwr.studies.personalised import run_personalised
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.study import run_study

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the study that the run-config describes."""
    try:
        settings = Settings.from_config(context.run_config)
        run = run_personalised if is_personalised(settings) else run_study
        run(grid, settings)
    except (SettingsError, RunFailedError) as error:
        end_log_with(error)
        raise
