"""Data for networks that quantizing hurts, and how much it does."""

from __future__ import annotations

import torch

import detent
from detent.recipes import Recipe
from tests.networks.sensitive import Chain, Convs, Mlp

__all__ = ["Chain", "Convs", "Mlp", "images", "noise", "ready", "vectors"]


def images(count=6, rows=8, size=8):
    return [torch.randn(rows, 3, size, size) for _ in range(count)]


def vectors(count=6, rows=64, dim=16):
    return [torch.randn(rows, dim) for _ in range(count)]


def ready(net, batches, *, backend="academic", calibrated=True, **request):
    """Prepared by a recipe of these sections, and calibrated."""
    recipe = Recipe.from_dict({"name": "mine", **request})
    prepared = detent.prepare(net.eval(), (batches[0],), backend=backend, recipe=recipe)
    if calibrated:
        detent.calibrate(prepared, batches)
    return prepared.eval()


def noise(prepared, net, batches):
    """Squared error of the outputs, relative to their size."""
    with torch.no_grad():
        pairs = [(net(x), prepared(x)) for x in batches]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(a.square().sum() for a, _ in pairs))
