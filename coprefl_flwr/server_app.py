"""The ServerApp that `flwr run` loads. It runs the study that the run-config describes."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coprefl_flwr.errors import RunFailedError, os_error_line
from coprefl_flwr.federation.flower import end_log_with, plain_log, without_colours
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import Settings

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the study that the run-config describes."""
    without_colours()
    try:
        with plain_log():
            settings = Settings.from_config(context.run_config).named()
            run_study(grid, build(settings))
    except OSError as error:  # For example, the disk is full or a folder is read-only.
        failed = RunFailedError(os_error_line(error))
        end_log_with(failed)
        raise failed from error
