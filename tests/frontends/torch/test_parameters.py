"""What is in the file is what was simulated, bit for bit: scales, zero points, codes of weights and biases."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from detent.deployment import deployment_of
from detent.errors import DeployError
from detent.frontends.torch.parameters import activation_encoding, encoding_of
from detent.graph import quantizers_of
from detent.ir import Encoding
from detent.numerics import IntGrid, PerChannel, PerGroup, PerTensor, QParams, Scheme
from detent.quantizers import QUANTIZERS, Fixed, Pact, Qil
from detent.recipes import Recipe
from tests.deployment.float_path import float_path, initializer, node, prepared_for


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)
        self.fc = nn.Linear(8, 16)
        self.last = nn.Linear(16, 8)

    def forward(self, x: Tensor):
        return self.last(torch.relu(self.fc(torch.relu(self.conv(x)).mean((2, 3)))))


def deployed(backend: str = "academic", **roles):
    torch.manual_seed(0)
    x = torch.randn(4, 4, 6, 6)
    prepared = prepared_for(Net(), (x,), backend, recipe=Recipe.from_dict({"name": "mine", **roles}))
    with torch.no_grad():
        for quantizer in quantizers_of(prepared):
            # As if trained: what is learned is not what was measured.
            for parameter in quantizer.parameters():
                parameter.mul_(1.03125)
    return prepared, deployment_of(prepared), x


def encoding_in(deployment, name: str) -> Encoding:
    reads = [read for op in deployment.graph.ops for read in op.inputs if read is not None]
    return next(read.encoding for read in reads if read.tensor == name)


SYMMETRIC = {"symmetric": True}
WIDTHS = {
    "int8-per-tensor": {"bits": 8, "granularity": "per_tensor", "narrow": False, **SYMMETRIC},
    "int8-narrow-per-channel": {"bits": 8, "granularity": "per_channel", "narrow": True, **SYMMETRIC},
    "int4-groups": {"bits": 4, "granularity": {"per_group": 4}, "narrow": False, **SYMMETRIC},
    "int4-narrow-per-channel": {"bits": 4, "granularity": "per_channel", "narrow": True, **SYMMETRIC},
    "int16-per-tensor": {"bits": 16, "granularity": "per_tensor", "narrow": False, **SYMMETRIC},
    "int3-affine-per-channel": {"bits": 3, "granularity": "per_channel", "narrow": False, "symmetric": False},
}
TYPES = {"int4-groups": onnx.TensorProto.INT4, "int16-per-tensor": onnx.TensorProto.INT16}

METHODS = [name for name in QUANTIZERS if name not in ("apot", "log", "seq")]  # which have grids that ONNX has not
REFUSED = {  # by the recipe, before anything runs: what a method has no meaning for
    *((name, width) for name in ("pact", "qdrop", "tqt") for width in WIDTHS),
    ("qil", "int4-groups"),
    *((name, "int3-affine-per-channel") for name in ("dorefa", "qil")),
}
CASES = [(name, width) for name in METHODS for width in WIDTHS if (name, width) not in REFUSED]


@pytest.mark.pairwise(goals=lambda name, width: [name, width])
@pytest.mark.parametrize(("name", "width"), CASES)
def test_a_weight_is_stored_as_the_codes_of_its_quantizer(name, width):
    prepared, deployment, x = deployed(weight={"quantizer": name, **WIDTHS[width]})
    onnx.checker.check_model(deployment.model, full_check=True)
    for path in ("conv", "fc", "last"):
        module = prepared.get_submodule(path)
        holder = module.parametrizations.weight
        qparams, stored = holder[0].qparams(), f"{path}.weight_quantized"
        codes = initializer(deployment.model, stored).astype(np.int64)
        assert np.array_equal(codes, holder[0].codes(holder.original).numpy())
        found = encoding_in(deployment, f"{path}.weight")
        assert np.array_equal(found.scale, qparams.scale.detach().numpy())
        assert np.array_equal(found.zero_point, qparams.zero_point.numpy())
        assert np.array_equal(found.dequantize(codes), module.weight.detach().numpy())
    held = next(i for i in deployment.model.graph.initializer if i.name == "fc.weight_quantized")
    assert held.data_type == TYPES.get(width, onnx.TensorProto.INT8)
    with torch.no_grad():
        # Float32 sums in another order; nothing lies on a tie here.
        np.testing.assert_allclose(float_path(deployment.model, [x])[0], prepared(x).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("adaround", "qil")])
def test_an_activation_has_the_scale_and_the_codes_of_its_quantizer(name, bits):
    scale = "power_of_two" if name == "tqt" else "float"
    prepared, deployment, x = deployed(activation={"quantizer": name, "bits": bits, "scale": scale})
    quantizer = prepared.get_submodule("activation_quantizers.x")
    qparams = quantizer.qparams()
    assert np.array_equal(initializer(deployment.model, "x_scale"), qparams.scale.detach().numpy())
    assert np.array_equal(initializer(deployment.model, "x_zero_point"), qparams.zero_point.numpy())
    assert initializer(deployment.model, "x_scale").shape == ()
    found = encoding_in(deployment, "x")
    wide = np.concatenate([x.numpy().ravel() * 4, [1e6, -1e6]]).astype(np.float32)
    assert np.array_equal(found.quantize(wide), quantizer.codes(torch.from_numpy(wide)).numpy())
    with torch.no_grad():
        wanted = prepared(x * 4).numpy()
    np.testing.assert_allclose(float_path(deployment.model, [x * 4])[0], wanted, rtol=1e-4, atol=1e-5)


def test_a_bias_is_stored_on_the_scale_of_the_accumulator():
    """f32(input scale * weight scale), as engines compute it, and the codes on it."""
    prepared, deployment, _ = deployed("onnxruntime")
    conv = prepared.get_submodule("conv")
    of_weight = conv.parametrizations.weight[0].qparams().scale
    of_input = prepared.get_submodule("activation_quantizers.x").qparams().scale
    scale = initializer(deployment.model, "conv.bias_scale")
    assert scale.dtype == np.float32
    assert np.array_equal(scale, (of_input * of_weight).detach().numpy())
    codes = initializer(deployment.model, "conv.bias_quantized")
    assert codes.dtype == np.int32
    bias = conv.parametrizations.bias.original.detach().double().numpy()
    assert np.array_equal(codes, np.rint(bias / scale.astype(np.float64)))
    found = encoding_in(deployment, "conv.bias").dequantize(codes)
    assert np.array_equal(found, conv.bias.detach().numpy())


def test_a_float_bias_is_stored_as_it_is():
    prepared, deployment, _ = deployed("openvino")
    assert np.array_equal(
        initializer(deployment.model, "conv.bias"), prepared.get_submodule("conv").bias.detach().numpy()
    )


@pytest.mark.parametrize("grid", ["apot", "log"])
def test_a_weight_that_onnx_has_no_grid_for_is_float_on_its_grid_and_said(grid):
    prepared, deployment, _ = deployed(weight={"quantizer": grid, "grid": grid, "bits": 5 if grid == "apot" else 8})
    module = prepared.get_submodule("fc")
    assert np.array_equal(initializer(deployment.model, "fc.weight"), module.weight.detach().numpy())
    assert any(note.startswith("fc.weight: model.onnx has no") for note in deployment.notes)


def test_a_rounding_that_onnx_has_not_is_said():
    _, deployment, _ = deployed("vitis")
    assert list(deployment.notes) == [
        "QuantizeLinear rounds half to even; this target rounds half_away",
        "QuantizeLinear rounds half to even; this target rounds half_up",
    ]


# ---- encodings ----


def scheme(bits: int, granularity=None, **options) -> Scheme:
    grid = IntGrid(bits, signed=options.pop("signed", True), narrow=options.pop("narrow", False))
    return Scheme(grid, granularity=granularity or PerTensor(), **options)


@pytest.mark.parametrize(
    ("bits", "signed", "dtype"), [(2, True, "int8"), (6, False, "uint8"), (8, True, "int8"), (9, False, "uint16")]
)
def test_codes_are_stored_in_the_smallest_type_that_engines_have(bits, signed, dtype):
    found = encoding_of(scheme(bits, signed=signed), QParams.symmetric(torch.tensor(0.5)))
    assert found.dtype == dtype
    assert (found.qmin, found.qmax) == (IntGrid(bits, signed=signed).qmin, IntGrid(bits, signed=signed).qmax)


def test_four_bits_in_groups_are_stored_in_four():
    grouped = encoding_of(scheme(4, PerGroup(1, 4)), QParams.symmetric(torch.ones(2, 3)))
    assert (grouped.dtype, grouped.axis, grouped.block) == ("int4", 1, 4)
    along = encoding_of(scheme(4, PerChannel(0)), QParams.symmetric(torch.ones(2)))
    assert (along.dtype, along.axis, along.block) == ("int8", 0, None)


def calibrated(kind, grid: IntGrid, scale: float = 0.5):
    made = kind(Scheme(grid), (1,), name="x")
    made.initialize(QParams.symmetric(torch.tensor(scale)))
    return made


def test_codes_that_a_quantizer_never_gives_are_left_out():
    """PACT clips alike on both sides: -128 never comes out, and a plain QuantizeLinear would give it."""
    assert activation_encoding(calibrated(Fixed, IntGrid(8))).qmin == -128
    assert activation_encoding(calibrated(Pact, IntGrid(8))).qmin == -127
    assert activation_encoding(calibrated(Pact, IntGrid(8, signed=False))).qmin == 0


def test_a_quantizer_that_moves_values_first_is_refused():
    """QIL prunes what lies below its interval, when it has learned one."""
    qil = calibrated(Qil, IntGrid(8))
    assert activation_encoding(qil).qmin == -127
    with torch.no_grad():
        qil.distance.mul_(0.5)
    with pytest.raises(DeployError, match="deploy 'x', which Qil quantizes"):
        activation_encoding(qil)


def test_a_narrow_activation_is_clipped_before_it_is_quantized():
    """ONNX has no bounds in a QuantizeLinear; the Clip is read back as part of the encoding."""
    _, deployment, _ = deployed(activation={"bits": 6, "symmetric": True, "narrow": True, "signed": True})
    pooled = node(deployment.model, node(deployment.model, "fc").input[0].replace("_dequantized", "_clipped"))
    assert pooled.op_type == "Clip"
    found = encoding_in(deployment, pooled.input[0])
    assert (found.dtype, found.qmin, found.qmax) == ("int8", -31, 31)
    assert "Clip" not in {op.type for op in deployment.graph.ops}
