"""`python -m coprefl_flwr.experiments.personalised`: see `coprefl_flwr.studies.results`."""

import sys

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.studies.results import main

if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SettingsError as error:
        sys.exit(str(error))
