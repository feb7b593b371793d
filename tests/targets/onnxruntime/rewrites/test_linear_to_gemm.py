"""Linear layers on more than two dimensions are one integer kernel, and give the same integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.errors import UnknownNameError
from detent.ir import Network, Package
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import RELU, Writing, X, Y, run, types

REWRITE = ("linear_to_gemm",)


def network(
    shape: tuple[int | str, ...] = ("n", 5, 12),
    *,
    relu: bool = False,
    swapped: bool = False,
    bias: bool = True,
    ends_float: bool = False,
) -> Network:
    draw, w = np.random.default_rng(0), Writing()
    scale = 2.0 ** draw.integers(-9, -6, 8)
    weight = w.coded("fc.weight", draw.integers(-127, 128, (12, 8)).astype(np.int8), scale, 1)
    made = w.node("MatMul", [w.on_grid(*X), weight], "fc.matmul" if bias else "y")
    if bias:
        held = w.coded("fc.bias", draw.integers(-2000, 2000, 8).astype(np.int32), scale * X[1], 0)
        made = w.node("Add", [held, made] if swapped else [made, held], "fc" if relu else "y")
    if relu:
        w.node("Relu", [made], "y")
    w.known("y", (*shape[:-1], 8))
    return w.network(shape, "y" if ends_float else w.on_grid(*(RELU if relu else Y)))


@pytest.mark.parametrize("shape", [("n", 5, 12), (2, 5, 12), ("n", 2, 3, 12)], ids=str)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_the_same_integers(shape: tuple[int | str, ...], relu: bool, swapped: bool) -> None:
    before = network(shape, relu=relu, swapped=swapped)
    after = legalize(before, REWRITE)
    assert types(after) == ["Reshape", "Gemm", *(["Relu"] if relu else []), "Reshape"]
    sizes = [3 if isinstance(size, str) else size for size in shape]
    x = np.random.default_rng(1).normal(0, 4, sizes).astype(np.float32)
    wanted = run(before, x)
    assert np.unique(wanted).size > 12
    np.testing.assert_array_equal(run(after, x), wanted)


def test_the_same_real_numbers_where_the_result_is_on_no_grid() -> None:
    before = network(ends_float=True)
    after = legalize(before, REWRITE)
    assert types(after) == ["Reshape", "Gemm", "Reshape"]
    x = np.random.default_rng(1).normal(0, 4, (3, 5, 12)).astype(np.float32)
    # Scales are powers of two, so sums below 2^24 steps are exact in any order.
    np.testing.assert_array_equal(run(after, x), run(before, x))


class FromTable(nn.Module):
    """A position bias that a small network computes from a table of coordinates, as Swin V2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.head = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 8)), nn.Linear(8, 8)
        self.register_buffer("table", torch.rand(5, 6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + self.mlp(self.table)


def test_a_linear_layer_of_a_constant_runs_on_integers(tmp_path: Path) -> None:
    """Without it ONNX Runtime makes a MatMulNBits of it, which rounds what it reads: 2 % of the codes were off by 1."""
    torch.manual_seed(0)
    batches = [torch.randn(2, 5, 6, 8) for _ in range(2)]
    artifact = detent.quantize(FromTable(), batches, backend="onnxruntime", folder=tmp_path / "deployed")
    network = Package.load(tmp_path / "deployed").graph
    assert "table" in [op.reads[0].tensor for op in network.ops if op.type == "Reshape"]
    assert artifact.verify(batches, latency=False).holds


@pytest.mark.parametrize(
    "model",
    [network((3, 12)), network(bias=False), network(("n", "m", 12)), network(relu=True, ends_float=True)],
    ids=["a-matrix", "no-bias", "two-free-sizes", "float-behind-an-activation"],
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


def test_the_gemm_has_the_name_of_the_layer() -> None:
    nodes = {op.name: op.type for op in legalize(network(), REWRITE).ops}
    assert nodes["y"] == "Gemm"


def test_an_unknown_form() -> None:
    with pytest.raises(UnknownNameError, match="linear_to_gemm"):
        legalize(network(), ("linear_as_conv",))


def test_undo_it_is_the_model_itself() -> None:
    model = network()
    assert legalize(model, ()) is model
