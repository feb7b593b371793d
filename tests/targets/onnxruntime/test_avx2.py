"""Without VNNI pairs of u8 x s8 products saturate: against a plain loop over pairs, in numpy.

Against the engine itself, on whichever CPU there is: `test_engine.py` and `test_shapes.py`; as it was on a CPU without
VNNI: `tests/twin/test_golden_cpus.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from detent import twin
from detent.targets.arithmetics import ARITHMETICS
from detent.twin import Twin
from tests.twin.nets import Net, Style, small_net

Array = npt.NDArray[Any]


def constants(net: Net) -> dict[str, Array]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in net.model.graph.initializer}


def saturated(columns: Array, weights: Array) -> Array:
    """columns (rows, K) of uint8 and weights (out, K) of int8, summed in pairs that stop at 16 bits."""
    if columns.shape[1] % 2:
        columns, weights = np.pad(columns, ((0, 0), (0, 1))), np.pad(weights, ((0, 0), (0, 1)))
    products = columns[:, None].astype(np.int64) * weights[None].astype(np.int64)
    pairs = products[..., 0::2] + products[..., 1::2]
    return np.clip(pairs, -32768, 32767).sum(-1)


def requantized(sums: Array, c: dict[str, Array], name: str) -> Array:
    """(rows, out) of sums less the zero point's part, bias included, as codes."""
    x_scale, scale, zero = c["x_scale"], c[f"{name}_scale"], int(c[f"{name}_zero_point"])
    multiplier = (x_scale * c[f"{name}.weight_scale"]).astype(np.float32) / scale
    return np.clip(np.rint(sums.astype(np.float32) * multiplier) + zero, 0, 255)


def test_a_matrix_product_in_a_loop() -> None:
    net = small_net("gemm", Style(seed=3))
    c = constants(net)
    weights, zero = c["gemm1.weight_quantized"], int(c["x_zero_point"])
    codes = np.clip(np.rint(net.feeds["x"] / c["x_scale"]) + zero, 0, 255).astype(np.uint8)
    sums = saturated(codes, weights) - zero * weights.astype(np.int64).sum(1) + c["gemm1.bias_quantized"]
    inside = twin.tensors(net.model, net.feeds, "onnxruntime", cpu="avx2")
    assert np.array_equal(inside["gemm1"], requantized(sums, c, "gemm1"))
    assert (inside["gemm1"] != twin.tensors(net.model, net.feeds, cpu="vnni")["gemm1"]).mean() > 0.3


def test_a_convolution_in_a_loop_row_column_channel() -> None:
    net = small_net("conv", Style(seed=4, batch=1))
    c = constants(net)
    weights, zero = c["conv1.weight_quantized"], int(c["x_zero_point"])
    codes = np.clip(np.rint(net.feeds["x"] / c["x_scale"]) + zero, 0, 255).astype(np.uint8)
    padded = np.pad(codes, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=zero)[0]
    size = codes.shape[2]
    columns = np.stack(
        [padded[:, i : i + 3, j : j + 3].transpose(1, 2, 0).reshape(-1) for i in range(size) for j in range(size)]
    )
    flat = weights.transpose(0, 2, 3, 1).reshape(weights.shape[0], -1)
    sums = saturated(columns, flat) - zero * flat.astype(np.int64).sum(1) + c["conv1.bias_quantized"]
    expected = requantized(sums, c, "conv1").T.reshape(1, -1, size, size)
    assert np.array_equal(twin.tensors(net.model, net.feeds, "onnxruntime", cpu="avx2")["conv1"], expected)


@pytest.mark.parametrize(
    ("kind", "style"),
    [
        ("conv", Style(weight_range=63)),
        ("gemm", Style(weight_range=63)),
        ("conv", Style(weight="uint8")),
        ("depthwise", Style()),
        ("matmul_dynamic", Style()),
    ],
    ids=["reduced-conv", "reduced-gemm", "uint8-weights", "depthwise", "two-activations"],
)
def test_what_does_not_saturate(kind: str, style: Style) -> None:
    net = small_net(kind, style)
    (plain,), (avx2,) = (twin.run(net.model, net.feeds, cpu=cpu).values() for cpu in ("vnni", "avx2"))
    assert np.array_equal(plain, avx2)


@pytest.mark.parametrize("kind", ["conv_strided", "conv_grouped", "conv_1d", "matmul", "gemm_float", "residual"])
def test_what_saturates(kind: str) -> None:
    net = small_net(kind, Style(seed=2))
    (plain,), (avx2,) = (twin.run(net.model, net.feeds, cpu=cpu).values() for cpu in ("vnni", "avx2"))
    assert plain.shape == avx2.shape
    assert (plain != avx2).any()


def test_the_claim_is_printed_with_the_name() -> None:
    net = small_net("conv")
    prepared = Twin(net.model, ARITHMETICS["onnxruntime"]("avx2"))
    assert prepared.arithmetic.cpu.name == "avx2"
    assert "conv1:uint8 = Conv(x:uint8) [integer]" in str(prepared)
