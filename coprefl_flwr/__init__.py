"""Collaborative pre-training for Flower: a good and fair starting model for federated learning."""

from coprefl_flwr.places import register as register

__version__ = "0.1.0"
