"""The flags of a Vitis config, each by what it changes in the plan and in what the model computes."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from detent.compat.vitis import QatProcessor


def prepared(model, inputs, tmp_path, **config):
    file = tmp_path / "cfg.json"
    file.write_text(json.dumps(config))
    return QatProcessor(model, inputs, config_file=file).trainable_model().eval().requires_grad_(False)


def images(count: int = 16) -> torch.Tensor:
    return torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(2))


class Residual(nn.Module):
    def __init__(self, activation: nn.Module):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.activation = nn.Conv2d(3, 4, 3, padding=1), activation
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x):
        y = self.activation(self.first(x))
        return self.last((y + self.second(y)).mean((2, 3)))


def residual(activation: nn.Module) -> Residual:
    return Residual(activation).eval().requires_grad_(False)


def uneven() -> nn.Module:
    """What one channel has too much of, the layer behind it has too little of: the function is an ordinary one."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(144, 2),
    )  # fmt: skip
    factor = torch.tensor([64.0, 1.0, 8.0, 0.25])
    with torch.no_grad():
        net[0].weight *= factor.reshape(-1, 1, 1, 1)
        net[0].bias *= factor
        net[2].weight /= factor.reshape(1, -1, 1, 1)
    return net.eval().requires_grad_(False)


@pytest.mark.parametrize(
    ("flag", "before", "after", "kind", "factor"),
    [
        ("convert_silu_to_hswish", nn.SiLU, nn.Hardswish, "hardswish", 4),
        ("convert_relu6_to_relu", nn.ReLU6, nn.ReLU, "relu", 12),
    ],
    ids=["silu", "relu6"],
)
def test_activations_are_swapped(flag, before, after, kind, factor, tmp_path):
    x = factor * images()  # to where the two differ
    model = prepared(residual(before()), x, tmp_path, target_device="CPU", **{flag: True})
    assert model.plan["activation"].kind == kind
    assert prepared(residual(before()), x, tmp_path, target_device="CPU").plan["activation"].kind != kind
    to_plain, to_swapped = ((model(x) - residual(one())(x)).abs().mean() for one in (before, after))
    assert to_swapped < to_plain / 2


def test_what_sums_take_in_has_16_bits(tmp_path):
    x, net = images(), residual(nn.ReLU())
    usual = prepared(net, x, tmp_path, target_device="CPU")
    kept = prepared(net, x, tmp_path, target_device="CPU", keep_add_layer_accuracy=True)
    widths = {entry.tensor: entry.scheme.grid.bits for entry in kept.plan.quantized}
    assert {name for name, bits in widths.items() if bits == 16} == {"activation", "second"}
    assert {entry.scheme.grid.bits for entry in usual.plan.quantized} == {8}
    scales = [model.activation_quantizers["second"].qparams().scale for model in (usual, kept)]
    assert float(scales[0] / scales[1]) == 32768 / 128  # its widest number is the least


def test_first_and_last_layers_stay_float(tmp_path):
    model = prepared(residual(nn.ReLU()), images(), tmp_path, target_device="CPU", keep_first_last_layer_accuracy=True)
    weights = [entry.tensor for entry in model.plan.quantized if entry.role == "weight"]
    assert weights == ["second.weight"]
    kept = {entry.tensor for entry in model.plan.kept_float}
    assert {"x", "first.weight", "first.bias", "last.weight", "last.bias"} <= kept


def test_equalization_evens_out_the_channels(tmp_path):
    x, net = images(), uneven()

    def noise(model):
        return float((model(x) - net(x)).square().mean() / net(x).square().mean())

    def rows(model):
        return model.state_dict()["0.parametrizations.weight.original"].flatten(1).abs().amax(1)

    usual, equalized = (prepared(net, x, tmp_path, include_cle=include) for include in (False, True))
    assert rows(usual).max() / rows(usual).min() > 100
    assert rows(equalized).max() / rows(equalized).min() < 1.1
    assert noise(equalized) < noise(usual) / 100  # 0.4 and 0.0006


def test_bias_correction_takes_the_mean_error_out(tmp_path):
    x, net = images(), uneven()
    config = {
        "target_device": "CPU",
        "overall_quantize_config": {"round_mode": "floor"},  # which moves every mean
        "tensor_quantize_config": {"weights": {"per_channel": True}},
    }

    def shift(model):
        return float((model(x) - net(x)).mean(0).abs().max())

    usual, corrected = (prepared(net, x, tmp_path, **config, include_bias_corr=include) for include in (False, True))
    assert shift(corrected) < shift(usual) / 2  # 0.020 and 0.005


@pytest.mark.parametrize(
    ("device", "backend", "arithmetic", "scale"),
    [
        ("DPU", "vitis", "vitis_dpu", "power_of_two"),
        ("CPU", "vitis_cpu", "onnx_spec", "float"),
        ("GPU", "vitis_cpu", "onnx_spec", "float"),
    ],
)
def test_the_target_device_is_a_backend(device, backend, arithmetic, scale, tmp_path):
    model = prepared(residual(nn.ReLU()), images(), tmp_path, target_device=device)
    assert (model.backend.name, model.backend.arithmetic) == (backend, arithmetic)
    assert {entry.scheme.scale for entry in model.plan.quantized} == {scale}
