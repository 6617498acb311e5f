"""The papers' networks, a user's networks, and their weights as named NumPy arrays."""

from coprefl_flwr.models.arrays import as_array as as_array
from coprefl_flwr.models.arrays import buffer_names as buffer_names
from coprefl_flwr.models.arrays import first_names as first_names
from coprefl_flwr.models.arrays import load_arrays as load_arrays
from coprefl_flwr.models.arrays import load_in_order as load_in_order
from coprefl_flwr.models.arrays import model_arrays as model_arrays
from coprefl_flwr.models.arrays import with_fresh_head as with_fresh_head
from coprefl_flwr.models.build import build_model as build_model
from coprefl_flwr.models.build import head_names as head_names
from coprefl_flwr.models.frozen import train_mode as train_mode
from coprefl_flwr.models.heads import outputs_and_representation as outputs_and_representation
from coprefl_flwr.models.outputs import outputs_of as outputs_of
from coprefl_flwr.models.precision import computing as computing
from coprefl_flwr.models.weights import load_saved_model as load_saved_model
from coprefl_flwr.models.weights import save_model as save_model
