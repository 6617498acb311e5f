"""Collaborative pre-training for Flower: a good and fair starting model for federated learning."""

__version__ = "0.1.0"
