"""The file for torch's kernels: what is in it, that it comes back as it was, what is refused."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from detent.errors import ArtifactError, DeployError
from detent.ir import Encoding, Network, Op, Operand, Output, Port, read_qdq
from detent.ir.torch_module import FloatGrids, TorchGraph, with_linear_layers
from detent.rewrites import float_model
from detent.targets import BACKENDS
from detent.targets.base import Deployment
from detent.targets.torch_native.kernels import lower
from detent.targets.torch_native.program import JSON_FILE, TENSOR_FILE, TorchProgram, read_program, write_program
from detent.targets.torch_native.writer import FORMAT
from tests.twin.nets import SMALL, Net, Style, resnet18, small_net


def deployed(net: Net) -> Deployment:
    return Deployment(name="net", backend=BACKENDS["torch_x86"], model=net.model, tensors=())


def equal(a: TorchProgram, b: TorchProgram) -> bool:
    tensors = a.tensors.keys() == b.tensors.keys() and all(
        np.array_equal(a.tensors[name], b.tensors[name]) and a.tensors[name].dtype == b.tensors[name].dtype
        for name in a.tensors
    )
    rest = ("inputs", "outputs", "codes", "grids", "steps")
    return tensors and all(getattr(a, part) == getattr(b, part) for part in rest)


@pytest.mark.parametrize("kind", SMALL)
def test_round_trip(kind: str) -> None:
    program = lower(read_qdq(small_net(kind).model)).program
    files = write_program(program)
    assert equal(read_program(files), program)
    assert write_program(read_program(files)) == files


def test_what_the_file_says() -> None:
    files = FORMAT.write(deployed(small_net("conv_relu"))).files
    said = json.loads(files[JSON_FILE])
    assert [step["call"] for step in said["steps"]] == ["quantize", "quantized.conv2d_relu"]
    assert said["steps"][1] == {
        "call": "quantized.conv2d_relu",
        "inputs": ["x_quantized", "conv1.weight", "conv1.weight_scale", "conv1.bias"],
        "outputs": ["relu2_quantized"],
        "attributes": {"strides": [1, 1], "padding": [1, 1], "dilations": [1, 1], "groups": 1},
        "ops": [["conv1.Conv", "Conv"], ["relu2.Relu", "Relu"]],
    }
    assert said["grids"]["relu2_quantized"]["tensor"] == "relu2"
    assert said["grids"]["relu2_quantized"]["zero_point"] == 0
    held = read_program(files).tensors
    assert {name: str(array.dtype) for name, array in held.items()} == {
        "conv1.weight": "int8",
        "conv1.weight_scale": "float32",
        "conv1.bias": "float32",
    }


def test_a_whole_network_runs_on_integers_but_for_its_mean() -> None:
    """The pool has an output scale of its own, which torch's kernel has not."""
    deployment = deployed(resnet18(Style(batch=1), size=32, classes=10))
    steps = read_program(FORMAT.write(deployment).files).steps
    assert [step.call for step in steps if step.why] == ["onnx.GlobalAveragePool"]
    assert sum(step.call.startswith("quantized.conv2d") for step in steps) == 20
    assert [note.split(":")[0] for note in FORMAT.write(deployment).notes] == ["torch runs in float"]
    assert "keeps the grid of its input" in FORMAT.write(deployment).notes[0]


def test_clipping_becomes_codes() -> None:
    """Q(clip(x)) is the clip of Q(x): the bounds are codes of the output's grid."""
    grid = Encoding(np.float32(0.05), np.int64(10), "uint8")
    ops = (
        Op("Add", "add", (Operand("a", grid), Operand("b", grid)), ("sum",)),
        Op("Clip", "clip", (Operand("sum"), Operand("low"), Operand("high")), ("y",)),
    )
    constants = {"low": np.float32(0), "high": np.float32(6)}
    ports = {name: Port("float32", ("batch", 3)) for name in "ab"}
    graph = Network(ports, (Output("y", Operand("y", grid)),), ops, constants, frozenset(), {}, 21)
    assert lower(graph).program.steps[-1].attributes == {"clamp": [10, 130]}


def test_a_reshape_between_a_pool_and_its_grid_runs_on_codes() -> None:
    grid = Encoding(np.float32(0.05), np.int64(10), "uint8")
    ops = (
        Op("GlobalAveragePool", "pool", (Operand("x", grid),), ("p",)),
        Op("Squeeze", "squeeze", (Operand("p"), Operand("axes")), ("y",)),
    )
    ports = {"x": Port("float32", ("batch", 3, 4, 4))}
    shapes: dict[str, tuple[int | str, ...]] = {"x": ("batch", 3, 4, 4)}
    constants = {"axes": np.array([2, 3])}
    graph = Network(ports, (Output("y", Operand("y", grid)),), ops, constants, frozenset(), shapes, 21)
    steps = lower(graph).program.steps
    assert [(step.call, step.outputs) for step in steps] == [
        ("quantize", ("x_quantized",)),
        ("onnx.GlobalAveragePool", ("p_quantized",)),
        ("onnx.Squeeze", ("y_quantized",)),
    ]


def test_fewer_bits_are_clamped() -> None:
    """7 bits in an uint8: every step that gives codes leaves 0 to 127."""
    grid = Encoding(np.float32(0.05), np.int64(10), "uint8", qmin=0, qmax=127)
    op = Op("Add", "add", (Operand("a", grid), Operand("a", grid)), ("y",))
    graph = Network({"a": Port("float32", (3,))}, (Output("y", Operand("y", grid)),), (op,), {}, frozenset(), {}, 21)
    steps = lower(graph).program.steps
    assert [(step.call, step.attributes["clamp"]) for step in steps] == [
        ("quantize", [0, 127]),
        ("quantized.add", [0, 127]),
    ]


def test_a_linear_layer_of_three_dimensions() -> None:
    steps = lower(read_qdq(small_net("matmul").model)).program.steps
    assert [step.call for step in steps] == ["quantize", "quantized.linear"]
    assert [kind for _, kind in steps[1].ops] == ["MatMul", "Add"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("sub", "no integer kernel"),
        ("conv_sigmoid", "read in float, or on several grids"),
        ("avgpool", "keeps the grid"),
        ("conv_transpose", "weights with one scale"),
        ("matmul_dynamic", "two computed matrices"),
        ("sigmoid", "gives scale 0.00390625 and zero point 0"),
    ],
)
def test_every_float_step_has_a_reason(kind: str, why: str) -> None:
    steps = lower(read_qdq(small_net(kind).model)).program.steps
    reasons = [step.why for step in steps if step.call.startswith("onnx.")]
    assert why in reasons[0]
    assert all(reasons)


def test_signed_activations_run_in_float() -> None:
    steps = lower(read_qdq(small_net("conv", Style(activation="int8")).model)).program.steps
    assert [step.why for step in steps if step.why] == [
        "torch's kernels take unsigned 8 bit activations with one scale"
    ]


def test_wide_activations_are_refused() -> None:
    with pytest.raises(DeployError, match="its codes are int16"):
        FORMAT.write(deployed(small_net("conv", Style(activation="int16", symmetric=True))))


def test_unknown_operations_are_refused() -> None:
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3])
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 3])
    graph = helper.make_graph([helper.make_node("Det", ["x"], ["y"], name="det")], "net", [value], [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(DeployError, match="Det 'det'"):
        FORMAT.write(deployed(Net(model, {})))


@pytest.mark.parametrize(
    "broken", [{JSON_FILE: b"{"}, {TENSOR_FILE: b"1234"}, {JSON_FILE: b'{"format": "x", "version": 1}'}]
)
def test_other_files_are_refused(broken: dict[str, bytes]) -> None:
    files = {**FORMAT.write(deployed(small_net("conv"))).files, **broken}
    with pytest.raises(ArtifactError, match="they hold no network"):
        read_program(files)


@pytest.mark.parametrize("kind", SMALL)
def test_the_float_module_is_the_float_network(kind: str) -> None:
    """Against ONNX Runtime on the network without Q and DQ; float32 sums in another order."""
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra `onnxruntime`")
    net = small_net(kind)
    session = runtime.InferenceSession(float_model(net.model).SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, net.feeds)
    graph = read_qdq(net.model)
    for network in (graph, with_linear_layers(graph)):
        with torch.no_grad():
            found = TorchGraph(network, FloatGrids())(*(torch.from_numpy(net.feeds[name]) for name in graph.inputs))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-4, atol=1e-4 * np.abs(b).max())
