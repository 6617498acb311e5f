"""The command line: which packages are loaded before a command is known."""

import subprocess
import sys

PROGRAM = """
import sys
from coprefl_flwr.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "flwr", "pandas"}))
"""


def test_help_and_mistakes_load_no_torch_and_no_flower():
    for arguments in (["--help"], ["run", "--help"], ["rnu"], []):
        command = [sys.executable, "-c", PROGRAM, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]", arguments
