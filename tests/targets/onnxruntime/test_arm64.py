"""What differs on arm64, with literal numbers.

Compared with onnxruntime 1.22.1 under `qemu-aarch64-static`: 270 nets of 30 kinds, 730,000 outputs, all equal but 2
behind a convolution that runs in float; and 144 nets of gap, mul and softmax, 626,000 outputs, all equal.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from detent import twin
from detent.targets.arithmetics import ARITHMETICS
from detent.twin import Twin
from tests.twin.nets import Net, Style, small_net


def codes_of(net: Net, name: str) -> tuple[np.ndarray, np.float32, int]:
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in net.model.graph.initializer}
    scale, zero = held[f"{name}_scale"], held[f"{name}_zero_point"]
    bounds = np.iinfo(zero.dtype)
    codes = np.clip(np.rint(net.feeds[name] / scale) + int(zero), bounds.min, bounds.max).astype(np.int64)
    return codes, np.float32(scale), int(zero)


@pytest.mark.parametrize("style", [Style(scales="tie", seed=1), Style("int8", scales="pot", seed=2)], ids=str)
def test_additions_are_in_fixed_point_and_ties_go_away_from_zero(style: Style) -> None:
    net = small_net("add", style)
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in net.model.graph.initializer}
    (a, sa, za), (b, sb, zb) = codes_of(net, "x"), codes_of(net, "y")
    sy, zero = np.float32(held["add1_scale"]), held["add1_zero_point"]
    ratios = [float(np.float32(s / sy)) for s in (sa, sb)]
    shift = 21 - int(np.floor(np.log2(max(ratios))))
    ma, mb = (round(ratio * 2**shift) for ratio in ratios)
    exact = ((a - za) * ma + (b - zb) * mb) / 2.0**shift
    expected = np.sign(exact) * np.floor(np.abs(exact) + 0.5) + int(zero)
    bounds = np.iinfo(zero.dtype)
    inside = twin.tensors(net.model, net.feeds, "onnxruntime", cpu="arm64")["add1"]
    assert np.array_equal(inside, np.clip(expected, bounds.min, bounds.max))
    assert (inside != twin.tensors(net.model, net.feeds)["add1"]).any()


def test_products_are_added_to_the_zero_point_without_rounding_in_between() -> None:
    net = small_net("mul", Style("int8", scales="tie", seed=0, batch=4))
    arm, x86 = (twin.tensors(net.model, net.feeds, cpu=cpu)["mul1"] for cpu in ("arm64", "vnni"))
    differences = arm.astype(int) - x86
    assert 0 < (differences != 0).mean() < 0.01
    assert np.abs(differences).max() == 1


def test_int8_stays_on_integers_around_a_branch() -> None:
    net = small_net("residual", Style("int8", seed=1))
    floats = {
        name: [step for step in Twin(net.model, ARITHMETICS["onnxruntime"](name)).steps if step.ran_as == "float"]
        for name in ("vnni", "arm64")
    }
    assert not floats["arm64"]
    assert [step.ops[0].type for step in floats["vnni"]] == ["Conv", "Relu", "Conv", "Add", "Relu"]


def test_a_share_beyond_127_is_127_in_int8() -> None:
    """The scale 2**-9 gives shares up to 512."""
    grid = {"scale": np.float32(0.5), "zero": np.int8(0)}
    x = np.full((2, 8), -60, np.float32)
    x[0, 0] = x[1, :2] = 0
    net = softmax_of(x, grid, np.float32(2.0**-9), np.int8(-128))
    codes = twin.tensors(net.model, net.feeds, "onnxruntime", cpu="arm64")["y"]
    assert codes[0].tolist() == [127] + [-128] * 7  # 512 - 128
    assert codes[1].tolist() == [127] * 2 + [-128] * 6  # 256 - 128


def softmax_of(x: np.ndarray, grid: dict[str, np.generic], scale: np.float32, zero: np.int8) -> Net:
    from onnx import TensorProto, helper, numpy_helper

    held = {"sx": grid["scale"], "zx": grid["zero"], "sy": scale, "zy": zero}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"]),
        helper.make_node("Softmax", ["xd"], ["y"], name="softmax", axis=-1),
        helper.make_node("QuantizeLinear", ["y", "sy", "zy"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "sy", "zy"], ["yd"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(x.shape)) for name in ("x", "yd")]
    initializers = [numpy_helper.from_array(np.array(value), name) for name, value in held.items()]
    graph = helper.make_graph(nodes, "softmax", ports[:1], ports[1:], initializers)
    return Net(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), {"x": x})
