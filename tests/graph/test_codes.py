"""Codes instead of floats for the backward pass: less memory, not a bit of a gradient changed."""

import contextlib
import copy
import functools
import gc

import pytest
import torch
from torch import nn

import detent
from detent.numerics import native
from tests.models import MODELS


def prepared(name, recipe, backend="onnxruntime"):
    torch.manual_seed(0)
    entry = MODELS[name]
    model, inputs = entry.build(), entry.inputs()
    result = detent.prepare(model, inputs, backend=backend, recipe=recipe)
    detent.calibrate(result, [inputs])
    return result.train(), inputs


def gradients(model, inputs, block=contextlib.nullcontext):
    """Of a copy: a training pass moves the statistics of batch norms, and weights are folded with these."""
    model = copy.deepcopy(model)
    torch.manual_seed(1)  # dropout and its like
    with block(model):
        loss = model(*inputs).square().mean()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("recipe", ["ptq", "lsq", "lsq_plus", "dsq", "qil"])
@pytest.mark.parametrize("name", ["residual_cnn", "mobile_cnn"])
def test_gradients_are_the_same_bit_for_bit(name, recipe):
    model, inputs = prepared(name, recipe)
    plain = gradients(model, inputs)
    coded = gradients(model, inputs, detent.compress_saved_activations)
    assert plain.keys() == coded.keys()
    assert len(plain) > 4
    for name, gradient in plain.items():
        assert torch.equal(gradient, coded[name]), name


def kept_bytes(model, inputs):
    """Storages that only the autograd graph holds: hooks hand it Python objects, which can be counted."""

    def live():
        gc.collect()
        tensors = [item for item in gc.get_objects() if type(item) in (torch.Tensor, nn.Parameter)]
        return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}

    before = live()
    out = model(*inputs)
    after = live()
    return sum(size for pointer, size in after.items() if pointer not in before), out


@pytest.mark.slow
def test_what_lies_on_a_grid_is_kept_in_one_byte():
    model, inputs = prepared("residual_cnn", "ptq")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        as_floats, _ = kept_bytes(model, inputs)
    with detent.compress_saved_activations(model):
        as_codes, _ = kept_bytes(model, inputs)
    # The weights and inputs of convolutions shrink to a quarter; what pooling and clipping keep does not.
    assert as_codes < 0.75 * as_floats


@pytest.mark.slow
def test_large_weights_are_quantized_again_and_not_kept():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(64, 128, 3, bias=False), nn.BatchNorm2d(128)), torch.randn(1, 64, 3, 3)
    trained = detent.prepare(model, (x,), backend="onnxruntime", recipe="lsq").train()
    detent.calibrate(trained, [x])
    x = torch.randn(2, 64, 3, 3)
    with detent.compress_saved_activations(trained):
        kept, _ = kept_bytes(trained, (x,))
    assert kept < 64 * 128 * 9  # codes of the weight alone would be as many bytes


def test_hooks_are_gone_after_the_block():
    model, inputs = prepared("residual_cnn", "ptq")
    with pytest.raises(ZeroDivisionError), detent.compress_saved_activations(model):
        raise ZeroDivisionError
    assert not any(module._forward_hooks for module in model.modules())
    plain = gradients(model, inputs)
    assert all(torch.isfinite(gradient).all() for gradient in plain.values())


def test_an_optimizer_step_before_the_backward_pass_does_not_move_the_codes():
    """The scales are copied: a gradient belongs to the values that were used."""
    model, inputs = prepared("residual_cnn", "lsq")
    expected = gradients(model, inputs)
    with detent.compress_saved_activations(model):
        loss = model(*inputs).square().mean()
    scales = [p for name, p in model.named_parameters() if name.endswith("scale")]
    assert scales
    with torch.no_grad():
        for scale in scales:
            scale.mul_(2)
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.equal(parameter.grad, expected[name]), name


class Tokens(nn.Module):
    """Quantized tensors are read through views: two linear layers of three axes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.second(nn.functional.gelu(self.first(x)))


def tokens():
    torch.manual_seed(0)
    inputs = (torch.randn(8, 50, 64),)
    model = detent.prepare(Tokens(), inputs, backend="onnxruntime", recipe="lsq")
    detent.calibrate(model, [inputs])
    return model.train(), inputs


def test_a_view_of_a_quantized_tensor_is_kept_as_codes():
    model, inputs = tokens()
    kept = {}
    for name, block in {
        "floats": torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        "codes": detent.compress_saved_activations(model),
        "residues": detent.compress_saved_activations(model, exact=False),
    }.items():
        with block:
            kept[name], _ = kept_bytes(model, inputs)
    tensor = 8 * 50 * 64 * 4
    # Inputs of both layers and of GELU become codes; then what the scales of the last two and of the output need.
    assert kept["floats"] - kept["codes"] > 2.2 * tensor
    assert kept["codes"] - kept["residues"] > 1.4 * tensor


def test_only_gradients_of_scales_change_with_residues():
    model, inputs = tokens()
    plain = gradients(model, inputs)
    coded = gradients(model, inputs, functools.partial(detent.compress_saved_activations, exact=False))
    scales = [name for name in plain if name.endswith("scale")]
    for name in plain.keys() - scales:
        assert torch.equal(plain[name], coded[name]), name
    changed = [name for name in scales if not torch.equal(plain[name], coded[name])]
    assert not native.library() or changed
    for name in scales:
        torch.testing.assert_close(plain[name], coded[name], rtol=0.02, atol=1e-6)
