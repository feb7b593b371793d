"""Scales of K-quants: whole multiples of one float16 for each super-block, and offsets of the same kind."""

import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import (
    IntGrid,
    PerGroup,
    QParams,
    Scheme,
    choose_qparams,
    dequantize,
    fake_quantize,
    nearest_scale,
    quantize,
    super_block_scales,
)
from detent.quantizers import Fixed

K4 = Scheme(IntGrid(4, signed=False), symmetric=False, granularity=PerGroup(1, 32), scale="super6")
K6 = Scheme(IntGrid(6), granularity=PerGroup(1, 16), scale="super8")


@pytest.mark.parametrize(("kind", "count", "most"), [("super6", 8, 63), ("super8", 16, 127)])
@pytest.mark.parametrize("seed", range(3))
def test_scales_are_multiples_and_come_back(kind, count, most, seed):
    scale = torch.rand(4, 2 * count, generator=torch.Generator().manual_seed(seed)) / 100 + 1e-4
    found = nearest_scale(scale, kind)
    multiples, factor = super_block_scales(found, kind)
    assert multiples.shape == (4, 2, count)
    assert torch.equal((multiples * factor).flatten(-2), found)
    assert torch.equal(factor, factor.half().float())
    assert multiples.min() >= 1
    assert multiples.max() <= most
    assert torch.equal(multiples, multiples.round())
    step = scale.reshape(4, 2, count).amax(-1, keepdim=True) / most
    # Half a step, and what float16 takes from the factor; nothing is less than one step.
    assert ((found - scale).reshape(4, 2, count).abs() <= step * (0.5 + most * 2.0**-11 + 1)).all()


def test_float16_scales():
    scale = torch.tensor([0.1, 1e-9, 1e6])
    assert nearest_scale(scale, "float16").tolist() == [float(torch.tensor(0.1).half()), 2.0**-24, 65504.0]


def test_bfloat16_scales():
    scale = torch.tensor([0.1, 1e-45, 3.4e38])
    assert nearest_scale(scale, "bfloat16").tolist() == [0.10009765625, 2.0**-126, (2 - 2.0**-7) * 2.0**127]


def test_a_number_is_scale_times_code_minus_offset():
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(0))
    blocked = x.reshape(2, 8, 32)
    found = choose_qparams(blocked.amin(-1), blocked.amax(-1), K4)
    assert found.offset is not None
    assert not found.zero_point.any()
    codes = quantize(x, found, K4)
    assert codes.min() == 0
    assert codes.max() == 15
    real = codes.reshape(2, 8, 32).float() * found.scale[..., None] - found.offset[..., None]
    assert torch.equal(dequantize(codes, found, K4), real.reshape(2, 256))
    assert torch.equal(fake_quantize(x, found, K4), real.reshape(2, 256))
    assert (real - blocked).abs().max() <= 0.6 * found.scale.max()


def test_the_quantizer_gives_the_same_and_passes_the_gradient():
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(1)).requires_grad_()
    blocked = x.detach().reshape(2, 8, 32)
    found = choose_qparams(blocked.amin(-1), blocked.amax(-1), K4)
    quantizer = Fixed(K4, x.shape, role="weight")
    assert not quantizer.calibrated
    quantizer.initialize(found)
    values = quantizer(x)
    assert torch.equal(values, fake_quantize(x.detach(), found, K4))
    assert torch.equal(quantizer.codes(x), quantize(x.detach(), found, K4))
    values.sum().backward()
    assert x.grad.mean() > 0.99


def test_groups_are_those_of_the_format():
    with pytest.raises(SchemeError, match="use groups of 16"):
        Scheme(IntGrid(6), granularity=PerGroup(1, 32), scale="super8")
    with pytest.raises(SchemeError, match="use unsigned ones"):
        Scheme(IntGrid(4), symmetric=False, granularity=PerGroup(1, 32), scale="super6")
    assert Scheme.from_dict(K6.to_dict()) == K6
    assert (K4.group, K6.group, K4.has_offset, K6.has_offset) == (256, 256, True, False)
    assert QParams.symmetric(torch.ones(1)).offset is None
