"""Operators with many attributes, drawn at random, against ONNX Runtime: the same numbers, or a refusal."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from detent import load
from detent.errors import OnnxError

CASES = [25, pytest.param(60, marks=pytest.mark.full)]  # of each operator
Drawn = tuple[NodeProto, Any, dict[str, Any], int]


class Dice(random.Random):
    def sizes(self, count: int, low: int, high: int) -> list[int]:
        return [self.randint(low, high) for _ in range(count)]

    def normal(self, *shape: int) -> Any:
        return np.random.default_rng(self.randrange(2**32)).standard_normal(shape).astype(np.float32)


def resize(dice: Dice) -> Drawn:
    opset, rank = dice.choice([10, 11, 13, 18, 19]), dice.choice([3, 4, 4, 5])
    mode = dice.choice(["nearest", "linear", "cubic"] if rank == 4 and opset > 10 else ["nearest", "linear"])
    x = dice.normal(1, 2, *dice.sizes(rank - 2, 1, 7))
    scales = np.array([1, 1, *(dice.choice([0.5, 0.6, 0.8, 1, 1.5, 2, 2.3, 3]) for _ in range(rank - 2))], np.float32)
    if opset == 10:
        return helper.make_node("Resize", ["x", "s"], ["y"], mode=mode), x, {"s": scales}, opset
    coordinates = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": dice.choice(coordinates + ["half_pixel_symmetric"] * (opset >= 19)),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = dice.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic":
        attributes |= {"exclude_outside": dice.randint(0, 1), "cubic_coeff_a": dice.choice([-0.5, -0.75])}
    if mode != "nearest" and opset >= 18 and rank == 4:
        attributes["antialias"] = dice.randint(0, 1)
    if dice.random() < 0.5:
        return helper.make_node("Resize", ["x", "", "s"], ["y"], **attributes), x, {"s": scales}, opset
    sizes = np.array([1, 2, *dice.sizes(rank - 2, 1, 9)])
    return helper.make_node("Resize", ["x", "", "", "s"], ["y"], **attributes), x, {"s": sizes}, opset


def pool(dice: Dice) -> Drawn:
    kind, rank = dice.choice(["MaxPool", "AveragePool"]), dice.choice([1, 2, 3])
    kernel = dice.sizes(rank, 1, 3)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": dice.sizes(rank, 1, 3),
        "ceil_mode": dice.randint(0, 1),
        "dilations": dice.sizes(rank, 1, dice.choice([1, 2])),
    }
    if dice.random() < 0.5:
        attributes["pads"] = [dice.randint(0, size - 1) for size in kernel * 2]
    else:
        attributes["auto_pad"] = dice.choice(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    if kind == "AveragePool":
        attributes["count_include_pad"] = dice.randint(0, 1)
    return helper.make_node(kind, ["x"], ["y"], **attributes), dice.normal(1, 2, *dice.sizes(rank, 4, 9)), {}, 19


def conv(dice: Dice) -> Drawn:
    rank, groups = dice.choice([1, 2, 2, 3]), dice.choice([1, 2])
    kernel = dice.sizes(rank, 1, 3)
    attributes: dict[str, Any] = {
        "group": groups,
        "strides": dice.sizes(rank, 1, 2),
        "dilations": dice.sizes(rank, 1, 2),
    }
    if dice.random() < 0.5:
        attributes["pads"] = dice.sizes(2 * rank, 0, 2)
    else:
        attributes["auto_pad"] = dice.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    weights = {"w": dice.normal(6, 4 // groups, *kernel), "b": dice.normal(6)}
    x = dice.normal(1, 4, *dice.sizes(rank, 5, 8))
    return helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes), x, weights, 11


def conv_transpose(dice: Dice) -> Drawn:
    rank, groups = dice.choice([1, 2]), dice.choice([1, 2])
    strides, x = dice.sizes(rank, 1, 3), dice.normal(1, 4, *dice.sizes(rank, 2, 5))
    attributes: dict[str, Any] = {"group": groups, "strides": strides, "dilations": dice.sizes(rank, 1, 2)}
    match dice.randrange(3):
        case 0:
            attributes["pads"] = dice.sizes(2 * rank, 0, 1)
        case 1:
            attributes["auto_pad"] = dice.choice(["SAME_UPPER", "SAME_LOWER"])
        case _:
            attributes["output_shape"] = [n * s + dice.randint(0, 1) for n, s in zip(x.shape[2:], strides, strict=True)]
    if dice.random() < 0.3:
        attributes["output_padding"] = [dice.randint(0, stride - 1) for stride in strides]
    weights = {"w": dice.normal(4, 3, *dice.sizes(rank, 1, 4))}
    return helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes), x, weights, 11


def slices(dice: Dice) -> Drawn:
    rank = dice.randint(1, 4)
    axes = [axis - dice.choice([0, rank]) for axis in dice.sample(range(rank), dice.randint(1, rank))]
    given = {
        "s": np.array([dice.choice([-9, -3, -1, 0, 1, 2, 9]) for _ in axes]),
        "e": np.array([dice.choice([-(2**31), -9, -3, -1, 0, 1, 3, 9, 2**31 - 1]) for _ in axes]),
        "a": np.array(axes),
        "t": np.array([dice.choice([1, 1, 2, -1, -2, -3]) for _ in axes]),
    }
    return helper.make_node("Slice", ["x", *given], ["y"]), dice.normal(*dice.sizes(rank, 1, 6)), given, 13


def pad(dice: Dice) -> Drawn:
    rank, mode = dice.randint(1, 4), dice.choice(["constant", "reflect", "edge"])
    pads = dice.sizes(2 * rank, -1 if mode == "constant" else 0, 2)
    given = {"p": np.array(pads), "v": np.float32(dice.choice([0, 1.5]))}
    return helper.make_node("Pad", ["x", "p", "v"], ["y"], mode=mode), dice.normal(*dice.sizes(rank, 3, 6)), given, 13


def recurrent(dice: Dice) -> Drawn:
    kind, direction = dice.choice(["LSTM", "GRU", "RNN"]), dice.choice(["forward", "reverse", "bidirectional"])
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 1 + (direction == "bidirectional")
    steps, batch, inputs, hidden = dice.randint(1, 4), dice.randint(1, 3), 3, 2
    given = {"w": dice.normal(ways, gates * hidden, inputs), "r": dice.normal(ways, gates * hidden, hidden)}
    names = ["x", "w", "r", "", ""]
    if dice.random() < 0.7:
        names[3], given["b"] = "b", dice.normal(ways, 2 * gates * hidden)
    if dice.random() < 0.4:
        names[4], given["l"] = "l", np.array(dice.sizes(batch, 1, steps), np.int32)
    if dice.random() < 0.5:
        for state in ("h", "c")[: 1 + (kind == "LSTM")]:
            names.append(state)
            given[state] = dice.normal(ways, batch, hidden)
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if kind == "GRU":
        attributes["linear_before_reset"] = dice.randint(0, 1)
    outputs = ["y", "yh", "yc"] if kind == "LSTM" else ["y", "yh"]
    return helper.make_node(kind, names, outputs, **attributes), dice.normal(steps, batch, inputs), given, 14


def gemm(dice: Dice) -> Drawn:
    flips = {"transA": dice.randint(0, 1), "transB": dice.randint(0, 1)}
    given = {"w": dice.normal(5, 4) if flips["transB"] else dice.normal(4, 5)}
    if dice.random() < 0.8:
        given["c"] = dice.normal(*dice.choice([(5,), (1, 5), (3, 1), (3, 5), (1,), ()]))
    factors = {"alpha": dice.choice([1.0, 0.5]), "beta": dice.choice([1.0, 2.0])}
    x = dice.normal(4, 3) if flips["transA"] else dice.normal(3, 4)
    return helper.make_node("Gemm", ["x", *given], ["y"], **flips, **factors), x, given, 13


def softmax(dice: Dice) -> Drawn:
    node = helper.make_node(dice.choice(["Softmax", "LogSoftmax"]), ["x"], ["y"], axis=dice.randint(-3, 2))
    return node, dice.normal(2, 3, 4), {}, dice.choice([9, 11, 13])


def one_hot(dice: Dice) -> Drawn:
    given = {"d": np.array(5), "v": np.array([2.0, 3.0], np.float32)}
    node = helper.make_node("OneHot", ["x", *given], ["y"], axis=dice.randint(-3, 2))
    return node, np.array([[0, 4], [-1, 7]]), given, 13


DRAWERS: list[Callable[[Dice], Drawn]] = [
    resize, pool, conv, conv_transpose, slices, pad, recurrent, gemm, softmax, one_hot,
]  # fmt: skip


def as_model(node: NodeProto, x: Any, constants: dict[str, Any], opset: int, dynamic: bool) -> ModelProto:
    shape = [None if dynamic and axis == 0 else size for axis, size in enumerate(x.shape)]
    kind = TensorProto.INT64 if x.dtype == np.int64 else TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_empty_tensor_value_info(name) for name in node.output],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("cases", CASES)
@pytest.mark.parametrize("draw", DRAWERS)
def test_same_numbers_or_a_refusal(draw: Callable[[Dice], Drawn], cases: int) -> None:
    dice, same = Dice(7), 0
    for _ in range(cases):
        node, x, constants, opset = draw(dice)
        model = as_model(
            node, x, constants, opset, dynamic=dice.random() < 0.3 and draw not in (recurrent, slices, pad)
        )
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
            wanted = session.run(None, {"x": x})
        except Exception:  # the runtime refuses: nothing to compare with
            continue
        try:
            given = load(model)(torch.from_numpy(x))
        except OnnxError:
            continue
        same += 1
        for tensor, value in zip(given if isinstance(given, tuple) else (given,), wanted, strict=True):
            # float32 in another order of sums, of numbers around 1.
            torch.testing.assert_close(
                tensor.detach(), torch.from_numpy(value), rtol=1e-3, atol=1e-4, msg=lambda text, n=node: f"{n}\n{text}"
            )
    assert same > 0.5 * cases
