import torch

from coprefl_flwr.learning import torch_seeded
from coprefl_flwr.models import build_model

IMAGES = torch.linspace(-1, 1, 2 * 28 * 28).reshape(2, 1, 28, 28)


def test_dropout_follows_the_callers_seed_and_is_off_in_eval_mode() -> None:
    model = build_model("fashion-mnist-cnn", 10, (1, 28, 28))
    outputs = []
    for seed in (0, 0, 1):
        with torch_seeded("dropout", seed):
            outputs.append(model(IMAGES))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    model.eval()
    assert torch.equal(model(IMAGES), model(IMAGES))


def test_dropout_stands_between_the_convolutions_and_the_linear_layers() -> None:
    layers = [type(module).__name__ for module in build_model("fashion-mnist-cnn", 10, (1, 28, 28))]
    kinds = [name for name in layers if name in ("Conv2d", "Dropout", "Linear")]
    assert kinds == ["Conv2d", "Conv2d", "Dropout", "Linear", "Linear"]
