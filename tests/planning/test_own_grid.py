"""A kind of grid that the library has not: from a target's offer to the deployed files, without a change in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import detent
from detent import numerics
from detent.numerics import GRIDS, Grid, QParams, Requirement, Scheme
from detent.planning import SupportedSchemes
from detent.quantizers import QUANTIZERS, Quantizer, plain_quantizer, straight_through
from detent.retargeting.numbers import ends
from detent.targets import BACKENDS

VALUES = torch.tensor([-6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@dataclass(frozen=True)
class Float4(Grid):
    """The fifteen numbers of E2M1, in rising order."""

    bits: int = 4

    signed = True
    signs = (True,)
    usual_bits = 4

    @classmethod
    def of(cls, bits, *, signed, narrow):  # noqa: ARG003
        return cls(bits)

    @property
    def name(self):
        return "float4"

    @property
    def qmin(self):
        return 0

    @property
    def qmax(self):
        return 14

    @property
    def storage_dtype(self):
        return torch.uint8

    def encode(self, values, zero_point, rounding):
        return torch.bucketize(values, (VALUES[1:] + VALUES[:-1]) / 2).to(values.dtype)

    def decode(self, codes, zero_point):
        return VALUES.to(codes.dtype)[codes.long()]

    def symmetric_scale(self, low, high):
        return torch.maximum(-low, high) / 6

    def ends(self, zero_point):
        six = torch.full_like(zero_point, 6)
        return -six, six


class Float4Quantizer(Quantizer):
    requires = Requirement(grids=(Float4,), because="its values are floats of 4 bits")
    plain = True

    def __init__(self, scheme, shape, *, role="activation", name="tensor"):
        super().__init__(scheme, shape, role=role, name=name)
        self.register_buffer("scale", self._unset())

    def _initialize(self, observed):
        self.scale.copy_(observed.scale)

    def qparams(self):
        return QParams.symmetric(self.scale)

    def _fake_quantize(self, x):
        return straight_through(numerics.fake_quantize(x, self.qparams(), self.scheme), x)


@pytest.fixture
def target(monkeypatch):
    monkeypatch.setitem(GRIDS, "float4", Float4)
    detent.quantizers.register("float4", Float4Quantizer)
    weights = SupportedSchemes(grids=(Float4,), bits=(4,))
    return replace(BACKENDS["academic"], name="float4_chip", weight=weights, first_last_bits=None)


@pytest.mark.usefixtures("target")
def test_a_scheme_of_it_goes_to_json_and_back():
    scheme = Scheme(Float4())
    assert str(scheme) == "float4 symmetric per-tensor"
    assert Scheme.from_dict(scheme.to_dict()) == scheme
    assert plain_quantizer(Float4()) == "float4"
    assert ends(scheme, QParams.symmetric(torch.tensor(0.5))) == (-3.0, 3.0)
    assert QUANTIZERS["float4"] is Float4Quantizer


def test_a_network_with_weights_on_it_is_prepared_calibrated_and_deployed(target, tmp_path):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 3)).eval(), torch.randn(2, 4)
    prepared = detent.prepare(net, (x,), backend=target, recipe="ptq")
    detent.calibrate(prepared, [x])
    (entry,) = [entry for entry in prepared.plan.quantized if entry.role == "weight"]
    assert (str(entry.scheme), entry.quantizer) == ("float4 symmetric per-tensor", "float4")
    weight = next(one for one in prepared.modules() if isinstance(one, Float4Quantizer))
    steps = prepared.get_submodule("0").weight / weight.qparams().scale
    assert bool((steps[..., None] - VALUES).abs().min(-1).values.max() < 1e-5)
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert any("model.onnx has no float4 symmetric per-tensor" in note for note in artifact.manifest["notes"])
