"""FedMeta's client: the gradient of the query loss after adaptation to the support set."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.arrays import Arrays, append_prefixed, split_prefixed, weights_of
from coprefl_flwr.clients.coprefl import CoPreFLClient
from coprefl_flwr.clients.torch_client import Config, Parameters
from coprefl_flwr.learning.evaluation import differentiable
from coprefl_flwr.learning.training import Batch, torch_seeded
from coprefl_flwr.models import as_array, model_arrays, outputs_of, train_mode
from coprefl_flwr.models.arrays import buffer_names, first_names

Tensors = dict[str, Tensor]


class FedMetaClient(CoPreFLClient):
    """A client that returns the meta-gradient grad_theta L_Q(theta') (Algorithm 1 of FedMeta).

    The adapted model is theta' = theta - alpha grad L_S(theta). S is the support set and Q the
    query set. The adaptation runs in train mode, which updates BatchNorm's statistics. The query
    loss is computed in eval mode. Each set is one batch, because second-order gradients pass
    through both sets. The variant "meta-sgd" has an inner learning rate for every element of the
    weights. These rates are in `config["extra"]["rates"]`, and `query` returns their gradients as
    arrays ".rates/NAME".

    A request may have "local-steps". The client then takes this number of meta steps
    theta <- theta - beta grad L_Q(theta'), each on the whole support and query set of the round.
    It returns the model and the rates after the last step.
    """

    options: ClassVar[Mapping[str, Any]] = {"query_clip": None, "query_noise": None}

    def query(
        self, parameters: Parameters, config: Config
    ) -> tuple[dict[str, Any], int, dict[str, float]]:
        """Return (gradients and new buffers by name, |Q|, {"loss": L_Q(theta')}).

        With "local-steps" in the request, return the new model instead of the gradients, and the
        mean loss of the meta steps.
        """
        self.load(parameters)
        sent: Arrays = config.get("extra", {}).get("rates", {})
        rates = self.rates(sent, config)
        support, query = (part.batch(slice(None), self.device) for part in self.split(config))
        seeded = torch_seeded(*self.key(config, "adaptation"), network=self.model)
        twice = config["meta-variant"] != "fomaml"
        with seeded, differentiable(self.model, twice=twice), self.computing():
            if "local-steps" not in config:
                loss, gradients, adapted = self.meta_gradient(rates, support, query, config)
                answer = self.answer(gradients, adapted, bool(sent))
                return answer, len(query[1]), {"loss": loss}
            losses = []
            for _ in range(int(config["local-steps"])):
                loss, gradients, adapted = self.meta_gradient(rates, support, query, config)
                rates = self.meta_step(
                    rates, gradients, adapted, float(config["meta-learning-rate"])
                )
                losses.append(loss)
        state, first = model_arrays(self.model), first_names(self.model)
        learnt = append_prefixed(state, "rates", {n: as_array(rates[first[n]]) for n in sent})
        return learnt, len(query[1]), {"loss": float(np.mean(losses))}

    def meta_gradient(
        self, rates: Tensors, support: Batch, query: Batch, config: Config
    ) -> tuple[float, Mapping[str, Tensor | None], Tensors]:
        """Return the loss L_Q(theta'), its gradients by name, and theta'.

        theta' is adapted from the model's weights. The gradients are with respect to these weights
        and, for "meta-sgd", to the rates.
        """
        weights = {name: p.detach().requires_grad_() for name, p in self.parameters().items()}
        adapted = self.adapt(weights, rates, support, config)
        inputs, targets = query
        self.model.eval()
        loss = self.training.loss(outputs_of(self.model, inputs, adapted), targets)
        learnt = append_prefixed(weights, "rates", rates)
        wanted = {name: tensor for name, tensor in learnt.items() if tensor.requires_grad}
        gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
        return float(loss.detach()), dict(zip(wanted, gradients, strict=True)), adapted

    @torch.no_grad()
    def meta_step(
        self, rates: Tensors, gradients: Mapping[str, Tensor | None], adapted: Tensors, step: float
    ) -> Tensors:
        """Subtract `step` times the gradients from the model's weights and from the rates.

        The weights are changed in place; the new rates are returned. The model's buffers become the
        buffers after the adaptation.
        """
        for name, buffer in self.model.named_buffers():
            buffer.copy_(adapted[name])
        for name, p in self.parameters().items():
            if (gradient := gradients[name]) is not None:
                p.sub_(step * gradient)
        moved, (_, of_rates) = {}, split_prefixed(gradients, "rates")
        for name, rate in rates.items():
            gradient = of_rates.get(name)
            after = rate if gradient is None else rate - step * gradient
            moved[name] = after.detach().requires_grad_(rate.requires_grad)
        return moved

    def adapt(self, weights: Tensors, rates: Tensors, support: Batch, config: Config) -> Tensors:
        """Return theta' and the buffers after the adaptation to the support set, by name."""
        inputs, targets = support
        buffers = {name: b.detach().clone() for name, b in self.model.named_buffers()}
        second_order = config["meta-variant"] != "fomaml"
        train_mode(self.model)
        for _ in range(int(config["inner-steps"])):
            outputs = outputs_of(self.model, inputs, {**weights, **buffers})
            gradients = torch.autograd.grad(
                self.training.loss(outputs, targets),
                list(weights.values()),
                create_graph=second_order,
                allow_unused=True,
            )
            weights = {
                name: w if g is None else (w - rates[name] * g).to(w.dtype)
                for (name, w), g in zip(weights.items(), gradients, strict=True)
            }
        return {**weights, **buffers}

    def rates(self, sent: Arrays, config: Config) -> Tensors:
        """Return the inner learning rates by parameter name.

        If no rates were sent, every parameter has the request's "inner-learning-rate".
        """
        if not sent:
            rate = float(config["inner-learning-rate"])
            return {name: p.new_tensor(rate) for name, p in self.parameters().items()}
        return {
            name: torch.tensor(sent[name], device=self.device, requires_grad=True)
            for name in self.parameters()
        }

    def answer(
        self, gradients: Mapping[str, Tensor | None], adapted: Tensors, rates: bool
    ) -> Arrays:
        """Return the reply: one array for each array of the model and, if `rates`, of the rates.

        The arrays are gradients, the new buffers, and zeros for weights that the loss does not use.
        """
        state, first = model_arrays(self.model), first_names(self.model)
        buffers = buffer_names(self.model)
        of_weights, of_rates = split_prefixed(gradients, "rates")

        def array_of(name: str, found: Mapping[str, Tensor | None]) -> npt.NDArray[Any]:
            # Tied weights have the gradient of their first name.
            tensor = (adapted if name in buffers else found).get(first[name])
            return np.zeros_like(state[name]) if tensor is None else as_array(tensor)

        named = weights_of(state, buffers) if rates else {}
        answer = {name: array_of(name, of_weights) for name in state}
        return append_prefixed(answer, "rates", {name: array_of(name, of_rates) for name in named})
