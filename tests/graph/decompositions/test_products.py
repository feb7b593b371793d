"""`einsum` and `addmm` are captured as matrix products and linear layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import detent
from detent.graph import capture
from detent.graph.decompositions.products import addmm, einsum

EQUATIONS = {
    "bhid,bhjd->bhij": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "bhij,bhjd->bhid": ((2, 3, 4, 6), (2, 3, 6, 5)),
    "bqhd, bkhd -> bhqk": ((2, 4, 3, 5), (2, 6, 3, 5)),
    "nhqk,nkhd->nqhd": ((2, 3, 4, 6), (2, 6, 3, 5)),
    "...id,...jd->...ij": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "ij,jk": ((2, 3), (3, 4)),
    "bld,ed->ble": ((2, 3, 4), (5, 4)),
    "bld,dhk->blhk": ((2, 3, 4), (4, 2, 3)),
    "ij,bjk->bik": ((4, 3), (2, 3, 5)),
    "bcxy,bdxy->bcd": ((2, 3, 4, 5), (2, 6, 4, 5)),
    "bxyd,bzwd->bxyzw": ((2, 3, 4, 5), (2, 2, 3, 5)),
    "bi,bi->b": ((2, 3), (2, 3)),
    "bi,bj->bij": ((2, 3), (2, 4)),
    "bi,ij,bj->b": ((2, 3), (3, 4), (2, 4)),
    "b...,b->b...": ((2, 3, 4), (2,)),
    "bij->jb": ((2, 3, 4),),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_an_equation_is_computed_as_torch_does(equation: str):
    torch.manual_seed(0)
    tensors = [torch.randn(shape) for shape in EQUATIONS[equation]]
    made = einsum(equation, *tensors)
    assert made.shape == torch.einsum(equation, *tensors).shape
    assert torch.allclose(made, torch.einsum(equation, *tensors), atol=1e-5)


def test_a_diagonal_and_a_repeated_axis_are_left_to_torch():
    assert einsum("bii->b", torch.randn(2, 3, 3)) is NotImplemented
    assert einsum("bi,bi->b", torch.randn(2, 3), torch.randn(1, 3)) is NotImplemented


class Equation(nn.Module):
    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation, self.weight = equation, nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum(self.equation, x, self.weight)


@pytest.mark.parametrize(("equation", "size"), [("bld,de->ble", 4), ("bld,ed->ble", 6)])
def test_a_weight_in_an_equation_is_that_of_a_linear_layer(equation: str, size: int):
    net, x = Equation(equation).eval(), torch.randn(2, 3, size)
    prepared = detent.prepare(net, (x,), backend="onnxruntime")
    assert [(entry.tensor, entry.kind) for entry in prepared.plan.quantized if entry.role == "weight"] == [
        ("weight.weight", "linear")
    ]
    assert torch.equal(detent.float_state_dict(prepared)["weight"], net.weight)


class Columns(nn.Module):
    """A linear layer as GPT-2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view((*x.size()[:-1], 8))


def test_addmm_with_a_weight_is_a_linear_layer():
    net, x = Columns().eval(), torch.randn(2, 3, 6)
    prepared = detent.prepare(net, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [(x,)])
    layer: Any = prepared.get_submodule("weight")
    assert isinstance(layer, nn.Linear)
    assert layer.weight.shape == (8, 6)
    assert [entry.tensor for entry in prepared.plan.quantized if entry.role != "activation"] == [
        "weight.weight",
        "weight.bias",
    ]
    state = detent.float_state_dict(prepared)
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


def test_addmm_with_factors():
    a, b, c = torch.randn(3, 5), torch.randn(3, 4), torch.randn(4, 5)
    assert torch.allclose(addmm(a, b, c, beta=0.5, alpha=2), torch.addmm(a, b, c, beta=0.5, alpha=2), atol=1e-6)
    assert torch.allclose(addmm(a[0], b, c), torch.addmm(a[0], b, c), atol=1e-6)


def test_an_equation_that_stays():
    class Diagonal(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("bii->bi", x)

    (graph,) = capture(Diagonal(), (torch.randn(2, 3, 3),)).regions[""].graphs.values()
    assert torch.einsum in [node.target for node in graph.nodes]
