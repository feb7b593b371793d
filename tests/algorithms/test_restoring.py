"""Which operations gain most from float: the one that was spoiled comes first."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import detent
from detent.algorithms import noise_of_weights, rank_restored
from detent.errors import DetentError


class Spoiled(nn.Module):
    """One weight of `second` is so large that the others vanish on a per-tensor grid; it meets an input that is 0."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.first.weight[0] = 0
            self.first.bias[0] = 0
            self.second.weight[0, 0] = 300

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))) + 1)


def test_the_operation_that_costs_most_comes_first() -> None:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    recipe = detent.Recipe.from_dict({"name": "t", "weight": {"granularity": "per_tensor"}})
    prepared = detent.prepare(Spoiled().eval(), (x,), backend="academic", recipe=recipe)
    with pytest.raises(DetentError, match="calibrate"):
        rank_restored(prepared, [x])
    detent.calibrate(prepared, [x])
    ranked = rank_restored(prepared, [x])
    assert (ranked[0].op, ranked[0].kind) == ("second", "linear")
    assert ranked[0].gain > 0.9
    assert {one.op for one in ranked} >= {"first", "second", "third"}
    # Each name is one that a recipe takes.
    excluded = recipe.replace(exclude=tuple(one.op for one in ranked[:2]))
    again = detent.prepare(Spoiled().eval(), (x,), backend="academic", recipe=excluded)
    assert len(again.plan.quantized) == len(prepared.plan.quantized) - 4, "two weights and what they are multiplied by"


@pytest.mark.parametrize(("weights", "activations", "expected"), [(8, 8, (0.9, 1.0)), (16, 2, (0.0, 0.1))])
def test_whose_noise_it_is(weights: int, activations: int, expected: tuple[float, float]) -> None:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    asked = {"weight": {"granularity": "per_tensor", "bits": weights}, "activation": {"bits": activations}}
    recipe = detent.Recipe.from_dict({"name": "t", **asked})
    prepared = detent.prepare(Spoiled().eval(), (x,), backend="academic", recipe=recipe)
    detent.calibrate(prepared, [x])
    assert expected[0] <= noise_of_weights(prepared, [x]) <= expected[1]
