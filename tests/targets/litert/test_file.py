"""The .tflite writer: what is in the file, number by number, and what it refuses."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("ai_edge_litert", reason="pip install 'detent[litert]'")

from detent.errors import DeployError
from detent.ir import Encoding
from detent.rewrites import float_model
from detent.targets import BACKENDS
from detent.targets.base import Deployment
from detent.targets.formats import find_format
from detent.targets.litert.file import TfliteModel, model_to_tflite, network_of, origin_of, read_tflite, to_bytes
from detent.targets.litert.file.numbers import activation_encoding, bias_codes, weight_codes
from detent.targets.litert.file.padding import same_pads
from tests.targets.litert.nets import lite_net
from tests.twin.builder import Builder, Style
from tests.twin.nets import conv, image


def written(kind: str, **style: Any) -> TfliteModel:
    return read_tflite(model_to_tflite(lite_net(kind, Style(**style)).model))


def kinds(model: TfliteModel) -> list[str]:
    return [operator.kind for operator in model.operators]


def tiny(
    weight: np.ndarray, *, zero_point: int = 7, activation: str = "uint8", output_zero_point: int = 100
) -> onnx.ModelProto:
    """A 1x1 convolution of two channels, all numbers known."""
    arrays = {
        "s": np.array(0.5, np.float32),
        "z": np.array(zero_point, activation),
        "w_quantized": weight,
        "ws": np.array([0.25, 0.125], np.float32),
        "wz": np.zeros(2, weight.dtype),
        "b_quantized": np.array([10, -20], np.int32),
        "bs": np.array([0.125, 0.0625], np.float32),
        "bz": np.zeros(2, np.int32),
        "t": np.array(2.0, np.float32),
        "u": np.array(output_zero_point, activation),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["x_quantized"]),
        helper.make_node("DequantizeLinear", ["x_quantized", "s", "z"], ["x_dequantized"]),
        helper.make_node("DequantizeLinear", ["w_quantized", "ws", "wz"], ["w"], axis=0),
        helper.make_node("DequantizeLinear", ["b_quantized", "bs", "bz"], ["b"], axis=0),
        helper.make_node("Conv", ["x_dequantized", "w", "b"], ["y"], name="conv"),
        helper.make_node("QuantizeLinear", ["y", "t", "u"], ["y_quantized"]),
        helper.make_node("DequantizeLinear", ["y_quantized", "t", "u"], ["out"]),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2, 4, 5])] for name in ("x", "out")]
    held = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "tiny", *ends, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


WEIGHT = np.array([[1, -2], [3, -127]], np.int8).reshape(2, 2, 1, 1)


def test_every_number_of_a_convolution() -> None:
    model = read_tflite(model_to_tflite(tiny(WEIGHT)))
    assert kinds(model) == ["QUANTIZE", "CONV_2D", "DEQUANTIZE"]
    x, w, b = (model.tensors[index] for index in model.operators[1].inputs)
    y = model.tensors[model.operators[1].outputs[0]]
    assert (x.dtype, x.shape, x.signature) == ("int8", (1, 4, 5, 2), (-1, 4, 5, 2))
    assert x.encoding == Encoding(np.float32(0.5), np.int64(7 - 128), "int8")
    assert y.encoding == Encoding(np.float32(2.0), np.int64(100 - 128), "int8")
    assert w.encoding == Encoding(np.array([0.25, 0.125], np.float32), np.zeros(2, np.int64), "int8", 0)
    assert w.data is not None
    assert b.data is not None
    assert w.data.tolist() == [[[[1, -2]]], [[[3, -127]]]]
    assert (b.dtype, b.data.tolist()) == ("int32", [10, -20])
    assert b.encoding == Encoding(np.array([0.125, 0.0625], np.float32), np.zeros(2, np.int64), "int32", 0)


@pytest.mark.parametrize(("short", "version", "bias"), [(True, 8, "int32"), (False, 4, "int64")])
def test_every_number_on_16_bits(short: bool, version: int, bias: str) -> None:
    given = tiny(WEIGHT, zero_point=0, activation="int16", output_zero_point=0)
    model = read_tflite(model_to_tflite(given, short_sums=short))
    assert [(operator.kind, operator.version) for operator in model.operators] == [
        ("QUANTIZE", 2),
        ("CONV_2D", version),
        ("DEQUANTIZE", 3),
    ]
    assert model.operators[1].options["quantizedBiasType"] == (2 if short else 0)  # INT32 of the schema, or none
    x, w, b = (model.tensors[index] for index in model.operators[1].inputs)
    y = model.tensors[model.operators[1].outputs[0]]
    assert x.encoding == Encoding(np.float32(0.5), np.int64(0), "int16")
    assert y.encoding == Encoding(np.float32(2.0), np.int64(0), "int16")
    assert w.dtype == "int8"
    assert b.data is not None
    assert (b.dtype, b.data.tolist()) == (bias, [10, -20])


@pytest.mark.parametrize("backend", ["litert", "tflite_micro", "acl"])
def test_kernels_for_microcontrollers_have_biases_of_64_bits(backend: str) -> None:
    """Those of the reference arithmetic; the target names the format."""
    given = tiny(WEIGHT, zero_point=0, activation="int16", output_zero_point=0)
    made = Deployment(name="net", backend=BACKENDS[backend], model=given, tensors=())
    content = find_format(BACKENDS[backend].files[0]).write(made).files["model.tflite"]
    assert content == model_to_tflite(given, short_sums=BACKENDS[backend].arithmetic != "tflite_reference")


def test_a_convolution_over_signals_that_states_nothing_but_its_weight() -> None:
    """Neither pads nor strides: how many axes it slides over is in the shapes."""
    weight = numpy_helper.from_array(np.arange(24, dtype=np.float32).reshape(2, 3, 4), "w")
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", (1, 3, 9)), ("y", (1, 2, 6)))
    ]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")], "net", ports[:1], ports[1:], [weight]
    )
    model = read_tflite(model_to_tflite(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])))
    (operator,) = [operator for operator in model.operators if operator.kind == "CONV_2D"]
    x, w, _ = (model.tensors[index] for index in operator.inputs)
    assert (x.shape, w.shape, model.tensors[operator.outputs[0]].shape) == ((1, 1, 9, 3), (2, 1, 4, 3), (1, 1, 6, 2))
    options = operator.options
    assert (options["padding"], options["strideH"], options["strideW"]) == (1, 1, 1)
    assert (options["dilationHFactor"], options["dilationWFactor"]) == (1, 1)


def test_weights_of_four_bits_are_two_in_a_byte() -> None:
    narrow = Style(weight="int4", weight_range=7)
    content = model_to_tflite(lite_net("conv", narrow).model)
    model = read_tflite(content)
    (operator,) = [operator for operator in model.operators if operator.kind == "CONV_2D"]
    weight = model.tensors[operator.inputs[1]]
    assert (weight.dtype, operator.version) == ("int4", 7)
    assert weight.data is not None
    codes = weight.data.reshape(-1)
    assert (codes.min(), codes.max()) == (-7, 7)
    packed = bytes((int(low) & 15) | (int(high) & 15) << 4 for low, high in zip(codes[::2], codes[1::2], strict=True))
    assert packed in content
    assert weight.data.size == 2 * len(packed)


def test_which_weights_of_four_bits_are_held_in_eight() -> None:
    """Transposed convolutions have no such kernel, and depthwise ones on 16 bits read two weights for one."""
    held = {}
    for activation in ("int8", "int16"):
        for kind in ("conv", "depthwise", "conv_transpose", "gemm"):
            model = written(kind, activation=activation, symmetric=True, weight="int4", weight_range=7)
            operator = next(
                o for o in model.operators if model.tensors[o.inputs[1 if len(o.inputs) > 1 else 0]].data is not None
            )
            held[activation, kind] = model.tensors[operator.inputs[1]].dtype
    assert held == {
        ("int8", "conv"): "int4",
        ("int8", "depthwise"): "int4",
        ("int8", "conv_transpose"): "int8",
        ("int8", "gemm"): "int4",
        ("int16", "conv"): "int4",
        ("int16", "depthwise"): "int8",
        ("int16", "conv_transpose"): "int8",
        ("int16", "gemm"): "int4",
    }


@pytest.mark.parametrize("kind", ["residual", "add", "conv", "sigmoid_fixed"])
@pytest.mark.parametrize("weight", ["int8", "int4"])
def test_files_on_16_bits_are_read_and_written_alike(kind: str, weight: str) -> None:
    style = Style(activation="int16", symmetric=True, weight=weight, weight_range=7)
    content = model_to_tflite(lite_net(kind, style).model)
    assert to_bytes(read_tflite(content)) == content


def with_short_bias(model: TfliteModel) -> TfliteModel:
    """The biases as int32, which every operator says."""
    tensors = [
        replace(tensor, dtype="int32", data=tensor.data.astype(np.int32))
        if tensor.dtype == "int64" and tensor.data is not None
        else tensor
        for tensor in model.tensors
    ]
    operators = [replace(each, options={**each.options, "quantizedBiasType": 2}) for each in model.operators]
    return replace(model, tensors=tuple(tensors), operators=tuple(operators))


def test_a_bias_is_short_where_sums_are() -> None:
    """1,600 weights of about 64, times 32768, may have more than 32 bits; only CONV_2D has a choice."""
    dtypes = {}
    for kind in ("conv", "conv_grouped", "conv_5x5_deep", "depthwise", "conv_transpose", "gemm"):
        model = written(kind, activation="int16", symmetric=True)
        dtypes[kind] = {t.dtype for t in model.tensors if t.data is not None and t.data.ndim == 1 and t.encoding}
    assert dtypes == {
        "conv": {"int32"},
        "conv_grouped": {"int32"},
        "conv_5x5_deep": {"int64"},
        "depthwise": {"int64"},
        "conv_transpose": {"int64"},
        "gemm": {"int64"},
    }


def test_other_kernels_for_16_bits_are_refused() -> None:
    """Sums on powers of two, which old files have; biases of 32 bits; scales near a coarse kernel."""
    wide = Style(activation="int16", symmetric=True, scales="pot")
    model = read_tflite(model_to_tflite(lite_net("add", wide).model))
    old = replace(
        model, operators=tuple(replace(o, options={**o.options, "potScaleInt16": True}) for o in model.operators)
    )
    network_of(model)
    with pytest.raises(DeployError, match="powers of two"):
        network_of(old)
    for kind in ("conv_5x5_deep", "gemm", "depthwise"):
        with pytest.raises(DeployError, match="32 bits"):
            network_of(with_short_bias(read_tflite(model_to_tflite(lite_net(kind, wide).model))))
    model = read_tflite(model_to_tflite(lite_net("sigmoid_fixed", wide).model))
    coarse = Encoding(np.float32(2**-12), np.int64(0), "int16")
    first = next(o.inputs[0] for o in model.operators if o.kind == "LOGISTIC")
    tensors = (*model.tensors[:first], replace(model.tensors[first], encoding=coarse), *model.tensors[first + 1 :])
    with pytest.raises(DeployError, match="on this grid"):
        network_of(replace(model, tensors=tensors))


def test_names_and_ends() -> None:
    model = read_tflite(model_to_tflite(tiny(WEIGHT)))
    assert [model.tensors[index].name for index in (*model.inputs, *model.outputs)] == ["x", "out"]
    assert {model.tensors[index].dtype for index in (*model.inputs, *model.outputs)} == {"float32"}
    assert len({tensor.name for tensor in model.tensors}) == len(model.tensors)
    origin = origin_of(model)
    assert (origin.inputs, origin.outputs, origin.operations) == (("x",), ("out",), ((), ("conv",), ()))
    assert sorted(origin.tensors.values()) == [("out", True), ("x", True), ("x", True), ("y", True)]


@pytest.mark.parametrize("kind", ["residual", "moves", "conv_1d", "resize_linear", "conv_transpose", "layernorm"])
def test_reading_and_writing_again_gives_the_same_bytes(kind: str) -> None:
    content = model_to_tflite(lite_net(kind, Style()).model)
    assert to_bytes(read_tflite(content)) == content
    assert model_to_tflite(lite_net(kind, Style()).model) == content


def test_constant_data_is_aligned() -> None:
    content = model_to_tflite(lite_net("conv", Style()).model)
    weight = next(t.data for t in read_tflite(content).tensors if t.data is not None and t.data.ndim == 4)
    assert content.index(weight.tobytes()) % 16 == 0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("conv_relu", ["QUANTIZE", "CONV_2D", "DEQUANTIZE"]),
        ("conv_clipped", ["QUANTIZE", "CONV_2D", "MINIMUM", "DEQUANTIZE"]),
        ("conv_relu6_true", ["QUANTIZE", "CONV_2D", "DEQUANTIZE"]),
        ("conv_strided", ["QUANTIZE", "PAD", "CONV_2D", "DEQUANTIZE"]),
        ("conv_transpose", ["QUANTIZE", "TRANSPOSE_CONV", "STRIDED_SLICE", "DEQUANTIZE"]),
        ("matmul", ["QUANTIZE", "FULLY_CONNECTED", "DEQUANTIZE"]),
        ("maxpool", ["QUANTIZE", "PADV2", "MAX_POOL_2D", "DEQUANTIZE"]),
        ("flatten", ["QUANTIZE", "CONV_2D", "RESHAPE", "FULLY_CONNECTED", "DEQUANTIZE"]),
        ("moves", ["QUANTIZE", "STRIDED_SLICE", "RESHAPE", "FULLY_CONNECTED", "DEQUANTIZE"]),
        ("sigmoid_fixed", ["QUANTIZE", "LOGISTIC", "DEQUANTIZE"]),
        ("sigmoid", ["QUANTIZE", "DEQUANTIZE", "LOGISTIC", "QUANTIZE", "DEQUANTIZE"]),
        ("avgpool_same", ["QUANTIZE", "AVERAGE_POOL_2D", "DEQUANTIZE"]),
        ("avgpool", ["QUANTIZE", "DEQUANTIZE", "AVERAGE_POOL_2D", "QUANTIZE", "DEQUANTIZE"]),
        ("float_add", ["QUANTIZE", "DEQUANTIZE", "CONV_2D", "ADD", "QUANTIZE", "DEQUANTIZE"]),
    ],
)
def test_operators(kind: str, expected: list[str]) -> None:
    assert kinds(written(kind, seed=5)) == expected


def test_same_padding_is_found_where_it_is_the_same() -> None:
    paddings = [(o.kind, o.options["padding"]) for o in written("conv").operators if o.kind == "CONV_2D"]
    assert paddings == [("CONV_2D", 0)]
    b = Builder(Style())
    b.output(conv(b, image(b, size=9), 8, kernel=3, stride=2))  # 9 rows need one row on each side, as "same" has it
    assert kinds(read_tflite(model_to_tflite(b.net().model))) == ["QUANTIZE", "CONV_2D", "DEQUANTIZE"]


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 4), st.integers(1, 3))
def test_same_pads_give_one_output_for_every_stride(size: int, kernel: int, stride: int, dilation: int) -> None:
    ((before, after),) = same_pads((size,), (kernel,), (stride,), (dilation,))
    assert 0 <= after - before <= 1
    reach = (kernel - 1) * dilation + 1
    assert (size + before + after - reach) // stride + 1 >= -(-size // stride) or before + after == 0


def test_the_batch_is_free_unless_an_operator_holds_it() -> None:
    assert written("conv").tensors[written("conv").inputs[0]].signature[0] == -1
    held = written("conv_transpose")
    assert all(-1 not in tensor.signature for tensor in held.tensors)


def test_a_float_network_holds_no_integers() -> None:
    model = read_tflite(model_to_tflite(float_model(lite_net("residual", Style()).model)))
    assert {t.dtype for t in model.tensors if t.data is None} == {"float32"}
    assert "QUANTIZE" not in kinds(model)
    assert model.tensors[model.operators[0].inputs[1]].dtype == "float32"


def test_uint8_is_shifted_exactly() -> None:
    grid = Encoding(np.float32(0.1), np.int64(3), "uint8")
    shifted = activation_encoding(grid, "x")
    codes = np.arange(256)
    assert (grid.dequantize(codes) == shifted.dequantize(codes - 128)).all()


@pytest.mark.parametrize(
    "grid",
    [
        Encoding(np.float32(1), np.int64(5), "int16"),
        Encoding(np.float32(1), np.int64(0), "uint16"),
        Encoding(np.float32(1), np.int64(0), "uint4"),
        Encoding(np.float32(1), np.int64(0), "int8", qmin=-127, qmax=127),
        Encoding(np.ones(2, np.float32), np.zeros(2, np.int64), "int8", 1),
    ],
    ids=["int16-affine", "uint16", "uint4", "narrow", "per-channel"],
)
def test_activations_that_the_format_cannot_hold(grid: Encoding) -> None:
    with pytest.raises(DeployError, match="'x'"):
        activation_encoding(grid, "x")


def test_weights_that_the_format_cannot_hold() -> None:
    scale, zero = np.float32(1), np.int64(0)
    faults = {
        "a zero point": (np.array([1]), Encoding(scale, np.int64(1), "int8")),
        "the code -128": (np.array([-128]), Encoding(scale, zero, "int8")),
        "groups of 2": (np.ones((2, 4)), Encoding(np.ones((2, 2), np.float32), np.zeros((2, 2)), "int4", 1, 2)),
        "int16 codes": (np.array([1]), Encoding(scale, zero, "int16")),
    }
    for fault, (codes, encoding) in faults.items():
        with pytest.raises(DeployError, match=fault):
            weight_codes(codes, encoding, "w")


def test_narrow_and_unsigned_weights_are_held_in_int8() -> None:
    codes, held = weight_codes(np.array([-8, 7]), Encoding(np.float32(1), np.int64(0), "int4"), "w")
    assert (codes.dtype, codes.tolist(), held.dtype) == (np.int8, [-8, 7], "int8")
    codes, held = weight_codes(np.array([-8, 7]), Encoding(np.float32(1), np.int64(0), "int4"), "w", int4=True)
    assert (codes.dtype, codes.tolist(), held.dtype) == (np.int8, [-8, 7], "int4")
    codes, held = weight_codes(np.array([1, 255]), Encoding(np.float32(1), np.int64(128), "uint8"), "w")
    assert (codes.tolist(), int(held.zero_point)) == ([-127, 127], 0)


def test_a_float_bias_goes_on_the_accumulators_grid() -> None:
    assert bias_codes(np.array([0.26, -1.0]), np.array([0.1, 0.5], np.float32), "b").tolist() == [3, -2]
    with pytest.raises(DeployError, match="32 bits"):
        bias_codes(np.array([1e9]), np.array([1e-3], np.float32), "b")
    assert bias_codes(np.array([1e9]), np.array([0.5**10], np.float32), "b", wide=True).tolist() == [1024 * 10**9]


def test_the_code_minus_128_is_refused_in_a_network() -> None:
    with pytest.raises(DeployError, match="the weight 'w'"):
        model_to_tflite(tiny(np.where(WEIGHT == -127, -128, WEIGHT).astype(np.int8)))


@pytest.mark.parametrize("kind", ["conv_3d", "avgpool_padded"])
def test_operations_that_the_format_does_not_have_are_named(kind: str) -> None:
    with pytest.raises(DeployError, match=r"write (Conv|AveragePool) '"):
        model_to_tflite(lite_net(kind, Style()).model)


def test_an_unknown_operation_is_named() -> None:
    graph = helper.make_graph(
        [helper.make_node("Erf", ["x"], ["y"], name="error_function")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    with pytest.raises(DeployError, match="Erf 'error_function'"):
        model_to_tflite(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def test_without_litert_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert.schema_py_generated", None)
    with pytest.raises(DeployError, match=r"detent\[litert\]"):
        model_to_tflite(tiny(WEIGHT))


def test_another_file_is_refused() -> None:
    with pytest.raises(DeployError, match="begins with"):
        read_tflite(b"\x08\x00\x00\x00ONNX")
