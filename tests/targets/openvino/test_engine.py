"""OpenVINO as an engine: what it gives, what is inside, what it really ran, what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import parser
from torch import nn

import detent
from detent.errors import ArtifactError, EngineError
from detent.ir import Package, read_qdq
from detent.targets.base import Deployment
from detent.targets.openvino.engine import OpenVino, _hides_tiles, _Kernel, _placements
from detent.targets.openvino.ir_file import FORMAT
from detent.targets.openvino.spec import OPENVINO
from tests.twin.nets import Net, Style, resnet18, small_net

pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")

UINT8, INT8 = Style(), Style(activation="int8", symmetric=True)


def package(model: onnx.ModelProto, folder: Path, *, ir: bool = False) -> Package:
    files = {"model.onnx": model.SerializeToString()}
    if ir:
        files |= FORMAT.write(Deployment(name="net", backend=OPENVINO, model=model, tensors=())).files
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return Package(folder, {"files": dict.fromkeys(files, "")})


def loaded(net: Net, folder: Path, *, ir: bool = False, as_float: bool = False) -> OpenVino:
    return OpenVino.load(package(net.model, folder, ir=ir), as_float=as_float)


def placements(net: Net, folder: Path) -> dict[str, str]:
    return {placed.kind: placed.ran_as for placed in loaded(net, folder).explain()}


def test_the_extra_that_installs_it():
    assert OpenVino.version() is not None
    assert OpenVino.extra == "openvino"


def test_amx_kernels_are_not_used_where_the_tiles_are_hidden(tmp_path):
    loaded(small_net("conv"), tmp_path)
    cpu = Path("/proc/cpuinfo").read_text()
    assert not _hides_tiles(cpu) or os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_FP16"


@pytest.mark.parametrize(
    ("last_leaf", "flags", "hides"),
    [(28, "avx512f amx_tile amx_int8", True), (32, "avx512f amx_tile amx_int8", False), (28, "avx512f", False)],
    ids=["hidden", "described", "no-amx"],
)
def test_tiles_are_hidden_where_the_last_leaf_of_cpuid_comes_before_theirs(last_leaf, flags, hides):
    assert _hides_tiles(f"fpu\t\t: yes\ncpuid level\t: {last_leaf}\nflags\t\t: fpu {flags}\n") is hides
    assert not _hides_tiles("")


def test_constants_that_no_hash_covers_are_refused(tmp_path):
    """OpenVINO would open the file beside the IR, and wait for ever if it is a pipe."""
    (tmp_path / "model.xml").write_text("<net/>")
    os.mkfifo(tmp_path / "model.bin")
    package = Package(tmp_path, {"files": {"model.xml": "", "other_model.bin": ""}})
    with pytest.raises(ArtifactError, match=r"the manifest does not name model\.bin"):
        OpenVino.load(package)


def test_outputs_by_name_and_free_batch(tmp_path):
    net = small_net("conv_relu")
    engine = loaded(net, tmp_path)
    both, one = engine.run(net.feeds), engine.run({"x": net.feeds["x"][:1]})
    assert list(both) == ["relu2_dequantized"]
    assert np.array_equal(both["relu2_dequantized"][:1], one["relu2_dequantized"])


def test_an_output_of_codes_is_given_as_real_numbers(tmp_path):
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[4] x) => (uint8[4] codes) <float s = {0.5}, uint8 z = {10}> { codes = QuantizeLinear (x, s, z) }
    """
    engine = OpenVino.load(package(parser.parse_model(text), tmp_path))
    assert engine.run({"x": np.array([0.3, -1.0, 500, 0])})["codes"].tolist() == [0.5, -1.0, 122.5, 0.0]


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("ir", [False, True], ids=["onnx", "ir"])
@pytest.mark.parametrize("style", [UINT8, INT8], ids=str)
def test_showing_tensors_does_not_change_the_outputs(style, ir, tmp_path):
    for kind in ("conv_relu", "depthwise", "gemm", "matmul", "gap", "concat", "residual", "moves", "softmax"):
        net = small_net(kind, style)
        engine = loaded(net, tmp_path, ir=ir)
        outputs, inside = engine.run(net.feeds), engine.tensors(net.feeds)
        for output in engine._package.graph.outputs:
            assert np.array_equal(output.read.encoding.quantize(outputs[output.name]), inside[output.read.tensor])


def test_a_tensor_that_an_add_reads_is_not_shown(tmp_path):
    net = small_net("residual")
    inside = loaded(net, tmp_path).tensors(net.feeds)
    assert {"relu2", "conv3"}.isdisjoint(inside)
    assert {"x", "relu5", "relu7"} < set(inside)
    assert inside["relu5"].dtype == np.uint8


@pytest.mark.parametrize("hidden", [0, 1, -1])
def test_a_tensor_that_changes_the_outputs_is_not_shown(hidden, tmp_path, monkeypatch):
    net = small_net("residual")
    every = list(loaded(net, tmp_path).tensors(net.feeds))
    plain, changing = OpenVino._values, every[hidden]

    def changed(self, exposing, arrays, outputs):
        if changing in (one.tensor for one in exposing.shown):
            outputs = {name: array + 1 for name, array in outputs.items()}
        return plain(self, exposing, arrays, outputs)

    monkeypatch.setattr(OpenVino, "_values", changed)
    engine = loaded(net, tmp_path)
    assert set(engine.tensors(net.feeds)) == set(every) - {changing}
    assert set(engine.tensors(net.feeds)) == set(every) - {changing}, "the second time without another search"


def test_a_resnet18_runs_on_integers_throughout(tmp_path):
    found = loaded(resnet18(Style(batch=1), size=32), tmp_path, ir=True).explain()
    ran_as = {kind: {placed.ran_as for placed in found if placed.kind == kind} for kind in ("Conv", "Gemm", "MaxPool")}
    assert ran_as == {"Conv": {"integer"}, "Gemm": {"integer"}, "MaxPool": {"integer"}}
    assert {placed.ran_as for placed in found if placed.kind in ("Relu", "Add")} == {"folded"}


def test_what_runs_in_float_has_a_reason(tmp_path):
    assert placements(small_net("conv_sigmoid"), tmp_path)["Conv"] == "integer"
    engine = loaded(small_net("resize_linear"), tmp_path)
    assert [(placed.ran_as, placed.why) for placed in engine.explain()] == [
        ("float", "the CPU plugin computes this Resize in float")
    ]


def test_a_node_whose_name_ends_in_a_number_is_found_in_the_ir(tmp_path):
    """OpenVINO names what has no name so: `MaxPool_7`."""
    net = small_net("maxpool")
    (node,) = [node for node in net.model.graph.node if node.op_type == "MaxPool"]
    node.name = "pool_1"
    (placed,) = loaded(net, tmp_path, ir=True).explain()
    assert (placed.op, placed.ran_as) == ("pool_1", "integer")


def test_products_inside_of_a_kernel_have_its_precision():
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[4, 4] x) => (float[4, 4] y) { [a] s = MatMul (x, x) [b] p = Softmax (s) [c] y = MatMul (p, x) }
    """
    placed = _placements(read_qdq(parser.parse_model(text)), [_Kernel("attention", "f32", ("a", "b", "c"))])
    assert [each.ran_as for each in placed] == ["float", "folded", "float"]


def test_as_float_is_the_same_network_unrounded(tmp_path):
    net = small_net("conv")
    engine = loaded(net, tmp_path, as_float=True)
    real, quantized = (
        engine.run(net.feeds)["conv1_dequantized"],
        loaded(net, tmp_path).run(net.feeds)["conv1_dequantized"],
    )
    grid = engine._package.graph.outputs[0].read.encoding
    inside = quantized != quantized.max()
    assert 0 < np.median((np.abs(real - quantized) / grid.scale)[inside]) < 2  # LSB, from the rounded input
    assert engine.tensors(net.feeds) == {}
    assert {placed.ran_as for placed in engine.explain()} == {"float"}


def test_other_inputs_are_refused(tmp_path):
    engine = loaded(small_net("conv"), tmp_path)
    with pytest.raises(EngineError, match="the network takes x"):
        engine.run({"image": np.zeros((1, 16, 10, 10))})
    with pytest.raises(EngineError, match=r"\('batch', 16, 10, 10\)"):
        engine.run({"x": np.zeros((1, 3, 10, 10))})


def test_a_model_it_cannot_run(tmp_path):
    text = '<ir_version: 10, opset_import: ["": 21, "own": 1]> net (float[2] x) => (float[2] y) { y = own.Op (x) }'
    with pytest.raises(EngineError, match="openvino"):
        OpenVino.load(package(parser.parse_model(text), tmp_path)).run({"x": np.zeros(2)})


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("x", r"unlike model.onnx it has an input called \['another'\]"),
        ("relu2_dequantized", "unlike model.onnx it has no output 'relu2_dequantized'"),
    ],
)
def test_an_ir_with_other_ends_is_refused(name, found, tmp_path):
    made = package(small_net("conv_relu").model, tmp_path, ir=True)
    ir = tmp_path / "model.xml"
    ir.write_text(ir.read_text().replace(f'names="{name}"', 'names="another"'))
    with pytest.raises(EngineError, match=found):
        OpenVino.load(made)


def test_an_ir_that_lacks_a_tensor_inside_is_refused_when_it_is_asked_for(tmp_path):
    net = small_net("conv_relu")
    made = package(net.model, tmp_path, ir=True)
    ir = tmp_path / "model.xml"
    ir.write_text(ir.read_text().replace('names="x_dequantized"', 'names="another"'))
    with pytest.raises(EngineError, match="compile for inputs"):
        OpenVino.load(made).tensors(net.feeds)


def test_an_input_that_nothing_reads_is_not_handed_over(tmp_path: Path) -> None:
    """OpenVINO drops it from the network."""

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
            return self.fc(x)

    inputs = (torch.randn(2, 8), torch.randn(2, 3))
    prepared = detent.prepare(First().eval(), inputs, backend="openvino")
    detent.calibrate(prepared, [inputs])
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert artifact.verify([inputs], latency=False).holds
