"""The call of a network with the inputs of a batch, whatever their form and that of its outputs."""

from typing import Any

from torch import Tensor
from torch.func import functional_call

from coprefl_flwr.data.inputs import Inputs
from coprefl_flwr.models.precision import as_float32


def outputs_of(
    model: Any, inputs: Inputs, weights: dict[str, Tensor] | None = None, *, tied: bool = True
) -> Any:
    """Return the outputs of a network, a tensor.

    A tuple of inputs is called as `model(*inputs)`, and a dict as `model(**inputs)`. Of an object
    with `logits`, as the models of transformers return it, the outputs are the logits. With
    `weights`, these replace the parameters and buffers with their names for this call, and the
    tensors tied to them. Without tied tensors (`tied`) the call is faster.
    """
    named = inputs if isinstance(inputs, dict) else {}
    unnamed = inputs if isinstance(inputs, tuple) else () if named else (inputs,)
    if weights is None:
        outputs = model(*unnamed, **named)
    else:
        outputs = functional_call(model, weights, unnamed, named, tie_weights=tied)
    if isinstance(outputs, Tensor):
        return outputs
    return as_float32(getattr(outputs, "logits", outputs))
