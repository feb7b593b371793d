"""MNN's files: the float network, and the scales of each layer under the names MNN gives them."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import detent
from detent.errors import DeployError
from detent.ir import read_qdq, write_qdq
from detent.rewrites import float_model
from detent.targets.base import Deployment
from detent.targets.mnn import engine
from detent.targets.mnn.compression import ActivationGrid, Compression, CompressionLayer, WeightGrid
from detent.targets.mnn.model import mnn_network
from detent.targets.mnn.spec import MNN
from detent.targets.mnn.writer import FORMAT, mnn_compression, read_mnn
from tests.twin.nets import Builder, Net, Style, conv, linear, small_net

INT8 = Style(activation="int8", symmetric=True, batch=1)

LAYER = CompressionLayer(ActivationGrid("x", 0.5), WeightGrid("w", (0.25, 2.0)), ActivationGrid("y", 1.0, 0, -128, 127))


def test_the_message_is_what_protobuf_says() -> None:
    """Pipeline{version, algo{type, quant_params{round_mode, layer{input, weight, output, method}}}}, byte by byte."""
    minus_127, minus_128 = "81" + "ff" * 8 + "01", "80" + "ff" * 8 + "01"
    x = "0a0178" + "1008" + "1d0000003f" + "2000" + f"28{minus_127}" + "307f"
    w = "0a0177" + "1008" + "1d0000803e" + "1d00000040" + f"20{minus_127}" + "287f"
    y = "0a0179" + "1008" + "1d0000803f" + "2000" + f"28{minus_128}" + "307f"
    parts = [f"{tag}{len(part) // 2:02x}{part}" for tag, part in (("0a", x), ("12", w), ("1a", y))]
    layer = "".join(parts) + "2000"
    quantize = "0801" + f"22{len(layer) // 2:02x}{layer}"
    algorithm = "0800" + f"12{len(quantize) // 2:02x}{quantize}"
    expected = "0a05" + b"0.0.0".hex() + f"12{len(algorithm) // 2:02x}{algorithm}"
    assert Compression((LAYER,)).message().hex() == expected


names = st.text(min_size=1, max_size=9)
scales = st.floats(min_value=2**-20, max_value=2**20, width=32)
grids = st.builds(ActivationGrid, names, scales, st.integers(-128, 127), st.integers(-128, 0), st.integers(1, 127))
weights = st.builds(WeightGrid, names, st.lists(scales, min_size=1, max_size=5).map(tuple))


@given(st.lists(st.builds(CompressionLayer, grids, weights, grids), max_size=4).map(tuple))
def test_both_forms_come_back_as_they_were(layers: tuple[CompressionLayer, ...]) -> None:
    compression = Compression(layers)
    assert Compression.from_message(compression.message()) == compression
    assert Compression.from_text(compression.text()) == compression


def test_scales_that_another_program_packed_are_read_too() -> None:
    packed = bytes.fromhex("0a0177" + "1a080000803e00000040")
    message = Compression((LAYER,)).message()
    unpacked = bytes.fromhex("0a0177" + "1008" + "1d0000803e" + "1d00000040" + "2081ffffffffffffffff01" + "287f")
    assert unpacked in message
    cut = message.replace(bytes([0x12, len(unpacked)]) + unpacked, bytes([0x12, len(packed)]) + packed)
    shorter = len(unpacked) - len(packed)
    fixed = bytearray(cut)
    for place in (8, 12, 16):  # the lengths of algorithm, quant_params and layer
        fixed[place] -= shorter
    assert Compression.from_message(bytes(fixed)).layers[0].weight.scales == (0.25, 2.0)


def test_a_message_that_is_cut_short_is_refused() -> None:
    with pytest.raises(DeployError, match="ends too early"):
        Compression.from_message(Compression((LAYER,)).message()[:-3])


def compression_of(*layers: str) -> tuple[Net, Compression]:
    builder = Builder(INT8)
    x = builder.input("x", 1, 8, 6, 6)
    for layer in layers:
        x = {
            "conv": lambda x: conv(builder, x, 8),
            "relu": lambda x: conv(builder, x, 8, then="Relu"),
            "clip": lambda x: conv(builder, x, 8, then="Relu6"),
            "groups": lambda x: conv(builder, x, 8, group=2),
            "depthwise": lambda x: conv(builder, x, 8, group=8),
            "flat": lambda x: builder.quantized(builder.float_op("Flatten", x), like=x),
            "gemm": lambda x: linear(builder, x, 4),
            "gemm_relu": lambda x: linear(builder, x, 4, then="Relu"),
        }[layer](x)
    builder.output(x)
    net = builder.net()
    return net, mnn_compression(read_qdq(net.model))


def test_layers_are_named_as_mnn_names_what_they_give() -> None:
    """A convolution with its ReLU but not with another clip, one for each group, a matrix product, an output."""
    _, compression = compression_of("relu", "clip", "groups", "depthwise", "flat", "gemm")
    assert [layer.output.name for layer in compression.layers] == [
        "relu2",
        "conv3",
        "conv7___output___0",
        "conv7___output___1",
        "conv8",
        "gemm10__matmul_converted",
    ]
    _, compression = compression_of("conv")
    assert compression.layers[0].output.name == "conv1_dequantized__before_tr"


def test_grids_are_those_of_the_network() -> None:
    net, compression = compression_of("relu", "conv")
    graph = read_qdq(net.model)
    first = compression.layers[0]
    grid, weight = graph.grid_of("relu2"), graph.ops[0].inputs[1]
    assert grid is not None
    assert weight is not None
    assert weight.encoding is not None
    assert first.input.name == "x"
    assert first.output.scale == float(grid.scale)
    assert list(first.weight.scales) == weight.encoding.scale.tolist()


def test_the_files_of_a_deployment() -> None:
    net, compression = compression_of("relu", "conv")
    files = FORMAT.write(Deployment(name="net", backend=MNN, model=net.model, tensors=())).files
    assert sorted(files) == ["model.float.onnx", "model.mnn_compression.bin", "model.mnn_compression.json"]
    assert read_mnn(files) == compression
    assert Compression.from_text(files["model.mnn_compression.json"]) == compression
    layer = json.loads(files["model.mnn_compression.json"])["algo"][0]["quant_params"]["layer"][0]
    assert layer["input"][0]["name"] == "x"
    kinds = {node.op_type for node in onnx.load_from_string(files["model.float.onnx"]).graph.node}
    assert kinds == {"Conv", "Relu", "Identity"}


def test_small_groups_are_written_as_one_convolution_with_zeros() -> None:
    """MNN would make depthwise convolutions of them: with fewer than 4 outputs for each of more groups than that. Of
    others it makes one for each group."""
    counts = {}
    for group, inputs, outputs in ((4, 8, 8), (2, 8, 8), (8, 8, 8), (4, 8, 16), (8, 8, 16)):
        builder = Builder(INT8)
        builder.output(conv(builder, builder.input("x", 1, inputs, 6, 6), outputs, group=group))
        net = builder.net()
        graph = read_qdq(net.model)
        counts[group, inputs, outputs] = len(mnn_compression(graph).layers)
        model = write_qdq(mnn_network(graph))
        (node,) = [node for node in model.graph.node if node.op_type == "Conv"]
        groups = [attribute.i for attribute in node.attribute if attribute.name == "group"]
        assert groups == ([] if outputs // group < 4 and (group, inputs, outputs) != (8, 8, 8) else [group])
        assert_same_numbers(net, model)
    assert counts == {(4, 8, 8): 1, (2, 8, 8): 2, (8, 8, 8): 1, (4, 8, 16): 4, (8, 8, 16): 1}


def test_scales_of_all_groups_are_those_of_the_weight() -> None:
    builder = Builder(INT8)
    builder.output(conv(builder, builder.input("x", 1, 8, 6, 6), 8, group=2))
    graph = read_qdq(builder.net().model)
    (read,) = [read for op in graph.ops for read in op.inputs[1:2] if read is not None]
    (weight,) = mnn_compression(graph).weights()
    assert read.encoding is not None
    assert weight.scales == tuple(float(scale) for scale in np.broadcast_to(read.encoding.scale, (8,)))


def test_a_large_matrix_is_written_as_a_convolution() -> None:
    """And its layer has the name of what that gives."""
    builder = Builder(INT8)
    builder.output(linear(builder, builder.input("x", 2, 256), 256, then="Relu"))
    net = builder.net()
    graph = read_qdq(net.model)
    assert [layer.output.name for layer in mnn_compression(graph).layers] == ["gemm1.product"]
    written = write_qdq(mnn_network(graph))
    assert [node.op_type for node in written.graph.node] == ["Reshape", "Conv", "Reshape", "Max", "Identity"]
    assert_same_numbers(net, written)


def assert_same_numbers(net: Net, written: onnx.ModelProto) -> None:
    onnx.checker.check_model(written, full_check=True)
    plain = float_model(net.model)
    runs = [
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, net.feeds)
        for model in (plain, written)
    ]
    for one, other in zip(*runs, strict=True):
        assert np.allclose(one, other, rtol=1e-5, atol=1e-5)  # sums in another order


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("Max", ["Mul", "Mul", "Max", "Mul"]),
        ("Abs", ["Mul", "Abs", "Mul"]),
        ("Relu", ["Clip"]),
        ("MaxPool", ["MaxPool", "Max"]),
        ("AveragePool", ["Pad", "AveragePool", "Max"]),
        ("Resize", ["Resize", "Max"]),
    ],
)
def test_what_is_wrong_on_codes_is_written_otherwise_with_the_same_numbers(kind: str, written: list[str]) -> None:
    builder = Builder(INT8)
    x = builder.input("x", 1, 4, 6, 6)
    made = builder.quantized(builder.float_op("Tanh", x))
    attributes = {
        "MaxPool": {"kernel_shape": [2, 2]},
        "AveragePool": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    }.get(kind, {})
    if kind == "Resize":
        twice = {"scales": np.array([1, 1, 2, 2], np.float32)}
        result = builder.float_op("Resize", made, None, "scales", constants=twice, mode="linear")
    else:
        result = builder.float_op(kind, *((made, x) if kind == "Max" else (made,)), **attributes)
    builder.output(conv(builder, builder.quantized(result), 4, 1))
    net = builder.net()
    model = write_qdq(mnn_network(read_qdq(net.model)))
    kinds = [node.op_type for node in model.graph.node]
    assert kinds == ["Tanh", *written, "Conv", "Identity"]
    assert_same_numbers(net, model)


def test_an_average_that_counts_padding_in_ceil_mode_is_refused() -> None:
    builder = Builder(INT8)
    x = builder.input("x", 1, 4, 6, 6)
    pool = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1, "ceil_mode": 1, "strides": [2, 2]}
    builder.output(conv(builder, builder.quantized(builder.float_op("AveragePool", x, **pool)), 4, 1))
    net = builder.net()
    with pytest.raises(DeployError, match="never counts padding"):
        write_qdq(mnn_network(read_qdq(net.model)))


@pytest.mark.parametrize(
    ("net", "found"),
    [
        (small_net("conv", Style(activation="uint8")), "uint8 with zero point"),
        (small_net("float_add", INT8), "is read in float"),
        (small_net("conv_transpose", INT8), "convolutions and linear layers only"),
    ],
    ids=["affine", "float-output", "transposed"],
)
def test_what_mnn_cannot_compute_so_is_refused_by_name(net: Net, found: str) -> None:
    with pytest.raises(DeployError, match=found) as refusal:
        mnn_compression(read_qdq(net.model))
    assert "conv" in refusal.value.asked


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.squeeze, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.hardswish(self.first(x))
        return self.last(x * functional.hardsigmoid(self.squeeze(functional.adaptive_avg_pool2d(x, 1))))


def test_no_two_nodes_have_one_name(tmp_path) -> None:
    """ONNX Runtime does not load such a file. The pool reads real numbers, so what it gives is made once more."""
    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8)
    prepared = detent.prepare(Gate().eval(), (x,), backend="mnn")
    detent.calibrate(prepared, [x])
    detent.deploy(prepared, tmp_path / "out")
    nodes = onnx.load(tmp_path / "out" / "model.float.onnx").graph.node
    assert any(node.output[0].endswith(".made") for node in nodes)
    assert len({node.name for node in nodes}) == len(nodes)


def test_tensors_may_be_called_as_an_alias_would_be() -> None:
    """The layer reads an alias of `gate`, which the Softmax reads too; the pool needs the shape of what it reads."""
    builder = Builder(INT8)
    gate = builder.float_op("Sigmoid", conv(builder, builder.input("x", 1, 4, 6, 6), 4))
    other = builder.float_op("Softmax", gate, axis=1)
    half = builder.float_op("AveragePool", other, kernel_shape=[2, 2], strides=[2, 2])
    end = builder.float_op("MaxPool", half, kernel_shape=[1, 1], strides=[3, 3], ceil_mode=1)
    builder.output(conv(builder, builder.quantized(gate), 4, 1))
    builder.output(end)
    net = builder.net()
    names = {gate.name: "gate", other.name: "gate.real", half.name: "gate.real.real"}
    network = mnn_network(read_qdq(net.model).renamed(names))
    assert {"gate", "gate.real", "gate.real_1", "gate.real.real"} <= network.names
    assert_same_numbers(net, write_qdq(network))


def test_the_script_that_runs_mnn_is_there() -> None:
    """The engine runs it in a process of its own, by its path; MNN itself is not needed to look."""
    assert engine._WORKER.is_file()
