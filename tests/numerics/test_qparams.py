"""QParams refuse what no tensor can be quantized with."""

import math
from dataclasses import FrozenInstanceError

import pytest
import torch

from detent.errors import RangeError, TensorError
from detent.numerics import QParams


@pytest.mark.parametrize(
    "shape", [pytest.param((), id="scalar"), pytest.param((3,), id="channels"), pytest.param((0,), id="none")]
)
def test_symmetric_has_zero_points_of_zero_in_the_shape_of_the_scale(shape):
    qparams = QParams.symmetric(torch.full(shape, 0.5))
    assert qparams.zero_point.shape == shape
    assert qparams.zero_point.dtype == torch.int64
    assert not qparams.zero_point.any()
    assert torch.equal(qparams.scale, torch.full(shape, 0.5))


def test_it_is_frozen():
    with pytest.raises(FrozenInstanceError):
        QParams.symmetric(torch.tensor(1.0)).scale = torch.tensor(2.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_every_scale_is_finite_and_positive(scale, refuses):
    with refuses(RangeError, asked=f"scale [0.5, {scale}]", found="finite and positive", to_do="observed range"):
        QParams.symmetric(torch.tensor([0.5, scale]))


def test_a_subnormal_scale_is_positive():
    assert QParams.symmetric(torch.tensor(1e-45)).scale.item() > 0


def test_a_scale_is_a_real_number(refuses):
    with refuses(TensorError, asked="scale of dtype torch.int64", found="real numbers", to_do="float tensor"):
        QParams(torch.tensor(1), torch.tensor(0))


def test_a_zero_point_is_an_integer(refuses):
    with refuses(TensorError, asked="zero point of dtype torch.float32", found="codes", to_do="give integers"):
        QParams(torch.tensor(1.0), torch.tensor(0.0))


@pytest.mark.parametrize(
    "shape", [pytest.param((), id="scalar"), pytest.param((1,), id="one"), pytest.param((3, 1), id="column")]
)
def test_scale_and_zero_point_have_one_shape(shape, refuses):
    with refuses(TensorError, asked="scale of shape (3,)", found=f"zero point of shape {shape}", to_do="give both"):
        QParams(torch.ones(3), torch.zeros(shape, dtype=torch.int64))
