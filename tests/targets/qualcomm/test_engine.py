"""Qualcomm's HTP emulator as an engine, and the arithmetic `htp` against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.artifact import Artifact
from detent.errors import DeployError, EngineError
from detent.ir import Package
from detent.recipes import Recipe
from detent.targets.qualcomm.arithmetic.htp import Htp
from detent.targets.qualcomm.engine import Qnn
from detent.twin import Twin
from detent.verification import Verdict
from detent.verification.against_engine import AgainstEngine
from tests.models import MODELS
from tests.twin.nets import Net, Style, mobilenet, resnet18, small_net

pytestmark = [
    pytest.mark.qnn,
    pytest.mark.skipif(Qnn.version() is None, reason="pip install 'detent[qnn]', in an environment of its own"),
]

# No output differs, whatever the scales.
EQUAL = [
    *("conv", "conv_relu", "conv_relu6", "conv_1x1", "conv_strided", "conv_dilated", "conv_grouped", "conv_5x5_deep"),
    *("conv_1d", "conv_3d", "conv_same", "conv_uneven", "conv_transpose", "depthwise", "depthwise_relu"),
    *("gemm", "gemm_relu", "gemm_plain", "matmul", "matmul_2d", "matmul_dynamic"),
    *("add", "add_relu", "add_channels", "add_constant", "add_row", "sub", "mul", "mul_relu", "mul_constant", "split"),
    *("avgpool", "gap", "mean", "relu", "sigmoid", "tanh", "hardswish", "hardsigmoid", "elu", "gelu"),
    *("maxpool", "pad", "resize_nearest", "depth_to_space", "moves", "requantized", "residual"),
]
# Before they are rounded, numbers are within 1/8 of a step of the real ones.
NEARLY = ["avgpool_padded", "avgpool_padded_counted", "clip", "leaky_relu", "mul_scalar"]
FITTED = ["concat", "layernorm", "resize_linear"]
# Of 16-bit codes.
WIDE = [
    *("conv", "conv_relu", "conv_1x1", "conv_strided", "conv_grouped", "conv_transpose", "depthwise"),
    *("gemm", "matmul", "matmul_2d", "concat"),
]
WIDE_EQUAL = ["add", "add_relu", "add_channels", "sub", "avgpool", "gap", "maxpool", "moves"]


def package(net: Net, folder: Path) -> Package:
    (folder / "model.onnx").write_bytes(net.model.SerializeToString())
    return Package(folder, {"files": {"model.onnx": ""}})


def distances(net: Net, folder: Path) -> np.ndarray:
    """How far the outputs of the twin are from the emulator's, in LSB."""
    deployed = package(net, folder)
    engine, twin = Qnn.load(deployed).run(net.feeds), Twin(deployed, Htp()).run(net.feeds)
    found = []
    for output in deployed.graph.outputs:
        grid = output.read.encoding
        found.append(np.abs(grid.quantize(engine[output.name]) - grid.quantize(twin[output.name])).reshape(-1))
    return np.concatenate(found)


@pytest.mark.parametrize("scales", ["random", "tie", "pot"])
@pytest.mark.parametrize("kind", EQUAL)
def test_equal(kind, scales, tmp_path):
    assert not distances(small_net(kind, Style(batch=1, scales=scales, seed=1)), tmp_path).any()


@pytest.mark.parametrize("scales", ["random", "tie", "pot"])
@pytest.mark.parametrize("network", [resnet18, mobilenet])
def test_a_whole_network_is_equal(network, scales, tmp_path):
    """ResNet-18 at 224 pixels was equal in 6 of 6, in a minute."""
    assert not distances(network(Style(batch=1, scales=scales, seed=2), size=96), tmp_path).any()


@pytest.mark.parametrize("scales", ["random", "tie", "pot"])
@pytest.mark.parametrize("kind", NEARLY)
def test_rounded_from_near_the_real_number(kind, scales, tmp_path):
    net = small_net(kind, Style(batch=1, scales=scales, seed=1))
    deployed = package(net, tmp_path)
    engine, twin = Qnn.load(deployed), Twin(deployed, Htp())
    made = engine.run(net.feeds)
    outputs = {o.read.tensor: o.read.encoding.quantize(made[o.name]) for o in deployed.graph.outputs}
    against = AgainstEngine(twin)
    against.add(net.feeds, engine.tensors(net.feeds), list(outputs.items()), {})
    assert {step.off for step in twin.steps} == {0, 1 / 8}
    assert not any(found.impossible for found in against.tally.differences)


@pytest.mark.parametrize("scales", ["random", "tie", "pot"])
@pytest.mark.parametrize("kind", FITTED)
def test_within_one_lsb(kind, scales, tmp_path):
    assert distances(small_net(kind, Style(batch=1, scales=scales, seed=1)), tmp_path).max() <= 1


@pytest.mark.parametrize("scales", ["random", "tie", "pot"])
@pytest.mark.parametrize("kind", WIDE)
def test_16_bits_are_within_one_lsb(kind, scales, tmp_path):
    net = small_net(kind, Style(activation="uint16", batch=1, scales=scales, seed=1))
    assert distances(net, tmp_path).max() <= 1


@pytest.mark.parametrize("scales", ["random", "tie", "pot"])
@pytest.mark.parametrize("kind", WIDE_EQUAL)
def test_these_are_equal_with_16_bits_too(kind, scales, tmp_path):
    net = small_net(kind, Style(activation="uint16", batch=1, scales=scales, seed=1))
    assert not distances(net, tmp_path).any()


def through(model: nn.Module, x: Tensor, folder: Path) -> Verdict:
    prepared = detent.prepare(model.eval(), (x,), backend="qnn")
    detent.calibrate(prepared, [(x,)])
    return detent.deploy(prepared, folder / "out").verify([x], latency=False)


@pytest.mark.parametrize(("kernel", "stride", "size"), [(3, 2, 10), (2, 2, 9), (3, 2, 9)])
def test_an_average_pool_that_hangs_over_the_edge_is_within_one_lsb(kernel, stride, size, tmp_path):
    """With `ceil_mode` the emulator is up to 147 off; it is deployed with padding."""
    torch.manual_seed(0)
    pool = nn.AvgPool2d(kernel, stride, ceil_mode=True)
    verdict = through(
        nn.Sequential(nn.Conv2d(3, 8, 3), pool, nn.Conv2d(8, 4, 1)), torch.randn(1, 3, size, size), tmp_path
    )
    assert verdict.holds
    assert max(each.most for each in verdict.tensors if each.what == "twin vs engine") <= 1


def test_one_that_is_padded_as_well_is_refused(tmp_path):
    pool = nn.AvgPool2d(3, 2, padding=1, ceil_mode=True)
    with pytest.raises(DeployError, match="reach beyond the padding"):
        through(nn.Sequential(nn.Conv2d(3, 8, 3), pool), torch.randn(1, 3, 12, 12), tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(2),
        nn.AvgPool2d(4),
        nn.AvgPool2d(8),
        nn.AvgPool2d(2, padding=1, count_include_pad=False),
        nn.AvgPool2d(3, 1, padding=1),
        nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
        nn.AvgPool2d(5, 3),
    ],
    ids=str,
)
def test_average_pools_in_the_forms_they_are_deployed_in(pool, tmp_path):
    """Some are up to 255 off in other forms."""
    torch.manual_seed(0)
    verdict = through(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), pool), torch.randn(1, 3, 16, 16), tmp_path)
    assert verdict.holds, verdict
    assert max(each.most for each in verdict.tensors if each.what == "twin vs engine") <= 1


def compared(verdict: Verdict) -> tuple[int, int]:
    """How many tensors were compared inside, and how many of their codes differ."""
    found = [each for each in verdict.tensors if each.what == "twin vs engine"]
    return len(found), sum(each.differing for each in found)


@pytest.mark.parametrize(
    "name",
    [
        *("resnet18", "resnet50", "resnet20", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_lite0", "regnetx"),
        *("unet", "residual_cnn", "mobile_cnn", "reused_module", "conv1d_3d", "linear_bn", "conv_transpose_bn"),
        "functional_ops",
    ],
)
def test_a_deployed_network_is_equal(name, tmp_path):
    torch.manual_seed(0)
    inputs = tuple(x[:1] for x in MODELS[name].inputs())
    prepared = detent.prepare(MODELS[name].build().eval(), inputs, backend="qnn")
    detent.calibrate(prepared, [inputs])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([inputs], latency=False)
    tensors, differing = compared(verdict)
    assert tensors > 1
    assert differing == 0
    assert all(each.equal for each in verdict.outputs if each.what == "twin vs engine")
    assert verdict.holds
    assert not verdict.in_float


@pytest.mark.parametrize("name", ["vit_block", "vit_small", "yolo_head", "transformer_block"])
def test_a_deployed_network_with_float_inside_is_within_one_lsb(name, tmp_path):
    torch.manual_seed(0)
    (x,) = MODELS[name].inputs()
    verdict = through(MODELS[name].build(), x[:1], tmp_path)
    found = [each for each in verdict.tensors if each.what == "twin vs engine"]
    assert verdict.holds, verdict
    assert max(each.most for each in found) <= 1
    assert sum(each.differing for each in found) <= 0.01 * sum(each.elements for each in found)


def deployed(name: str, folder: Path, **asked: Any) -> tuple[Artifact, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    inputs = tuple(x[:1] for x in MODELS[name].inputs())
    prepared = detent.prepare(MODELS[name].build().eval(), inputs, backend="qnn", **asked)
    detent.calibrate(prepared, [inputs])
    return detent.deploy(prepared, folder / "out"), inputs


@pytest.mark.parametrize(
    ("name", "on_host"),
    [
        ("bert_encoder", ["Cast", "Reshape", "Sub", "Mul", "Shape", "Expand"]),
        ("lstm_tagger", ["Gather", "LSTM"]),
    ],
)
def test_what_the_htp_does_not_take_runs_beside_it(name, on_host, tmp_path):
    """The mask of a transformer, and a recurrent layer with the table before it."""
    artifact, inputs = deployed(name, tmp_path)
    verdict = artifact.verify([inputs], latency=False)
    assert verdict.holds, verdict
    assert max(each.most for each in verdict.tensors if each.what == "twin vs engine") <= 1
    placed = Qnn.load(artifact).explain()
    beside = [each.kind for each in placed if each.why == "on the CPU: the HTP does not take it"]
    assert set(on_host) <= set(beside)
    assert "MatMul" not in beside


@pytest.mark.parametrize("name", ["resnet18", "resnet20", "mobilenet_v2", "residual_cnn", "unet"])
def test_a_deployed_network_of_16_bits_is_within_one_lsb(name, tmp_path):
    wide = Recipe.from_dict({"name": "wide", "activation": {"bits": 16}})
    artifact, inputs = deployed(name, tmp_path, recipe=wide)
    verdict = artifact.verify([inputs], latency=False)
    found = [each for each in verdict.tensors if each.what == "twin vs engine"]
    assert verdict.holds, verdict
    assert max(each.most for each in found) <= 1
    assert sum(each.differing for each in found) <= 0.01 * sum(each.elements for each in found)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_a_transposed_convolution_is_equal(groups, bias, tmp_path):
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(8, 16, 3, 2, 1, output_padding=1, groups=groups, bias=bias)
    verdict = through(layer, torch.randn(1, 8, 6, 5), tmp_path)
    assert verdict.holds
    assert compared(verdict) == (1, 0)


class WithNumbers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.maximum(x * 0.37 - 0.2, torch.tensor(-0.5))
        return (1.3 - y / 2.9) * -1.7


def test_numbers_are_equal(tmp_path):
    torch.manual_seed(0)
    verdict = through(WithNumbers(), torch.randn(1, 3, 16, 16), tmp_path)
    tensors, differing = compared(verdict)
    assert verdict.holds
    assert tensors == 6
    assert differing == 0


def test_outputs_by_name_and_free_batch(tmp_path):
    net = small_net("conv_relu", Style(batch=2))
    engine = Qnn.load(package(net, tmp_path))
    both, one = engine.run(net.feeds), engine.run({"x": net.feeds["x"][:1]})
    assert list(both) == ["relu2_dequantized"]
    assert np.array_equal(both["relu2_dequantized"][:1], one["relu2_dequantized"])


def test_all_of_it_runs_on_integers(tmp_path):
    found = Qnn.load(package(small_net("residual", Style(batch=1)), tmp_path)).explain()
    assert {placed.ran_as for placed in found} == {"integer"}
    assert len(found) == 10


def test_a_convolution_whose_weights_are_not_quantized_is_no_integer_one(tmp_path):
    """The HTP takes it all the same."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    recipe = Recipe.from_dict({"name": "part", "rules": [{"match": {"name": "2"}, "quantize": False}]})
    x = torch.randn(1, 3, 12, 12)
    prepared = detent.prepare(net.eval(), (x,), backend="qnn", recipe=recipe)
    detent.calibrate(prepared, [(x,)])
    placed = Qnn.load(detent.deploy(prepared, tmp_path / "out")).explain()
    assert [each.ran_as for each in placed] == ["integer", "integer", "float", "float", "integer"]
    assert {each.why for each in placed if each.ran_as == "float"} == {"its constant '2.weight' is not quantized"}


def test_tensors_are_codes_and_showing_them_does_not_change_the_outputs(tmp_path):
    net = small_net("residual", Style(batch=1))
    deployed = package(net, tmp_path)
    engine = Qnn.load(deployed)
    outputs, inside = engine.run(net.feeds), engine.tensors(net.feeds)
    output = deployed.graph.outputs[0]
    assert set(inside) == {"relu2", "conv3", "relu5", "relu7", "globalaveragepool8", "flatten9", "gemm10"}
    assert {str(codes.dtype) for codes in inside.values()} == {"uint8"}
    assert np.array_equal(output.read.encoding.quantize(outputs[output.name]), inside["gemm10"])


def test_a_float_network_runs_unrounded(tmp_path):
    net = small_net("conv", Style(batch=1))
    engine = Qnn.load(package(net, tmp_path), as_float=True)
    assert np.unique(engine.run(net.feeds)["conv1_dequantized"]).size > 256
    assert engine.tensors(net.feeds) == {}
    assert {placed.ran_as for placed in engine.explain()} == {"float"}


def test_a_network_of_which_the_htp_takes_nothing_is_refused(tmp_path):
    """A convolution whose output is not quantized, and what reads that."""
    net = small_net("float_add", Style(batch=1))
    with pytest.raises(EngineError, match="the HTP takes none of its operations"):
        Qnn.load(package(net, tmp_path)).run(net.feeds)


def test_other_inputs_are_refused(tmp_path):
    with pytest.raises(EngineError, match="the network takes x"):
        Qnn.load(package(small_net("conv"), tmp_path)).run({"image": np.zeros((1, 16, 10, 10))})
