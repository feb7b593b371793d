"""The ncnn writer: which layers a network becomes, what they hold, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from detent.errors import DeployError
from detent.ir import Encoding, Network, Op, Operand, Output, Port, read_qdq
from detent.rewrites import float_model
from detent.targets.base import Deployment
from detent.targets.ncnn.file import FORMAT, TABLE_FORMAT, NcnnModel, ncnn_model, read_ncnn, read_ncnn_table
from detent.targets.ncnn.file.simplify import without_repetition
from detent.targets.ncnn.spec import NCNN
from tests.targets.ncnn.nets import followed, ncnn_form
from tests.twin.nets import Builder, Net, Style, conv, small_net

INT8 = Style(activation="int8", symmetric=True, batch=1)


def deployment(model: onnx.ModelProto) -> Deployment:
    return Deployment(name="net", backend=NCNN, model=model, tensors=())


def lines(model: NcnnModel) -> list[str]:
    return [f"{layer.type} {' '.join(layer.inputs)} -> {' '.join(layer.outputs)}" for layer in model.layers]


def float_net(kind: str, *shape: int, constants: tuple[Any, ...] = (), **attributes: Any) -> onnx.ModelProto:
    names = [f"k{index}" for index in range(len(constants))]
    node = helper.make_node(kind, ["x", *names], ["y"], name="op", **attributes)
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in zip(names, constants, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_a_note_says_what_depthwise_layers_need_to_be_exact() -> None:
    for kind, noted in (("depthwise", 1), ("conv", 0)):
        made = deployment(ncnn_form(small_net(kind, INT8)).model)
        FORMAT.write(made)
        assert sum("use_packing_layout" in note for note in FORMAT.write(made).notes) == noted


def test_a_residual_block_becomes_integer_layers_with_floats_between() -> None:
    model = ncnn_model(ncnn_form(small_net("residual", INT8)).model)
    assert lines(model) == [
        "Input  -> x",
        "Convolution x -> relu2",
        "Split relu2 -> relu2:0 relu2:1",
        "Convolution relu2:0 -> conv3",
        "BinaryOp conv3 relu2:1 -> add4",
        "ReLU add4 -> relu5",
        "ConvolutionDepthWise relu5 -> relu7",
        "Pooling relu7 -> globalaveragepool8:raw",
        "Reshape globalaveragepool8:raw -> globalaveragepool8",
        "Reshape globalaveragepool8 -> flatten9",
        "InnerProduct flatten9 -> gemm10",
    ]
    assert [layer.name for layer in model.layers if layer.int8] == [
        "conv1.Conv",
        "conv3.Conv",
        "conv6.Conv",
        "gemm10.Gemm",
    ]


def test_an_integer_layer_holds_codes_and_reciprocals_of_scales() -> None:
    model = followed("conv", INT8).model
    op = read_qdq(model).ops[0]
    layer = ncnn_model(model).layer(op.name)
    data, weight = op.inputs[0], op.inputs[1]
    assert data is not None
    assert weight is not None
    assert data.encoding is not None
    assert weight.encoding is not None
    assert layer.weights[0].tolist() == read_qdq(model).constants[weight.tensor].ravel().tolist()
    assert layer.weights[2].tolist() == (np.float32(1) / weight.encoding.scale).tolist()
    assert layer.weights[3].tolist() == [np.float32(1) / data.encoding.scale]


def test_a_convolution_that_only_convolutions_read_gives_codes() -> None:
    first, second = (layer for layer in ncnn_model(followed("conv_relu", INT8).model).layers if layer.int8)
    assert first.params[8] == 102
    assert first.weights[4] == second.weights[3]
    assert second.params[8] == 2


def test_a_convolution_that_somebody_reads_in_float_gives_floats() -> None:
    first = ncnn_model(followed("float_add", INT8).model).layers[2]
    assert first.type == "Convolution"
    assert first.params[8] == 2


def test_groups_with_several_scales_become_convolutions_of_their_own() -> None:
    model = ncnn_model(followed("conv_grouped", INT8).model)
    types = [layer.type for layer in model.layers]
    assert types == ["Input", "Slice", *["Convolution"] * 4, "Concat", "Convolution"]
    one_scale = Style(activation="int8", symmetric=True, batch=1, per_channel=False)
    together = [layer.type for layer in ncnn_model(followed("conv_grouped", one_scale).model).layers]
    assert together == ["Input", "ConvolutionDepthWise", "Convolution"]


def test_files_round_trip_and_the_table_says_what_the_layers_hold() -> None:
    made = deployment(followed("depthwise_relu", INT8).model)
    files = FORMAT.write(made).files
    model = read_ncnn(files)
    assert model.param() == files["model.ncnn.param"]
    assert model.bin() == files["model.ncnn.bin"]
    entries = read_ncnn_table(TABLE_FORMAT.write(made).files["model.table"])
    assert [entry.layer for entry in entries] == [layer.name for layer in model.layers if layer.int8]
    assert entries[0].weight.tolist() == model.layer(entries[0].layer).weights[2].tolist()


def test_a_float_network_has_no_integer_layer() -> None:
    net = ncnn_form(small_net("residual", INT8))
    layers = ncnn_model(float_model(net.model)).layers
    assert not any(layer.int8 for layer in layers)
    assert [layer.type for layer in layers if layer.weights] == [
        "Convolution",
        "Convolution",
        "ConvolutionDepthWise",
        "InnerProduct",
    ]


def test_an_output_that_is_read_too_keeps_its_name() -> None:
    builder = Builder(INT8)
    middle = conv(builder, builder.input("x", 1, 3, 8, 8), 4, then="Relu")
    builder.output(middle)
    builder.output(conv(builder, middle, 2, 1))
    model = ncnn_model(ncnn_form(builder.net()).model)
    assert "Split relu2:whole -> relu2:0 relu2" in lines(model)


def grid(scale: float, least: int) -> Encoding:
    return Encoding(np.array(scale, np.float32), np.array(0), "int8", qmin=least)


@pytest.mark.parametrize("kind", ["Flatten", "Gather", "DepthToSpace", "Tile"])
def test_a_grid_before_a_move_goes_if_all_behind_it_have_it_again(kind: str) -> None:
    def graph(*behind: Encoding | None) -> Network:
        ops = [Op(kind, "move", (Operand("x", grid(0.5, -128)),), ("y",))]
        ops += [Op("Relu", f"use{index}", (Operand("y", each),), (f"z{index}",)) for index, each in enumerate(behind)]
        outputs = tuple(Output(op.outputs[0], Operand(op.outputs[0])) for op in ops[1:])
        return Network({"x": Port("float32", (1, 2, 2))}, outputs, tuple(ops), {}, frozenset(), {}, 21)

    again, other = grid(0.5, -127), grid(0.25, -127)
    assert without_repetition(graph(again, again)).ops[0].inputs == (Operand("x"),)
    for behind in ((again, None), (again, other), (other,), (None,)):
        assert without_repetition(graph(*behind)).ops[0].inputs[0] == Operand("x", grid(0.5, -128))


@pytest.mark.parametrize(
    ("net", "found"),
    [
        (followed("conv_3d", INT8), "ncnn has no integer convolution of 3 dimensions"),
        (small_net("conv", Style(activation="uint8")), "zero point"),
        (small_net("add", INT8), "as integers"),
        (small_net("conv", INT8), "codes -128 to 127"),
    ],
    ids=["conv3d", "affine", "add", "wide"],
)
def test_what_ncnn_cannot_compute_so_is_refused_by_name(net: Net, found: str) -> None:
    with pytest.raises(DeployError, match=found) as refusal:
        FORMAT.write(deployment(net.model))
    assert "1." in refusal.value.asked  # conv1.Conv, add1.Add


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (float_net("Erf", 4), "no layer for it"),
        (float_net("Pow", 4, constants=(np.float32(3),)), "neither 2 nor 0.5"),
        (float_net("Pow", 4, constants=(np.array([[3]], np.float32),)), "neither 2 nor 0.5"),
        (float_net("Softmax", 4, axis=0), "over the batch"),
        (float_net("MaxPool", 2, 8, 8, kernel_shape=[3, 3], dilations=[2, 2]), "dilation"),
        (float_net("Resize", 2, 8, 8, constants=(np.float32([]), np.float32([1, 1, 1.5, 1.5]))), "half_pixel"),
        (
            float_net("Resize", 2, 8, 8, mode="linear", constants=(np.float32([]), np.float32([1, 1, 1.3, 1.3]))),
            r"by \[1.3 1.3\], and ncnn resizes by the ratio of \(10, 10\) to \(8, 8\)",
        ),
    ],
    ids=["erf", "cube", "cube-of-an-array", "softmax", "dilated-pool", "nearest", "linear"],
)
def test_float_operations_that_ncnn_lacks_are_refused(model: onnx.ModelProto, found: str) -> None:
    with pytest.raises(DeployError, match=found) as refusal:
        ncnn_model(model)
    assert "'op'" in refusal.value.asked


def test_a_free_size_besides_the_batch_is_refused() -> None:
    model = float_net("Relu", 4, 4)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "width"
    with pytest.raises(DeployError, match="'width' is free"):
        ncnn_model(model)


def test_a_fixed_batch_of_several_says_how_to_export() -> None:
    model = float_net("Conv", 3, 8, 8, constants=(np.zeros((2, 3, 1, 1), np.float32),))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    with pytest.raises(DeployError, match="4 samples for one of the network") as refused:
        FORMAT.write(deployment(model))
    assert "a batch of 1 or a free one" in refused.value.to_do
