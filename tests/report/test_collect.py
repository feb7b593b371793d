"""What a report knows: of a folder alone, with data, with the float network."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import detent
from detent.artifact import Artifact
from detent.demo import images, trained
from detent.errors import ArtifactError, RangeError, TensorError
from detent.ir import Encoding
from detent.recipes import find
from detent.report import collect
from detent.report.curves import read_curves
from detent.report.histograms import histogram
from tests.networks.golden import residual_cnn


@pytest.fixture(scope="module")
def alone(artifact):
    """The folder, without the model it came from."""
    return Artifact.load(artifact.folder)


def test_a_folder_alone_says_its_operations_and_grids(alone):
    facts = collect(alone)
    first = facts.nodes[0]
    assert (first.name, first.op, first.weight_bits, first.activation_bits) == ("stem_0", "Conv", 8, 8)
    assert (first.reads, first.outputs, first.result) == (("image",), ("stem_0",), "relu")  # it is fused with the Relu
    assert (first.sqnr, first.alone, first.lsb) == (None, None, None)
    assert facts.bits == "W8 A8"
    assert facts.parameters == 79_370
    assert facts.verdict is None
    assert "--data" in facts.missing[0]
    weight, image = facts.tensors["stem.0.weight"], facts.tensors["image"]
    assert (weight.role, weight.channels, weight.qmin, weight.qmax) == ("weight", 16, -127, 127)
    assert weight.histogram.of == "stored codes"
    assert sum(weight.histogram.counts) == 16 * 9
    assert image.histogram is None


def test_data_add_errors_and_the_verdict(facts):
    first, last = facts.nodes[0], facts.nodes[-2]
    assert facts.verdict.holds
    assert (facts.float_accuracy, facts.verdict.accuracy.samples) == (92.1875, 64)
    assert 25 < facts.output_sqnr["output"] < 60
    assert facts.missing == ()
    assert facts.samples == 16
    assert first.sqnr > 30
    # Alone it does less harm than all of them together.
    assert min(node.alone for node in facts.nodes if node.alone is not None) > facts.output_sqnr["output"]
    assert first.differences["twin vs engine"] == (0, 32 * 2 * 16 * 28 * 28, 0.0, "LSB")
    assert last.op == "Gemm"
    assert facts.tensors["stem.0.weight"].histogram.of == "float values"
    assert 35 < facts.tensors["stem.0.weight"].sqnr < 60


def test_without_the_float_network_weights_are_as_deployed(alone, labeled):
    facts = collect(alone, data=labeled, latency=False)
    assert facts.float_accuracy is None
    assert facts.tensors["stem.0.weight"].sqnr is None
    assert facts.tensors["relu"].sqnr > 30
    assert facts.verdict.speed is None
    assert len(facts.missing) == 2


def float_file(path):
    """A convolution with a batch norm, which deploying folds into the weights."""
    rng = np.random.default_rng(0)
    held = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("w", (4, 3, 3, 3)), ("b", (4,)))}
    held |= {"gain": np.full(4, 0.5, np.float32), "mean": np.ones(4, np.float32), "var": np.full(4, 4, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["c", "gain", "b", "mean", "var"], ["n"], "norm"),
        helper.make_node("Relu", ["n"], ["y"], "relu"),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", c, s, s])
        for name, c, s in (("x", 3, 8), ("y", 4, 6))
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_the_file_that_was_quantized_is_the_float_network(tmp_path):
    torch.manual_seed(0)
    file, samples = float_file(tmp_path / "net.onnx"), torch.randn(8, 3, 8, 8)
    loaded = Artifact.load(detent.quantize(file, [samples], backend="onnxruntime", folder=tmp_path / "out").folder)
    facts = collect(loaded, data=[samples], float_model=file, latency=False)
    assert facts.missing == ()
    assert facts.name == "net"
    assert facts.output_sqnr["y"] > 25
    (weight,) = (held for held in facts.tensors.values() if held.role == "weight")
    assert 35 < weight.sqnr < 60


def test_bits_are_those_of_the_manifest_where_a_file_has_wider_types(tmp_path):
    recipe = find("ptq").replace(weight=find("ptq").weight.replace(bits=4))
    net, sample = residual_cnn().eval(), torch.randn(2, 3, 8, 8)
    prepared = detent.prepare(net, (sample,), backend="academic", recipe=recipe)
    detent.calibrate(prepared, [sample])
    facts = collect(detent.deploy(prepared, tmp_path / "out"))
    assert 4 in {node.weight_bits for node in facts.nodes}
    assert {node.runs for node in facts.nodes if node.weight_bits} == {None}  # no engine is known


def test_another_network_is_refused_as_the_float_one(alone, labeled, tmp_path):
    model = onnx.load(float_file(tmp_path / "net.onnx"))
    model.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "two.onnx")
    with pytest.raises(ArtifactError, match="1 inputs and 2 outputs"):
        collect(alone, data=labeled, float_model=tmp_path / "two.onnx")


def test_nodes_without_names_are_called_by_their_results(tmp_path):
    file = float_file(tmp_path / "net.onnx")
    model = onnx.load(file)
    for node in model.graph.node:
        node.name = ""
    samples = torch.randn(4, 3, 8, 8)
    loaded = Artifact.load(detent.quantize(model, [samples], backend="onnxruntime", folder=tmp_path / "out").folder)
    facts = collect(loaded, data=[samples], latency=False)
    assert len({node.name for node in facts.nodes}) == len(facts.nodes)
    assert all(node.name for node in facts.nodes)


def test_wrong_data_are_the_users_mistake(alone, labeled):
    with pytest.raises(RangeError, match="the batches are empty"):
        collect(alone, data=[])
    with pytest.raises(TensorError):
        collect(alone, data=[labeled[0][0][:, :, :4]])


def test_a_histogram_is_in_steps_of_the_grid():
    grid = Encoding(np.float32(0.5), np.int64(0), "int8", qmin=-4, qmax=3)
    held = histogram(np.array([-3.0, -0.5, 0.0, 0.5, 1.5, 1.6, 9.0]), grid, of="float values")
    assert (held.below, held.above) == (pytest.approx(1 / 7), pytest.approx(1 / 7))
    assert (held.at_least, held.at_most) == (pytest.approx(1 / 7), pytest.approx(3 / 7))
    assert held.low == -6.5  # -3 / 0.5, and half a step
    assert held.high == 14.0  # 9 / 0.5 lies too far out: 1.5 grids are shown
    assert sum(held.counts) == 7


def test_codes_at_zero_are_not_saturated():
    held = histogram(np.array([0.0, 0.0, 1.0]), Encoding(np.float32(1), np.int64(0), "uint8"), of="float values")
    assert held.at_least == 0


def test_curves_are_read_from_a_log(tmp_path):
    (tmp_path / "log.csv").write_text("step,epoch,name,value\n1,0,loss,2.5\n2,0,loss,nan\n3,0,loss,1.5\n3,0,acc,")
    (curve,) = read_curves(tmp_path)
    assert (curve.name, curve.points) == ("loss", ((1.0, 2.5), (3.0, 1.5)))


def test_a_file_that_is_no_log_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text("a,b\n")
    with pytest.raises(ArtifactError, match="its first line is not"):
        read_curves(tmp_path / "log.csv")
    with pytest.raises(ArtifactError, match="read the log"):
        read_curves(tmp_path / "none.csv")


def test_what_reads_a_pool_reads_the_grid_before_it(tmp_path):
    """OpenVINO's file has no grid between a pool and what reads it: the engine hands the codes on."""
    data = images()
    prepared = detent.prepare(trained(), (data.calibration[:1],), backend="openvino")
    detent.calibrate(prepared, [data.calibration[:32]])
    nodes = collect(Artifact.load(detent.deploy(prepared, tmp_path / "out").folder)).nodes
    behind = [
        node for node, before in zip(nodes[1:], nodes, strict=False) if before.op == "MaxPool" and node.op == "Conv"
    ]
    assert [(node.weight_bits, node.activation_bits) for node in behind] == [(8, 8), (8, 8)]
