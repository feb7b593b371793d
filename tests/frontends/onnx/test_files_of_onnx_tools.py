"""Files that ONNX tools quantized (`onnx_tools/README.md`): their scales are taken over, trained and deployed again."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

import detent
from detent import load
from detent.frontends.onnx import source_of
from detent.graph import QuantizedTensor, quantizers_of
from detent.recipes import find

FILES = Path(__file__).parent / "onnx_tools"
TOOLS = sorted(
    file.stem for file in FILES.glob("*.onnx") if not file.stem.startswith("tiny") and file.stem != "modelopt_int4"
)
NUMBERS = {
    # Numbers that no quantizer holds, because no operation has them as its weight or its operand: what norms multiply
    # and add, constants of a formula, and biases of 8 bits, which the backends have on the scale of their sums.
    "aimet_transformer": {"e1", "e2", "g1", "g2", "half", "one", "root", "two"},
    "quark_cnn_xint8": {f"b{n}_DequantizeLinear_Output" for n in range(1, 7)},
}


def given(path: Path | str) -> torch.Tensor:
    shape = [d.dim_value for d in onnx.load_model(path).graph.input[0].type.tensor_type.shape.dim]
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def ran(path: Path | str, x: torch.Tensor, *, optimized: bool = False) -> np.ndarray:
    """What onnxruntime computes, without saturation on any CPU; by itself it may fuse operations, and then rounds sums
    another way."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options)
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


def prepared_of(path: Path | str, backend: str, recipe: str = "ptq"):
    return detent.prepare(load(path), (given(path),), backend=backend, recipe=recipe).eval()


def scales_of(prepared) -> set[bytes]:
    return {
        q.qparams().scale.detach().numpy().astype(np.float32).reshape(-1).tobytes() for q in quantizers_of(prepared)
    }


def missing(prepared) -> set[str]:
    """The tensors of a file whose scales no quantizer has; those of sums (int32) follow from others."""
    encodings = {name: e for name, e in source_of(prepared).encodings.items() if e.dtype != "int32"}
    assert encodings
    held = scales_of(prepared)
    return {name for name, e in encodings.items() if e.scale.astype(np.float32).reshape(-1).tobytes() not in held}


@pytest.mark.parametrize("file", TOOLS)
def test_every_scale_is_in_a_calibrated_quantizer(file):
    path = FILES / f"{file}.onnx"
    prepared = prepared_of(path, "onnxruntime")
    assert all(quantizer.calibrated for quantizer in quantizers_of(prepared))
    assert missing(prepared) <= NUMBERS.get(file, set())


@pytest.mark.few(5)
@pytest.mark.parametrize("file", [file for file in TOOLS if file != "quark_cnn_a16"])
def test_for_openvino_the_same_numbers_are_deployed(file, tmp_path):
    """Its places and schemes are all those of the files, and biases stay as they are: nothing is rounded anew."""
    path = FILES / f"{file}.onnx"
    x, prepared = given(path), prepared_of(path, "openvino")
    assert missing(prepared) <= NUMBERS.get(file, set())
    expected = ran(path, x)
    with torch.no_grad():
        np.testing.assert_allclose(prepared(x).numpy(), expected, atol=1e-6 * np.abs(expected).max())
    again = ran(detent.deploy(prepared, tmp_path / "out").path("model.onnx"), x)
    np.testing.assert_allclose(again, expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.few(5)
@pytest.mark.parametrize("file", TOOLS)
def test_for_onnxruntime_the_engine_computes_what_it_did(file, tmp_path):
    path = FILES / f"{file}.onnx"
    x, prepared = given(path), prepared_of(path, "onnxruntime")
    artifact = detent.deploy(prepared, tmp_path / "out")
    again, expected = ran(artifact.path("model.onnx"), x, optimized=True), ran(path, x, optimized=True)
    # A bias that a file has in float is an int32 for integer kernels: half a step of their sums.
    assert np.abs(again - expected).max() <= 1e-4 * np.abs(expected).max()
    assert artifact.verify([(x,)], latency=False).holds


@pytest.mark.parametrize("file", ["modelopt_cnn", "nncf_cnn_mixed", "nncf_transformer"])
def test_with_float_biases_onnxruntime_has_nothing_else(file, tmp_path):
    """These files have float biases, and are deployed with int32 ones: that is the only difference."""
    path, plain = FILES / f"{file}.onnx", find("ptq")
    x, recipe = given(path), plain.replace(bias=plain.bias.replace(quantize=False))
    prepared = detent.prepare(load(path), (x,), backend="onnxruntime", recipe=recipe).eval()
    expected, again = ran(path, x), ran(detent.deploy(prepared, tmp_path / "out").path("model.onnx"), x)
    np.testing.assert_allclose(again, expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.few(5)
@pytest.mark.parametrize("file", TOOLS)
def test_targets_without_its_schemes_keep_the_ranges(file):
    path = FILES / f"{file}.onnx"
    x, expected = given(path), ran(path, given(path))
    # Symmetric grids over ranges that were not have up to twice the step; LiteRT has one range, the widest, for what is
    # concatenated, and cuts off less than the file.
    for backend, most in (("tensorrt", 0.1), ("litert", 0.2)):
        prepared = prepared_of(path, backend)
        assert all(quantizer.calibrated for quantizer in quantizers_of(prepared))
        with torch.no_grad():
            assert np.abs(prepared(x).numpy() - expected).max() < most * np.abs(expected).max()


@pytest.mark.few(5)
@pytest.mark.parametrize("file", TOOLS)
def test_it_is_trained_from_there(file):
    path = FILES / f"{file}.onnx"
    x, prepared = given(path), prepared_of(path, "onnxruntime", recipe="lsq").train()
    losses = []
    for _ in range(3):
        prepared.zero_grad()
        loss = prepared(x).square().mean()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():  # by a hundredth of what each parameter is: steps of 16 bits are 1e-5
            for parameter in prepared.parameters():
                assert parameter.grad is not None
                gradient = parameter.grad / parameter.grad.abs().max().clamp(min=1e-12)
                parameter -= 0.01 * parameter.abs().mean() * gradient
    assert losses[2] < losses[0]


def test_a_scale_for_each_channel_of_an_activation(tmp_path):
    file, name, tensor = FILES / "nncf_mobile.onnx", "act1_HardSwish_output_0", "/act1/HardSwish_output_0"
    prepared = prepared_of(file, "openvino")
    entry = prepared.plan[name]
    assert isinstance(entry, QuantizedTensor)
    assert str(entry.scheme) == "int8 symmetric per-channel(1)"
    model = onnx.load_model(detent.deploy(prepared, tmp_path / "out").path("model.onnx"))
    quantize = next(node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == tensor)
    assert [(a.name, a.i) for a in quantize.attribute] == [("axis", 1)]
    tensorrt = prepared_of(file, "tensorrt")
    whole, parts = (next(q.qparams().scale for q in quantizers_of(p) if q.name == name) for p in (tensorrt, prepared))
    torch.testing.assert_close(whole, parts.max())  # one range for all: the widest
    assert tensorrt.plan[name].why == "input of conv; the range that int8 symmetric per-channel(1) has in the file"


def test_a_relu_that_a_grid_did_the_work_of_is_deployed_to_targets_with_another_grid(tmp_path):
    path = quantized(tmp_path)
    assert "Relu" not in {node.op_type for node in onnx.load_model(path).graph.node}
    x, prepared = given(path), prepared_of(path, "tensorrt")
    model = detent.deploy(prepared, tmp_path / "out").path("model.onnx")
    assert [node.op_type for node in onnx.load_model(model).graph.node].count("Relu") == 2
    with torch.no_grad():
        np.testing.assert_allclose(prepared(x).numpy(), ran(model, x), atol=1e-5)


def test_weights_in_blocks_of_four_bits(tmp_path):
    """Those of the matrices whose axis they divide; a file with scales for weights only is calibrated."""
    path = FILES / "modelopt_int4.onnx"
    x, graph = given(path), load(path)
    np.testing.assert_allclose(graph(x).detach().numpy(), ran(path, x), atol=1e-5)
    prepared = detent.prepare(graph, (x,), backend="onnxruntime")
    known = {q.name: q for q in quantizers_of(prepared) if q.calibrated}
    assert {name: str(q.scheme) for name, q in known.items()} == {
        "fc2_MatMul.weight": "int4 narrow symmetric per-group(1, 32)"
    }
    assert prepared.plan["fc2_MatMul.bias"].reason == "the groups of its weight have no common scale"
    detent.calibrate(prepared, [x])
    assert detent.deploy(prepared, tmp_path / "out").verify([(x,)], latency=False).holds


class Batches(CalibrationDataReader):
    def __init__(self, path: str) -> None:
        generator = torch.Generator().manual_seed(0)
        shape, name = given(path).shape, onnx.load_model(path).graph.input[0].name
        self._left = iter([{name: torch.randn(shape, generator=generator).numpy()} for _ in range(3)])

    def get_next(self):
        return next(self._left, None)


def quantized(tmp_path: Path, **options) -> str:
    plain, made = str(FILES / "tiny_cnn.onnx"), str(tmp_path / "made.onnx")
    logging.disable(logging.WARNING)
    try:
        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        quantize_static(plain, made, Batches(plain), **{**types, **options})
    finally:
        logging.disable(logging.NOTSET)
    return made


VARIANTS = {
    "zero points for channels": {"weight_type": QuantType.QUInt8, "per_channel": True},
    "own operators": {"extra_options": {"UseQDQContribOps": True}},
    "a pair for each reader": {"extra_options": {"DedicatedQDQPair": True}},
    "weights through a pair": {"extra_options": {"AddQDQPairToWeight": True}},
    "float biases": {"extra_options": {"QuantizeBias": False}},
    "float outputs": {"extra_options": {"OpTypesToExcludeOutputQuantization": ["Conv", "MatMul"]}},
    "convolutions only": {"op_types_to_quantize": ["Conv"]},
    "every ReLU": {"extra_options": {"QDQKeepRemovableActivations": True}},
    "16 bits": {"activation_type": QuantType.QUInt16, "extra_options": {"UseQDQContribOps": True}},
    "overrides": {
        "extra_options": {
            "TensorQuantOverrides": {
                "c3": [{"quant_type": QuantType.QInt8, "symmetric": True}],
                "c5": [{"rmin": np.float32(-0.25), "rmax": np.float32(0.5)}],
            }
        }
    },
}


@pytest.mark.few(5)
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_what_quantize_static_can_be_asked_for(options, tmp_path):
    made = quantized(tmp_path, **options)
    x, prepared = given(made), prepared_of(made, "onnxruntime")
    assert not missing(prepared)
    expected, again = ran(made, x), ran(detent.deploy(prepared, tmp_path / "out").path("model.onnx"), x)
    # 1e-6 of the largest but for biases that were float: half a step of sums.
    assert (
        np.abs(again - expected).max() <= (1e-4 if "float biases" in tmp_path.name else 1e-6) * np.abs(expected).max()
    )


def test_two_ranges_that_a_target_joins_are_both_held(tmp_path):
    """What is concatenated has one scale on LiteRT. The file cuts one of two at 0.25: nothing may be cut there."""
    cut = {"c4": [{"rmin": np.float32(-0.25), "rmax": np.float32(0.25)}]}
    made = quantized(tmp_path, extra_options={"TensorQuantOverrides": cut})
    source = source_of(load(made))
    ends = [
        max(abs(float(e.scale) * (code - int(e.zero_point))) for code in e.limits)
        for e in (source.encodings[name] for name in ("c4", "c5", "j"))
    ]
    prepared = prepared_of(made, "litert")
    held = next(q for q in quantizers_of(prepared) if q.name == "c4")
    grid, numbers = held.scheme.grid, held.qparams()
    reach = max(abs(float(numbers.scale) * (code - int(numbers.zero_point))) for code in (grid.qmin, grid.qmax))
    assert reach >= max(ends) - float(numbers.scale)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tensorrt"])
def test_uneven_pads_do_not_come_between_a_convolution_and_its_grid(backend, tmp_path):
    path = FILES / "tiny_cnn.onnx"
    x, prepared = given(path), detent.prepare(load(path), (given(path),), backend=backend)
    detent.calibrate(prepared, [x])
    assert isinstance(prepared.plan["x"], QuantizedTensor)
    model = detent.deploy(prepared.eval(), tmp_path / "out").path("model.onnx")
    assert any(node.op_type == "QuantizeLinear" and node.input[0] == "x" for node in onnx.load_model(model).graph.node)
    with torch.no_grad():
        step = max(float(q.qparams().scale.max()) for q in quantizers_of(prepared) if q.role == "activation")
        assert np.abs(prepared(x).numpy() - ran(model, x)).max() <= step


def test_a_gelu_of_the_vendor_is_one(tmp_path):
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8])] for name in "xy"]
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32)[::-1].copy(), "w")
    nodes = [
        helper.make_node("Gelu", ["m"], ["y"], name="gelu", domain="com.microsoft"),
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),  # out of order, too
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = load(helper.make_model(helper.make_graph(nodes, "net", *ports, [weight]), opset_imports=opsets))
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(graph(x), torch.nn.functional.gelu(x.flip(1)))
    assert prepared_kind(graph, x, "y") == "gelu"
    prepared = detent.prepare(graph, (x,), backend="onnxruntime").eval()
    detent.calibrate(prepared, [x])
    model = detent.deploy(prepared, tmp_path / "out").path("model.onnx")  # of opset 17, which has no Gelu
    with torch.no_grad():
        np.testing.assert_allclose(ran(model, x), prepared(x), atol=1e-5)


def prepared_kind(graph, x: torch.Tensor, tensor: str) -> str:
    return detent.prepare(graph, (x,), backend="onnxruntime").plan[tensor].kind
