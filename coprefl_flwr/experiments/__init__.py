"""Former places of two commands, which stay: `python -m coprefl_flwr.experiments.NAME`."""
