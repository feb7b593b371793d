"""The DPU's arithmetic against shifts of Python integers, and against Detent's own simulation of the backend."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

import detent
from detent.deployment import deployment_of
from detent.errors import DeployError
from detent.ir import Network, Operand, read_qdq
from detent.targets.vitis.arithmetic import VitisDpu, pool_factor, position
from detent.twin import Twin
from tests.models import MODELS
from tests.twin.nets import Style, small_net

Codes = npt.NDArray[np.int64]
DPU = Style(activation="int8", symmetric=True, scales="pot", per_channel=False)


def shifted(total: int, by: int) -> int:
    """`total / 2**by`, halves up, in integers."""
    return (total + (1 << (by - 1))) >> by if by > 0 else total << -by


def settle(totals: npt.NDArray[np.object_], by: int, low: int = -128) -> Codes:
    flat = [min(127, max(low, shifted(int(total), by))) for total in totals.reshape(-1)]
    return np.array(flat, np.int64).reshape(totals.shape)


def place(read: Operand | None) -> int:
    assert read is not None
    assert read.encoding is not None
    return position(read.encoding)


def python_conv(graph: Network, codes: dict[str, Codes]) -> Codes:
    """3x3, padded by 1: sums of Python integers."""
    op = graph.ops[0]
    x, weight, bias = op.inputs
    assert x is not None
    assert weight is not None
    assert bias is not None
    padded = np.pad(codes[x.tensor], ((0, 0), (0, 0), (1, 1), (1, 1))).astype(object)
    w, b = graph.constants[weight.tensor].astype(object), graph.constants[bias.tensor]
    size = codes[x.tensor].shape[2]
    at = place(x) + place(weight)
    totals = np.empty((len(padded), len(w), size, size), object)
    for row in range(size):
        for column in range(size):
            window = padded[:, None, :, row : row + 3, column : column + 3]
            totals[:, :, row, column] = (window * w[None]).sum(axis=(2, 3, 4))
    totals = totals + np.array([int(v) << (at - place(bias)) for v in b], object).reshape(1, -1, 1, 1)
    low = 0 if graph.ops[-1].type == "Relu" else -128
    return settle(totals, at - place(graph.outputs[0].read), low)


def python_pair(graph: Network, codes: dict[str, Codes]) -> Codes:
    op = graph.ops[0]
    a, b = op.inputs
    assert a is not None
    assert b is not None
    x, y = codes[a.tensor].astype(object), codes[b.tensor].astype(object)
    to = place(graph.outputs[0].read)
    if op.type == "Mul":
        return settle(x * y, place(a) + place(b) - to)
    at = max(place(a), place(b))
    return settle((x << (at - place(a))) + (y << (at - place(b))), at - to)


def python_mean(graph: Network, codes: dict[str, Codes]) -> Codes:
    """10 x 10: 41 / 2**12 is the nearest to a hundredth that the rule finds."""
    x = graph.ops[0].inputs[0]
    assert x is not None
    totals = codes[x.tensor].astype(object).sum(axis=(2, 3), keepdims=True) * 41
    return settle(totals, 12 + place(x) - place(graph.outputs[0].read))


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        ("conv", python_conv),
        ("conv_relu", python_conv),
        ("add", python_pair),
        ("mul", python_pair),
        ("gap", python_mean),
    ],
)
def test_shifts_of_python_integers(kind: str, reference: Callable[[Network, dict[str, Codes]], Codes]) -> None:
    for seed in range(3):
        style = Style(activation="int8", symmetric=True, scales="pot", per_channel=False, seed=seed)
        net = small_net(kind, style)
        graph = read_qdq(net.model)
        found = Twin(net.model, VitisDpu()).tensors(net.feeds)
        codes = {name: found[name].astype(np.int64) for name in graph.inputs}
        assert np.array_equal(found[graph.outputs[0].read.tensor], reference(graph, codes))


@pytest.mark.by_default("unet", "residual_cnn", "conv_transpose_bn", "linear_bn", "functional_ops")
@pytest.mark.parametrize(
    "name",
    ["resnet18", "mobilenet_v2", "unet", "residual_cnn", "conv_transpose_bn", "linear_bn", "functional_ops"],
)
def test_equals_the_simulation(name: str) -> None:
    """Powers of two are exact in float32: fake quantization and shifts cannot differ where both do the same."""
    torch.manual_seed(0)
    entry = MODELS[name]
    prepared = detent.prepare(entry.build().eval(), entry.inputs(), backend="vitis")
    detent.calibrate(prepared, [entry.inputs() for _ in range(2)])
    deployment = deployment_of(prepared.eval())
    inputs = entry.inputs()
    with torch.no_grad():
        simulated = prepared(*inputs)
    feeds = {name: value.numpy() for name, value in zip(deployment.graph.inputs, inputs, strict=True)}
    twin = Twin(deployment.model, VitisDpu()).run(feeds)
    assert np.array_equal(next(iter(twin.values())), simulated.numpy())


def test_where_a_dpu_is_not_onnx() -> None:
    """A mean over 3x3 is sum * 7/64, 1.6 % less than the mean; over 2x2 it is the mean."""
    assert pool_factor((3, 3)) == (7, 6)
    assert pool_factor((7, 7)) == (21, 10)
    assert pool_factor((8, 8)) == (1, 6)
    assert pool_factor((10, 10)) == (41, 12)
    factor, shift = pool_factor((11, 11))
    assert abs(factor / 2**shift * 121 - 1) < 0.01


def test_inputs_are_rounded_away_from_zero_and_the_rest_up() -> None:
    net = small_net("relu", DPU)
    grid = read_qdq(net.model).grid_of("x")
    assert grid is not None
    values = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32) * grid.scale
    feeds = {"x": np.resize(values, net.feeds["x"].shape)}
    codes = Twin(net.model, VitisDpu()).tensors(feeds)["x"]
    assert codes.reshape(-1)[:6].tolist() == [-3, -2, -1, 1, 2, 3]
    assert VitisDpu().quantize(torch.from_numpy(values), grid).tolist() == [-2, -1, 0, 1, 2, 3]


@pytest.mark.parametrize("style", [Style(activation="int8", symmetric=True), Style(activation="int8", scales="pot")])
def test_other_scales_and_zero_points_are_refused(style: Style) -> None:
    net = small_net("conv", style)
    with pytest.raises(DeployError, match="not a power of two, several scales, or a zero point"):
        Twin(net.model, VitisDpu())
