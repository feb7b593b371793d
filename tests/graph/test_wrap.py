"""Functional operators become modules, and nothing else changes."""

import copy
import operator

import pytest
import torch
from torch import nn

import detent
from detent.graph import Functional
from tests.models import MODELS


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [part for item in value.values() for part in flat(item)]
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in flat(item)]
    return [part for item in vars(value).values() for part in flat(item)]


class Functions(nn.Module):
    def forward(self, x, y):
        x = x + y
        x *= 2.0
        x = torch.cat([x, y], 1)
        return torch.add(x.mean(1, keepdim=True), x)


@pytest.mark.parametrize("name", ["functional_ops", "residual_cnn", "yolo_head", "bert_encoder", "control_flow"])
def test_a_wrapped_model_computes_the_same(name):
    torch.manual_seed(0)
    entry = MODELS[name]
    model, inputs = entry.build().eval(), entry.inputs()
    wrapped = detent.wrap(model, *inputs)
    for ours, theirs in zip(flat(wrapped(*inputs)), flat(model(*inputs)), strict=True):
        assert torch.equal(ours, theirs)


def test_each_operator_is_a_module_named_after_what_it_does():
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    wrapped = detent.wrap(Functions(), x, y)
    made = {name: module.target for name, module in wrapped.named_modules() if isinstance(module, Functional)}
    assert made == {
        "wrapped_add_1": operator.add,
        "wrapped_mul_1": operator.mul,  # fx has no in-place product: the result is the same
        "wrapped_concat_1": torch.cat,
        "wrapped_mean_1": "mean",
        "wrapped_add_2": torch.add,
    }
    assert torch.equal(wrapped(x.clone(), y), Functions()(x.clone(), y))


def test_the_model_and_its_names_are_left_as_they_were():
    entry = MODELS["functional_ops"]
    model = entry.build()
    before = copy.deepcopy(model.state_dict())
    wrapped = detent.wrap(model, *entry.inputs())
    assert not any(isinstance(module, Functional) for module in model.modules())
    assert list(wrapped.state_dict()) == list(before)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_a_wrapped_model_is_planned_like_the_model_itself():
    entry = MODELS["residual_cnn"]
    model, inputs = entry.build().eval(), entry.inputs()
    wrapped = detent.wrap(model, *inputs)
    plans = [detent.prepare(m, inputs, backend="onnxruntime").plan for m in (model, wrapped)]
    assert [entry.kind for entry in plans[0]] == [entry.kind for entry in plans[1]]
    assert len(plans[0].quantized) == len(plans[1].quantized) > 5


def test_a_wrapped_model_inside_another_is_captured_through():
    """As with stubs around it: `self.model = wrap(model, x)`."""
    entry = MODELS["residual_cnn"]
    model, inputs = entry.build().eval(), entry.inputs()

    class Bounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = detent.wrap(model, *inputs)
            self.quant, self.dequant = detent.QuantStub(), detent.DeQuantStub()

        def forward(self, x):
            return self.dequant(self.model(self.quant(x)))

    bounded = Bounded().eval()
    prepared = detent.prepare(bounded, inputs, backend="onnxruntime")
    assert prepared.plan.notes == ()  # no graph break
    assert prepared.plan["model.conv1.weight"].quantizer == "fixed"
    detent.calibrate(prepared, [inputs])
    with torch.no_grad():
        expected = model(*inputs)
        # Eight bits through eleven layers: a few per cent of the largest logit.
        assert torch.allclose(prepared(*inputs), expected, atol=0.1 * float(expected.abs().max()))


def test_keyword_arguments_are_example_inputs_too():
    class Scaled(nn.Module):
        def forward(self, x, *, by):
            return x * by

    x, by = torch.randn(3), torch.randn(3)
    assert torch.equal(detent.wrap(Scaled(), x, by=by)(x, by=by), x * by)
