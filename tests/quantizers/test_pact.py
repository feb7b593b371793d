"""PACT: forward and gradients of Choi et al., 2018."""

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, QParams, Scheme
from detent.quantizers import Pact

SHAPE = (4, 8, 6)


def calibrated(scheme, qparams, shape=SHAPE, **options):
    quantizer = Pact(scheme, shape, **options)
    quantizer.initialize(qparams)
    return quantizer


def ends(scheme, truth):
    """The codes in use: a signed symmetric range is [-a, a], so its least code is -qmax."""
    low, high = truth.ends(scheme.grid)
    return (-high, high) if scheme.symmetric and scheme.grid.signed else (low, high)


def test_forward_and_codes(scheme, example, truth):
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    expected = truth.codes(case.x, case.qparams.scale, case.qparams.zero_point, scheme, ends(scheme, truth))
    found = q.qparams()
    # The clip is stored, not the scale. It is never below 1e-6, which shows where the whole range is negative.
    assert torch.allclose(found.scale, case.qparams.scale, rtol=2e-5, atol=0)
    assert torch.equal(found.zero_point, case.qparams.zero_point)
    values = truth.values(expected, found.scale, found.zero_point, scheme)
    assert torch.equal(q(case.x), values)
    assert torch.equal(q.eval()(case.x), values)
    assert values.flatten()[0] == 0
    truth.assert_on_grid(values, found, scheme)
    assert np.array_equal(q.codes(case.x).numpy(), expected)


def test_gradients(scheme, example, truth, close):
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    q(case.x).backward(case.g)
    low, high = (end - case.zero_point for end in ends(scheme, truth))
    inside = (low < case.v) & (case.v < high)
    assert 0 < inside.sum() < inside.size
    assert torch.equal(case.x.grad, case.g * torch.tensor(inside))
    g = case.g.numpy()
    above, below = g * (~inside & (case.v >= high)), g * (~inside & (case.v <= low))
    if scheme.symmetric:
        assert q.lower_clip is None
        expected = above - below if scheme.grid.signed else above
    else:
        expected = above
        close(q.lower_clip.grad, truth.total(below, scheme), size=truth.total(np.abs(g), scheme))
    close(q.clip.grad, truth.total(expected, scheme), size=truth.total(np.abs(g), scheme))


def test_literal():
    q = calibrated(Scheme(IntGrid(2, signed=False)), QParams.symmetric(torch.tensor(2.0)))  # a = 6: 0, 2, 4, 6
    assert q.clip.item() == 6.0
    x = torch.tensor([-1.0, 0.9, 3.1, 5.9, 6.0, 9.0], requires_grad=True)
    y = q(x)
    assert y.tolist() == [0, 0, 4, 6, 6, 6]
    y.sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 0, 0]
    assert q.clip.grad.item() == 2.0


def test_the_clip_is_the_scale():
    q = calibrated(Scheme(IntGrid(4, signed=False)), QParams.symmetric(torch.tensor(0.4)))
    with torch.no_grad():
        q.clip.fill_(3.0)
    assert q.qparams().scale.item() == pytest.approx(0.2)
    assert q(torch.tensor([9.0])).item() == pytest.approx(3.0)


def test_an_affine_scheme_learns_both_ends():
    q = calibrated(Scheme(IntGrid(8), symmetric=False), QParams(torch.tensor(1.0), torch.tensor(-28)))  # [-100, 155]
    assert (q.lower_clip.item(), q.clip.item()) == (-100.0, 155.0)
    with torch.no_grad():
        q.lower_clip.fill_(-55.0)
        q.clip.fill_(200.0)
    assert (q.qparams().scale.item(), q.qparams().zero_point.item()) == (1.0, -73)
    x = torch.tensor([-60.0, 300.0, 300.0, 10.2])
    y = q(x)
    assert y.tolist() == [-55.0, 200.0, 200.0, 10.0]
    y.sum().backward()
    assert (q.lower_clip.grad.item(), q.clip.grad.item()) == (1.0, 2.0)


def test_calibration_keeps_the_power_of_two_of_a_range_below_zero():
    """[-15/64, 0]: a little more of it, and the next power of two would be twice the scale."""
    scheme = Scheme(IntGrid(4), symmetric=False, scale="power_of_two")
    q = calibrated(scheme, QParams(torch.tensor(2.0**-6), torch.tensor(7)))
    assert q.qparams().scale.item() == 2.0**-6


@pytest.mark.parametrize("clip", [0.0, -3.0], ids=["zero", "negative"])
@pytest.mark.parametrize(
    "scheme",
    [
        Scheme(IntGrid(8, signed=False)),
        Scheme(IntGrid(8)),
        Scheme(IntGrid(8, signed=False), symmetric=False),
        Scheme(IntGrid(8), scale="power_of_two"),
    ],
    ids=lambda scheme: str(scheme).replace(" ", "-"),
)
def test_a_clip_driven_past_zero_stays_usable_and_comes_back(scheme, clip):
    q = calibrated(scheme, QParams.symmetric(torch.tensor(0.1)))
    with torch.no_grad():
        q.clip.fill_(clip)
        if q.lower_clip is not None:
            q.lower_clip.fill_(1.0)
    assert q.qparams().scale.item() > 0
    y = q(torch.tensor([0.0, 5.0]))
    assert torch.isfinite(y).all()
    assert y[0] == 0
    (-y.sum()).backward()  # a loss that wants larger outputs
    torch.optim.SGD([q.clip], lr=5.0).step()
    assert q.clip.item() == pytest.approx(clip + 5.0)


def test_weight_decay_pulls_the_clip_in_and_the_loss_pushes_it_out():
    """The two forces of the paper (section 3) settle where clipping costs as much as the regularizer."""
    torch.manual_seed(0)
    x = torch.rand(1000) * 4
    q = calibrated(Scheme(IntGrid(4, signed=False)), QParams.symmetric(torch.tensor(20 / 15)))
    optimizer = torch.optim.SGD(q.parameters(), lr=0.5, weight_decay=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        (q(x) - x).square().mean().backward()
        optimizer.step()
    # d/da of the clipping error of a uniform [0, 4] is -(4 - a)^2 / 4; the decay is 0.05 a.
    assert abs((4 - q.clip.item()) ** 2 / 4 - 0.05 * q.clip.item()) < 0.05
    assert 2 < q.clip.item() < 4


def test_weights_and_32_bits_are_refused(refuses):
    with refuses(SchemeError, asked="'Pact' for 'w' in the role 'weight'", found="activation", to_do="another method"):
        Pact(Scheme(IntGrid(8)), (4,), role="weight", name="w")
    with refuses(SchemeError, asked="int32", found="at most 16 bits", to_do="scheme"):
        Pact(Scheme(IntGrid(32)), (4,))
