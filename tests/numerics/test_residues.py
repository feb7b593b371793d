"""One byte an element for the gradient of a scale, and a learned step in one autograd node."""

import pytest
import torch

from detent.numerics import Inside, Rounding, fused_fake_quantize, keep_residues, learned_step, native, scale_gradient

compiled = pytest.mark.skipif(native.library() is None, reason="residues are kept by the compiled kernels")


def gradients(values, *, blocks, inside=Inside.BY_ROUNDED, rounding=Rounding.HALF_EVEN):
    x = values.clone().requires_grad_()
    scale, lo, hi = (torch.tensor(v, requires_grad=True) for v in (0.5, -2.0, 1.0))
    if blocks:
        with keep_residues():
            y = fused_fake_quantize(x * 1, scale, lo, hi, inside=inside, rounding=rounding)
    else:
        y = fused_fake_quantize(x * 1, scale, lo, hi, inside=inside, rounding=rounding)
    weights = torch.linspace(-1, 2, values.numel()).reshape(values.shape)
    (y * weights).sum().backward()
    return y.detach(), x.grad, scale.grad, lo.grad, hi.grad, weights


@compiled
def test_a_residue_is_a_252nd_of_a_step():
    x, scale = torch.tensor([-0.3, 0.6, 5.0, -5.0], requires_grad=True), torch.tensor(0.5, requires_grad=True)
    with keep_residues():
        y = fused_fake_quantize(x * 1, scale, torch.tensor(-2.0), torch.tensor(1.0))
    assert y.tolist() == [-0.5, 0.5, 0.5, -1.0]
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 0.0, 0.0]
    # -0.4 and -0.2 of a step are -101 and -50; then hi and lo.
    assert scale.grad.item() == pytest.approx((-101 - 50) / 252 + 1 - 2)


@compiled
@pytest.mark.parametrize("inside", Inside)
@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.HALF_TOWARD_ZERO])
def test_only_the_gradient_of_the_scale_is_rounded(inside, rounding):
    values = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0))
    exact = gradients(values, blocks=False, inside=inside, rounding=rounding)
    kept = gradients(values, blocks=True, inside=inside, rounding=rounding)
    assert torch.equal(exact[0], kept[0])
    assert torch.equal(exact[1], kept[1])
    for one, other in zip(exact[3:5], kept[3:5], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=0.0)  # float32 sums in another order
    assert exact[2] != kept[2]
    assert (exact[2] - kept[2]).abs() <= exact[5].abs().sum() / 504 + 1e-3  # sums of 15,000 float32


@compiled
def test_there_is_no_second_derivative_from_residues():
    x, scale = torch.ones(3, requires_grad=True), torch.tensor(0.3, requires_grad=True)
    with keep_residues():
        y = fused_fake_quantize(x * 1, scale, torch.tensor(-8.0), torch.tensor(7.0))
    (slope,) = torch.autograd.grad(y.square().sum(), scale, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.backward()


def test_a_parameter_keeps_itself():
    weight, scale = torch.tensor([0.4], requires_grad=True), torch.tensor(1.0, requires_grad=True)
    with keep_residues():
        fused_fake_quantize(weight, scale, torch.tensor(-8.0), torch.tensor(7.0)).sum().backward()
    assert scale.grad.item() == pytest.approx(-0.4)


def test_a_learned_step_is_the_chain_of_its_operations():
    tiny = torch.finfo(torch.float32).tiny
    raw = torch.tensor([0.3, -0.7, 0.0, -tiny / 2, tiny, 2.0])
    one, other = raw.clone().requires_grad_(), raw.clone().requires_grad_()
    step, chain = learned_step(one, 0.37), scale_gradient(other.abs().clamp_min(tiny), 0.37)
    assert torch.equal(step, chain)
    weights = torch.tensor([1.1, -2.3, 0.7, 0.9, 1.3, 3.1])
    (step * weights).sum().backward()
    (chain * weights).sum().backward()
    assert torch.equal(one.grad, other.grad)
