"""`python -m coprefl_flwr.experiments.similarity`: see `coprefl_flwr.report.figures.similarity`."""

import sys

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures.similarity import main

if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SettingsError as error:
        sys.exit(str(error))
