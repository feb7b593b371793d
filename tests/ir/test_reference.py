"""Reference kernels against ONNX Runtime without optimizations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from detent.errors import DeployError
from detent.ir.reference import REFERENCE, KernelCall

Array = npt.NDArray[Any]

random = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return random.normal(size=shape).astype(np.float32) * 3


IMAGE = floats(2, 6, 9, 8)
ROWS = floats(4, 5, 12)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def reals(*values: float) -> Array:
    return np.array(values, np.float32)


MOVES: dict[str, tuple[str, list[Array | None], dict[str, Any]]] = {
    "reshape": ("Reshape", [IMAGE, ints(0, -1, 4)], {}),
    "flatten": ("Flatten", [IMAGE], {"axis": 2}),
    "flatten-0": ("Flatten", [IMAGE], {"axis": 0}),
    "transpose": ("Transpose", [IMAGE], {"perm": [0, 2, 3, 1]}),
    "transpose-plain": ("Transpose", [ROWS], {}),
    "slice": ("Slice", [IMAGE, ints(1, -5), ints(100, -1), ints(2, 3), ints(2, 1)], {}),
    "slice-back": ("Slice", [IMAGE, ints(-1), ints(-100), ints(2), ints(-2)], {}),
    "slice-all-axes": ("Slice", [ROWS, ints(0, 1, 2), ints(4, 4, 9)], {}),
    "split": ("Split", [IMAGE, ints(1, 3, 2)], {"axis": 1, "outputs": 3}),
    "split-uneven": ("Split", [ROWS], {"axis": 1, "num_outputs": 2, "outputs": 2}),
    "squeeze": ("Squeeze", [floats(1, 3, 1, 2), ints(0, -2)], {}),
    "squeeze-all": ("Squeeze", [floats(1, 3, 1, 2)], {}),
    "unsqueeze": ("Unsqueeze", [ROWS, ints(0, -1)], {}),
    "gather": ("Gather", [ROWS, np.array([[0, -1], [2, 2]])], {"axis": 1}),
    "expand": ("Expand", [floats(3, 1, 4), ints(2, 1, 5, 1)], {}),
    "tile": ("Tile", [ROWS, ints(1, 2, 1)], {}),
    "concat": ("Concat", [ROWS, floats(4, 2, 12)], {"axis": -2}),
    "pad": ("Pad", [IMAGE, ints(0, 1, 2, 0, 0, 0, 1, 3), reals(1.5).reshape(())], {}),
    "pad-axes": ("Pad", [IMAGE, ints(1, 2, 0, 1), None, ints(2, -1)], {}),
    "pad-negative": ("Pad", [IMAGE, ints(0, 0, -1, 0, 0, 0, 2, -2)], {}),
    "pad-reflect": ("Pad", [IMAGE, ints(0, 0, 2, 1, 0, 0, 1, 3)], {"mode": "reflect"}),
    "pad-edge": ("Pad", [IMAGE, ints(0, 0, 2, 1, 0, 0, 1, 3)], {"mode": "edge"}),
    "pad-wrap": ("Pad", [IMAGE, ints(0, 0, 2, 1, 0, 0, 1, 3)], {"mode": "wrap"}),
    "depth-to-space": ("DepthToSpace", [floats(2, 8, 3, 5)], {"blocksize": 2}),
    "depth-to-space-crd": ("DepthToSpace", [floats(2, 8, 3, 5)], {"blocksize": 2, "mode": "CRD"}),
    "space-to-depth": ("SpaceToDepth", [floats(2, 2, 4, 6)], {"blocksize": 2}),
    "resize-nearest": ("Resize", [IMAGE, None, reals(1, 1, 2, 1.5)], {"coordinate_transformation_mode": "asymmetric"}),
    "resize-nearest-half": ("Resize", [IMAGE, None, reals(1, 1, 0.5, 2)], {"nearest_mode": "round_prefer_ceil"}),
    "resize-nearest-floor": ("Resize", [IMAGE, None, None, ints(2, 6, 13, 5)], {"nearest_mode": "floor"}),
    "resize-nearest-corners": (
        "Resize",
        [IMAGE, None, None, ints(2, 6, 17, 15)],
        {"coordinate_transformation_mode": "align_corners", "nearest_mode": "ceil"},
    ),
    "maxpool": ("MaxPool", [IMAGE], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    "maxpool-ceil": ("MaxPool", [IMAGE], {"kernel_shape": [2, 3], "strides": [2, 2], "ceil_mode": 1}),
    "maxpool-dilated": ("MaxPool", [IMAGE], {"kernel_shape": [2, 2], "dilations": [2, 3]}),
    "maxpool-same": ("MaxPool", [IMAGE], {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    "global-maxpool": ("GlobalMaxPool", [IMAGE], {}),
    "shape": ("Shape", [IMAGE], {}),
    "where": ("Where", [ROWS > 0, ROWS, -ROWS], {}),
    "and": ("And", [ROWS > 0, ROWS > 1], {}),
    "or": ("Or", [ROWS > 0, ROWS < -1], {}),
    "not": ("Not", [ROWS > 0], {}),
    "greater": ("Greater", [np.rint(ROWS), np.rint(ROWS[::-1])], {}),
    "greater-or-equal": ("GreaterOrEqual", [np.rint(ROWS), np.rint(ROWS[::-1])], {}),
    "less": ("Less", [np.rint(ROWS), np.rint(ROWS[::-1])], {}),
    "less-or-equal": ("LessOrEqual", [np.rint(ROWS), np.rint(ROWS[::-1])], {}),
    "sign": ("Sign", [np.rint(ROWS)], {}),
    "range": ("Range", [ints(3).reshape(()), ints(20).reshape(()), ints(4).reshape(())], {}),
    "constant-of-shape": ("ConstantOfShape", [ints(2, 3)], {}),
    "gather-elements": ("GatherElements", [ROWS, ints(*range(-4, 4)).reshape(1, 1, 8) % 12], {"axis": 2}),
    "gather-elements-from-the-end": ("GatherElements", [ROWS, ints(-1, 0).reshape(1, 2, 1)], {"axis": 1}),
    "argmax": ("ArgMax", [ROWS], {"axis": 1, "keepdims": 0}),
    "argmin": ("ArgMin", [ROWS], {"axis": -1}),
    "topk": ("TopK", [ROWS, ints(3)], {"axis": 1, "outputs": 2}),
    "pad-many": ("Pad", [ROWS, ints(1, 0, 0, 0, 2, 0)], {"mode": "edge"}),
    "dropout-mask": ("Dropout", [ROWS], {"outputs": 2}),
}

WEIGHT, BIAS = floats(4, 3, 3, 2), floats(4)
NORM = [floats(6) for _ in range(3)] + [np.abs(floats(6)) + 0.1]
COMPUTED: dict[str, tuple[str, list[Array | None], dict[str, Any]]] = {
    "conv": ("Conv", [IMAGE, WEIGHT, BIAS], {"group": 2, "pads": [1, 0, 1, 0], "strides": [2, 1]}),
    "conv-uneven": ("Conv", [IMAGE, WEIGHT], {"group": 2, "pads": [0, 1, 2, 0], "dilations": [2, 1]}),
    "conv-same": ("Conv", [IMAGE, WEIGHT], {"group": 2, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "conv-transpose": (
        "ConvTranspose",
        [IMAGE, floats(6, 3, 3, 2), floats(3)],
        {"strides": [2, 2], "pads": [1, 0, 1, 0], "output_padding": [1, 0]},
    ),
    "conv-transpose-uneven": ("ConvTranspose", [IMAGE, floats(6, 3, 3, 2)], {"strides": [2, 2], "pads": [1, 0, 0, 1]}),
    "gemm": ("Gemm", [floats(5, 3), floats(4, 5), floats(4)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    "matmul": ("MatMul", [floats(2, 1, 3, 4), floats(5, 4, 2)], {}),
    "add": ("Add", [IMAGE, floats(6, 1, 1)], {}),
    "sub": ("Sub", [IMAGE, floats(8)], {}),
    "mul": ("Mul", [IMAGE, reals(2.5)], {}),
    "div": ("Div", [IMAGE, np.abs(floats(8)) + 0.5], {}),
    "pow": ("Pow", [np.abs(ROWS), reals(1.7)], {}),
    "max": ("Max", [ROWS, floats(12), floats(5, 1)], {}),
    "min": ("Min", [ROWS, floats(12)], {}),
    "sum": ("Sum", [ROWS, floats(12), floats(5, 1)], {}),
    "mean": ("Mean", [ROWS, floats(12), floats(5, 1)], {}),
    "clip": ("Clip", [ROWS, reals(-1).reshape(()), reals(2).reshape(())], {}),
    "clip-above": ("Clip", [ROWS, None, reals(2).reshape(())], {}),
    "hard-sigmoid": ("HardSigmoid", [ROWS], {"alpha": 0.3, "beta": 0.4}),
    "leaky": ("LeakyRelu", [ROWS], {"alpha": 0.3}),
    "elu": ("Elu", [ROWS], {"alpha": 0.7}),
    "prelu": ("PRelu", [IMAGE, floats(6, 1, 1)], {}),
    "gelu": ("Gelu", [ROWS], {}),
    "gelu-tanh": ("Gelu", [ROWS], {"approximate": "tanh"}),
    "softmax": ("Softmax", [IMAGE], {"axis": 1}),
    "log-softmax": ("LogSoftmax", [ROWS], {}),
    "avgpool": ("AveragePool", [IMAGE], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    "avgpool-counted": (
        "AveragePool",
        [IMAGE],
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "count_include_pad": 1},
    ),
    "avgpool-ceil": ("AveragePool", [IMAGE], {"kernel_shape": [2, 3], "strides": [2, 2], "ceil_mode": 1}),
    "global-avgpool": ("GlobalAveragePool", [IMAGE], {}),
    "reduce-mean": ("ReduceMean", [IMAGE, ints(2, -1)], {"keepdims": 0}),
    "reduce-sum-all": ("ReduceSum", [ROWS], {}),
    "reduce-max": ("ReduceMax", [ROWS, ints(1)], {}),
    "reduce-min": ("ReduceMin", [ROWS, ints(1)], {}),
    "layer-norm": ("LayerNormalization", [ROWS, floats(12), floats(12)], {"axis": -1}),
    "layer-norm-two-axes": ("LayerNormalization", [ROWS, floats(5, 12)], {"axis": 1, "epsilon": 0.1}),
    "batch-norm": ("BatchNormalization", [IMAGE, *NORM], {"epsilon": 0.01}),
    "instance-norm": ("InstanceNormalization", [IMAGE, *NORM[:2]], {}),
    "group-norm": ("GroupNormalization", [IMAGE, *NORM[:2]], {"num_groups": 3}),
    "resize-linear": ("Resize", [IMAGE, None, reals(1, 1, 2, 1.5)], {"mode": "linear"}),
    "resize-linear-corners": (
        "Resize",
        [IMAGE, None, None, ints(2, 6, 13, 5)],
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    "resize-cubic": ("Resize", [IMAGE, None, reals(1, 1, 2, 1.5)], {"mode": "cubic"}),
    "resize-cubic-smaller": (
        "Resize",
        [IMAGE, None, None, ints(2, 6, 5, 11)],
        {"mode": "cubic", "cubic_coeff_a": -0.5},
    ),
    "resize-cubic-corners": (
        "Resize",
        [IMAGE, None, None, ints(2, 6, 13, 5)],
        {"mode": "cubic", "coordinate_transformation_mode": "align_corners"},
    ),
    "resize-cubic-inside": ("Resize", [IMAGE, None, reals(1, 1, 2, 3)], {"mode": "cubic", "exclude_outside": 1}),
    "cast": ("Cast", [ROWS], {"to": TensorProto.INT64}),
    "cast-to-16-bits": ("Cast", [ROWS], {"to": TensorProto.FLOAT16}),
    "cast-to-int8": ("Cast", [ROWS], {"to": TensorProto.INT8}),
    **{
        kind.lower(): (kind, [ROWS], {})
        for kind in ("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Neg", "Relu", "Round", "Sigmoid", "Sin", "Tanh")
    },
    "swish": ("Swish", [ROWS], {"alpha": 1.5}),
    "hardshrink": ("Shrink", [ROWS], {"lambd": 0.25}),
    "softshrink": ("Shrink", [ROWS], {"lambd": 0.25, "bias": 0.25}),
    **{kind.lower(): (kind, [ROWS], {}) for kind in ("HardSwish", "Mish", "Selu", "Softplus", "Softsign", "Identity")},
    **{kind.lower(): (kind, [np.abs(ROWS) + 0.1], {}) for kind in ("Log", "Sqrt", "Reciprocal")},
    "dropout": ("Dropout", [ROWS], {}),
    "equal": ("Equal", [np.rint(ROWS), np.rint(ROWS[::-1])], {}),
    "celu": ("Celu", [ROWS], {"alpha": 1.5}),
    "cumsum": ("CumSum", [ROWS, ints(1).reshape(())], {"exclusive": 1, "reverse": 1}),
    "einsum": ("Einsum", [ROWS, floats(12, 2)], {"equation": "abc,cd->abd"}),
    "col2im": ("Col2Im", [floats(2, 12, 12), ints(5, 4), ints(2, 2)], {"strides": [1, 2], "pads": [0, 1, 0, 1]}),
    **{
        kind.lower(): (kind, [np.abs(ROWS) + 0.1, ints(1, 2)], {"keepdims": 0})
        for kind in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
    },
    **{
        kind.lower(): (kind, [ROWS, floats(1, 3 * gates, 12), floats(1, 3 * gates, 3)], {"hidden_size": 3})
        for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
    },
}


def computed(
    kind: str, inputs: list[Array | None], attributes: dict[str, Any], *, constant: bool = False
) -> list[Array]:
    """By the reference kernel; with `constant` it is told all inputs but the first ahead."""
    attributes = dict(attributes)
    outputs = attributes.pop("outputs", 1)
    values = [None if x is None else torch.from_numpy(np.ascontiguousarray(x).reshape(x.shape)) for x in inputs]
    held = [None, *inputs[1:]] if constant else ()
    result = REFERENCE[kind](KernelCall(kind, values, attributes, held, outputs, "op"))
    return [each.numpy() for each in ((result,) if isinstance(result, torch.Tensor) else result)]


def of_runtime(kind: str, inputs: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    attributes = dict(attributes)
    outputs = [f"y{index}" for index in range(attributes.pop("outputs", 1))]
    names = ["" if x is None else f"x{index}" for index, x in enumerate(inputs)]
    held = [numpy_helper.from_array(np.array(x), name) for name, x in zip(names, inputs, strict=True) if x is not None]
    node = helper.make_node(kind, names, outputs, **attributes)
    graph = helper.make_graph([node], kind, [], [helper.make_empty_tensor_value_info(name) for name in outputs], held)
    opset = 24 if kind == "Swish" else 21  # which is new
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(net.SerializeToString(), options, ["CPUExecutionProvider"])
    return [np.asarray(each) for each in session.run(None, {})]


@pytest.mark.parametrize("name", MOVES)
def test_moves_are_equal(name: str) -> None:
    for own, runtime in zip(computed(*MOVES[name]), of_runtime(*MOVES[name]), strict=True):
        assert np.array_equal(own, runtime)


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_values_are_within_a_few_units_in_the_last_place(name: str) -> None:
    """Sums of up to 300 products of size 10 and polynomials for exponentials: 1e-5 of the value, or of 10."""
    for own, runtime in zip(computed(*COMPUTED[name]), of_runtime(*COMPUTED[name]), strict=True):
        assert own.shape == runtime.shape
        assert own.dtype == runtime.dtype
        np.testing.assert_allclose(own, runtime, rtol=1e-5, atol=1e-4 if name.startswith("conv") else 1e-5)


def test_every_operator_is_tested() -> None:
    assert {kind for kind, _, _ in (*MOVES.values(), *COMPUTED.values())} == REFERENCE.keys()


@pytest.mark.parametrize("name", MOVES | COMPUTED)
def test_inputs_that_are_constant_say_the_same(name: str) -> None:
    case = (MOVES | COMPUTED)[name]
    for ahead, computed_then in zip(computed(*case, constant=True), computed(*case), strict=True):
        assert np.array_equal(ahead, computed_then)


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "more"),
    [
        ("Squeeze", [floats(1, 3, 1)], {"axes": [0]}, [ints(0)]),
        ("Unsqueeze", [ROWS], {"axes": [0, 2]}, [ints(0, 2)]),
        ("Split", [ROWS], {"split": [1, 3], "outputs": 2}, [ints(1, 3)]),
        ("Slice", [ROWS], {"starts": [1], "ends": [3], "axes": [1]}, [ints(1), ints(3), ints(1)]),
        ("Pad", [ROWS], {"pads": [0, 0, 1, 0, 0, 2], "value": 0.5}, [ints(0, 0, 1, 0, 0, 2), reals(0.5)]),
        ("Clip", [ROWS], {"min": -1.0, "max": 0.5}, [reals(-1.0), reals(0.5)]),
        ("ReduceMax", [ROWS], {"axes": [1]}, [ints(1)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_older_opsets_have_as_attributes(
    kind: str, inputs: list[Array | None], attributes: dict[str, Any], more: list[Array | None]
) -> None:
    count = {"outputs": attributes["outputs"]} if "outputs" in attributes else {}
    for older, newer in zip(computed(kind, inputs, attributes), computed(kind, inputs + more, count), strict=True):
        assert np.array_equal(older, newer)


def test_no_axes_are_all_axes_or_none() -> None:
    assert computed("ReduceSum", [reals(1, 2), ints()], {"keepdims": 0})[0] == 3
    assert computed("ReduceSum", [reals(1, 2), ints()], {"noop_with_empty_axes": 1})[0].tolist() == [1, 2]


def test_bounds_in_the_wrong_order_give_the_upper_one() -> None:
    assert computed("Clip", [reals(-3, 0, 3), reals(2), reals(1)], {})[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "reason"),
    [
        ("Resize", [IMAGE, None, reals(1, 1, 2, 2)], {"mode": "cubic", "antialias": 1}, "antialias"),
        ("Cast", [ROWS], {"to": TensorProto.BFLOAT16}, f"ONNX type {TensorProto.BFLOAT16}"),
        ("MaxPool", [IMAGE], {"kernel_shape": [2, 2], "outputs": 2}, "it gives indices"),
        ("ConvTranspose", [IMAGE, floats(6, 3, 3, 2)], {"auto_pad": "SAME_UPPER"}, "auto_pad"),
        ("ArgMax", [ROWS], {"select_last_index": 1}, "the last of equal values"),
        ("Reshape", [ROWS], {}, "no input 1"),
    ],
)
def test_what_is_not_computed_is_refused(
    kind: str, inputs: list[Array | None], attributes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DeployError, match=f"(?s)compute {kind} 'op'.*{reason}"):
        computed(kind, inputs, attributes)
