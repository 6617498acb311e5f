"""The settings of a study, at their former place."""

from coprefl_flwr.studies.settings import Settings as Settings
