"""The papers' networks, a user's own, and their weights as named NumPy arrays."""

from coprefl_flwr.models.arrays import first_names, load_arrays, model_arrays, with_fresh_head
from coprefl_flwr.models.build import build_model, head_names
from coprefl_flwr.models.representation import outputs_and_representation
from coprefl_flwr.models.saved import load_saved_model, save_model

__all__ = [
    "build_model",
    "first_names",
    "head_names",
    "load_arrays",
    "load_saved_model",
    "model_arrays",
    "outputs_and_representation",
    "save_model",
    "with_fresh_head",
]
