"""Scales of weights that the other backend multiplies by a batch norm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.deployment import deployment_of
from detent.errors import SchemeError
from detent.graph import folding_factor, quantizers_of
from detent.recipes import find
from detent.retargeting import retargeted
from tests.deployment.float_path import prepared_for

X = torch.linspace(-2, 2, 4 * 3 * 6 * 6).reshape(4, 3, 6, 6)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    found = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 4, 1))
    with torch.no_grad():
        found[1].weight.copy_(torch.tensor([0.5, -2.0, 1.0, -0.25, 3.0]))
        found[1].bias.uniform_(-1, 1)
        found[1].running_mean.uniform_(-1, 1)
        found[1].running_var.uniform_(0.5, 2)
    return found.eval()


def narrow(**weight: object) -> detent.Recipe:
    """Weights without the code -128, which would have no opposite in a channel that a norm turns around."""
    plain = find("ptq")
    return plain.replace(weight=plain.weight.replace(narrow=True, **weight))


def test_codes_are_kept_but_for_their_sign_and_scales_follow_the_factor():
    first = prepared_for(net(), (X,), "academic", recipe=narrow())
    moved = retargeted(first, "onnxruntime")
    factor = folding_factor(net()[1])
    before = next(q for q in quantizers_of(first) if q.name == "0.weight")
    codes = before.codes(first.get_submodule("0").parametrizations.weight.original)
    stored = deployment_of(moved).graph.constants["0.weight"]
    assert np.array_equal(stored, (codes * factor.sign().reshape(-1, 1, 1, 1)).to(torch.int8).numpy())
    after = next(q for q in quantizers_of(moved) if q.name == "0.weight")
    torch.testing.assert_close(after.qparams().scale, before.qparams().scale * factor.abs())


def test_the_outputs_are_those_of_the_first():
    first = prepared_for(net(), (X,), "academic", recipe=narrow())
    moved = retargeted(first, "openvino").eval()  # whose biases are float
    with torch.no_grad():
        torch.testing.assert_close(moved(X), first(X), rtol=1e-5, atol=1e-5)


def test_what_the_operation_gives_then_is_what_the_norm_gave():
    """Measured without the norm, its range would be another."""
    ends = nn.Sequential(*list(net())[:2])
    first = prepared_for(ends, (X,), "academic", recipe=narrow())
    moved = retargeted(first, "litert")
    scale = next(q for q in quantizers_of(moved) if q.name == "_0").qparams().scale
    with torch.no_grad():
        given = ends(X)
    assert scale == torch.maximum(given.max() / 127, -given.min() / 128)


def test_the_least_code_has_no_opposite():
    with pytest.raises(SchemeError, match=r"keep the codes of '0\.weight' for openvino") as caught:
        retargeted(prepared_for(_with_least_code(), (X,), "academic"), "openvino")
    assert "the grid there has no code for that number" in caught.value.found


def _with_least_code() -> nn.Sequential:
    found = net()
    with torch.no_grad():
        found[0].weight[1, 0, 0, 0] = -10.0  # of a channel that is turned around
    return found


def test_groups_cannot_follow():
    first = prepared_for(net(), (X,), "academic", recipe=narrow(granularity={"per_group": 1}))
    with pytest.raises(SchemeError, match=r"keep the scale of '0\.weight' for onnxruntime") as caught:
        retargeted(first, "onnxruntime")
    assert caught.value.found.startswith(
        "the batch norm '1' is folded into it there, and int8 narrow symmetric per-group"
    )
