"""FedMeta's client: the gradient of the query loss after adapting to the support set."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from coprefl_flwr.arrays import Arrays, is_buffer, weights_of
from coprefl_flwr.clients.coprefl import CoPreFLClient
from coprefl_flwr.clients.torch_client import Config, Parameters
from coprefl_flwr.learning import differentiable, torch_seeded
from coprefl_flwr.models import first_names, model_arrays

Tensors = dict[str, Tensor]


class FedMetaClient(CoPreFLClient):
    """Answers with grad_theta L_Q(theta'), theta' = theta - alpha grad L_S(theta) (Algorithm 1).

    The adaptation runs in train mode, which renews BatchNorm's statistics, and the query loss is
    taken in eval mode; each set is one batch, since the second order goes through both. "meta-sgd"
    has an inner rate for every number of the model: they are sent behind the model, and `query`
    returns their gradients in the same place.
    """

    def query(
        self, parameters: Parameters, config: Config
    ) -> tuple[dict[str, Any], int, dict[str, float]]:
        """Return (gradients and the new buffers by name, |Q|, {"loss": L_Q(theta')})."""
        number = len(self.model.state_dict())
        self.load(parameters[:number])
        weights = {name: p.detach().requires_grad_() for name, p in self.parameters().items()}
        rates = self.rates(parameters[number:], config)
        support, query = self.split(config)
        with torch_seeded(*self.key(config, "adaptation")), differentiable(self.model):
            adapted = self.adapt(weights, rates, support.batch(slice(None), self.device), config)
            inputs, targets = query.batch(slice(None), self.device)
            self.model.eval()
            loss = cross_entropy(functional_call(self.model, adapted, inputs), targets)
        learnt = weights | {f"rates/{name}": rate for name, rate in rates.items()}
        wanted = {name: tensor for name, tensor in learnt.items() if tensor.requires_grad}
        gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
        found = dict(zip(wanted, gradients, strict=True))
        answer = self.answer(found, adapted, bool(parameters[number:]))
        return answer, len(query), {"loss": float(loss.detach())}

    def adapt(
        self, weights: Tensors, rates: Tensors, support: tuple[Tensor, Tensor], config: Config
    ) -> Tensors:
        """Return theta' and the buffers that the support set left."""
        inputs, targets = support
        buffers = {name: b.detach().clone() for name, b in self.model.named_buffers()}
        second_order = config["meta-variant"] != "fomaml"
        self.model.train()
        for _ in range(int(config["inner-steps"])):
            outputs = functional_call(self.model, {**weights, **buffers}, inputs)
            gradients = torch.autograd.grad(
                cross_entropy(outputs, targets),
                list(weights.values()),
                create_graph=second_order,
                allow_unused=True,
            )
            weights = {
                name: w if g is None else w - rates[name] * g
                for (name, w), g in zip(weights.items(), gradients, strict=True)
            }
        return {**weights, **buffers}

    def rates(self, sent: Parameters, config: Config) -> Tensors:
        """Return the inner rate of every parameter: one number for all, or those that were sent."""
        if not sent:
            rate = float(config["inner-learning-rate"])
            return {name: p.new_tensor(rate) for name, p in self.parameters().items()}
        known = dict(zip(weights_of(model_arrays(self.model)), sent, strict=True))
        return {
            name: torch.from_numpy(known[name]).to(self.device).requires_grad_()
            for name in self.parameters()
        }

    def answer(self, found: Mapping[str, Tensor | None], adapted: Tensors, rates: bool) -> Arrays:
        """Return an array for everything sent: gradients, zeros for what is frozen, buffers."""
        state, first = model_arrays(self.model), first_names(self.model)
        # Under which name the tensor was found: tied weights have the same step under every name.
        sources = {name: first[name] for name in state}
        if rates:
            sources |= {f"rates/{n}": f"rates/{first[n]}" for n in weights_of(state)}
        answer: Arrays = {}
        for name, source in sources.items():
            template = state[name.removeprefix("rates/")]
            gradient = found.get(source)
            if gradient is not None:
                answer[name] = np.asarray(gradient.detach().cpu())
            elif is_buffer(name, template) and source in adapted:
                answer[name] = np.asarray(adapted[source].detach().cpu())
            else:
                answer[name] = np.zeros_like(template)
        return answer
