"""One value in the forward pass, the gradient of another in the backward pass."""

import pytest
import torch

from detent.quantizers import straight_through


def test_the_value_is_bit_for_bit_where_adding_a_difference_is_not():
    surrogate = torch.tensor([1e8, 0.1, -3e-8], requires_grad=True)
    value = torch.tensor([1.0, 0.3, 7.0])
    assert not torch.equal(surrogate + (value - surrogate).detach(), value)
    assert torch.equal(straight_through(value, surrogate), value)


def test_the_gradient_goes_to_the_surrogate_alone():
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    surrogate = torch.tensor([0.3, 0.4], requires_grad=True)
    straight_through(value, surrogate**2).backward(torch.tensor([1.0, -2.0]))
    assert value.grad is None
    assert torch.allclose(surrogate.grad, torch.tensor([0.6, -1.6]))  # 2 x: a float32 product


def test_the_output_does_not_share_memory_with_the_value():
    value, surrogate = torch.zeros(2), torch.zeros(2, requires_grad=True)
    with torch.no_grad():
        straight_through(value, surrogate).add_(1)
    assert value.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_dtypes_are_kept(dtype):
    surrogate = torch.tensor([0.5], dtype=dtype, requires_grad=True)
    y = straight_through(torch.tensor([1.0], dtype=dtype), surrogate)
    y.sum().backward()
    assert y.dtype == surrogate.grad.dtype == dtype
