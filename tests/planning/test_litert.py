"""What LiteRT has for a recipe that asks: weights of 4 bits, activations of 16."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import detent
from detent.errors import SchemeError
from detent.graph import QuantizedTensor
from detent.recipes import Recipe, TensorRequest
from detent.targets import BACKENDS


class Functions(nn.Module):
    """One layer, then a function whose output has a prescribed grid."""

    def __init__(self, function: nn.Module):
        super().__init__()
        self.linear, self.function = nn.Linear(8, 6), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x))


def asked(**requests: TensorRequest) -> Recipe:
    return Recipe(name="asked", **requests)


def planned(model: nn.Module, recipe: Recipe, backend: str = "litert") -> dict[str, QuantizedTensor]:
    prepared = detent.prepare(model.eval(), (torch.randn(4, 8),), backend=backend, recipe=recipe)
    return {entry.tensor: entry for entry in prepared.plan.quantized}


@pytest.mark.parametrize("backend", ["litert", "tflite_micro"])
def test_16_bit_activations_are_symmetric(backend: str) -> None:
    found = planned(nn.Sequential(nn.Linear(8, 6)), asked(activation=TensorRequest(bits=16)), backend)
    weight = "int8 narrow symmetric " + ("per-tensor" if backend == "tflite_micro" else "per-channel(0)")
    assert {name: str(entry.scheme) for name, entry in found.items()} == {
        "input_1": "int16 symmetric per-tensor",
        "_0": "int16 symmetric per-tensor",
        "0.weight": weight,
        "0.bias": weight.replace("int8 narrow", "int32"),
    }


def test_4_bit_weights() -> None:
    found = planned(nn.Sequential(nn.Linear(8, 6)), asked(weight=TensorRequest(bits=4)))
    assert str(found["0.weight"].scheme) == "int4 narrow symmetric per-channel(0)"
    assert str(found["_0"].scheme) == "int8 affine per-tensor"


def test_what_there_is_not() -> None:
    with pytest.raises(SchemeError, match="8 or 4 bits"):
        planned(nn.Sequential(nn.Linear(8, 6)), asked(weight=TensorRequest(bits=5)))
    with pytest.raises(SchemeError, match="symmetric schemes"):
        planned(nn.Sequential(nn.Linear(8, 6)), asked(activation=TensorRequest(bits=16, symmetric=False)))


@pytest.mark.parametrize("function", [nn.Sigmoid(), nn.Tanh(), nn.Softmax(-1)], ids=["sigmoid", "tanh", "softmax"])
def test_prescribed_grids_have_the_width_that_was_asked(function: nn.Module) -> None:
    prepared = detent.prepare(
        Functions(function).eval(),
        (torch.randn(4, 8),),
        backend="litert",
        recipe=asked(activation=TensorRequest(bits=16)),
    )
    detent.calibrate(prepared, [(torch.randn(4, 8),)])
    (entry,) = [entry for entry in prepared.plan.quantized if entry.tensor == "function"]
    assert (str(entry.scheme), entry.observer) == ("int16 symmetric per-tensor", "fixed")
    scales = {name: tensor.item() for name, tensor in prepared.named_buffers() if name.endswith("function.scale")}
    assert list(scales.values()) == [2**-15]


def test_a_function_without_a_16_bit_kernel_is_measured() -> None:
    found = planned(Functions(nn.LogSoftmax(-1)), asked(activation=TensorRequest(bits=16)))
    assert found["function"].observer != "fixed"
    assert str(found["function"].scheme) == "int16 symmetric per-tensor"


def test_the_ranges_of_8_bits_are_as_they_were() -> None:
    found = planned(Functions(nn.Sigmoid()), asked())
    assert found["function"].observer_options == {"low": 0.0, "high": 255 / 256}
    assert BACKENDS["qnn"].wide_ranges == {}
