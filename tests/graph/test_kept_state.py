"""Models that keep tensors and hooks of their own between calls: copied whole, and never taken for constants."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detent
from detent.errors import CaptureError
from detent.graph import capture


class Hooked(nn.Module):
    """Keeps what a layer gives, by a hook that was written around the model."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.seen = {}
        self.first.register_forward_hook(lambda _module, _given, made: self.seen.__setitem__("first", made))

    def forward(self, x):
        made = self.second(F.relu(self.first(x)))
        return made, self.seen["first"].sum(-1)


def test_what_a_hook_keeps_is_computed_anew_and_not_a_constant():
    model = Hooked().eval()
    model(torch.randn(3, 4))  # with a gradient: a tensor that torch does not copy
    captured = capture(model, (torch.randn(3, 4),))
    others = torch.randn(3, 4)
    torch.testing.assert_close(captured.module(others), model(others))


def test_the_hooks_of_a_copy_are_written_around_the_copy():
    model = Hooked().eval()
    kept = model.seen["first"] = torch.zeros(1)
    detent.prepare(model, (torch.randn(3, 4),), backend="onnxruntime")
    assert model.seen["first"] is kept


def test_what_cannot_be_copied_is_refused_with_what_to_do():
    model = nn.Sequential(nn.Linear(4, 4))
    model.lock = threading.Lock()
    with pytest.raises(CaptureError, match=r"copy a Sequential(.|\n)*cannot pickle(.|\n)*inplace=True"):
        detent.prepare(model, (torch.randn(3, 4),), backend="onnxruntime")
