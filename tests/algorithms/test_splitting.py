"""Channel splitting: the same float network, with a smaller range of weights."""

import pytest
import torch
from torch import nn

import detent
from detent.algorithms import split_channels
from detent.errors import RecipeError
from tests.algorithms.nets import noise


def net():
    first = (nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    model = nn.Sequential(*first, nn.Conv2d(16, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)).eval()
    with torch.no_grad():
        model[3].weight[:, 5] *= 8
        model[3].weight[:, 9] *= 6
    return model


def test_the_function_is_the_same_and_the_outliers_are_halved():
    model, x = net(), torch.randn(4, 3, 8, 8)
    split = split_channels(model, (x,), share=0.15)
    with torch.no_grad():
        torch.testing.assert_close(split(x), model(x), rtol=1e-4, atol=1e-5)
    second = split.get_submodule("3")
    assert second.in_channels == 18
    assert second.weight.abs().max().item() == pytest.approx(model[3].weight.abs().max().item() / 2)
    assert model[3].in_channels == 16


def test_a_split_model_is_prepared_like_any_other_and_loses_less():
    model, data = net(), [torch.randn(8, 3, 8, 8) for _ in range(2)]
    recipe = detent.Recipe.from_dict({"name": "mine", "weight": {"bits": 4, "granularity": "per_tensor"}})
    lost = []
    for one in (model, split_channels(model, (data[0],), share=0.15)):
        # The academic backend would keep the ends at 8 bits; the layer in question lies between them.
        prepared = detent.prepare(one, (data[0],), backend="academic", recipe=recipe)
        detent.calibrate(prepared, data)
        lost.append(noise(prepared.eval(), model, data))
    assert lost[1] < 0.6 * lost[0]


def test_too_small_a_share_changes_nothing():
    model, x = net(), torch.randn(2, 3, 8, 8)
    assert split_channels(model, (x,), share=0.01).get_submodule("3").in_channels == 16


def test_only_the_pairs_that_are_chosen_are_split():
    model, x, asked = net(), torch.randn(2, 3, 8, 8), []

    def never(first, second):
        asked.append((first, second))
        return False

    assert split_channels(model, (x,), share=0.15, between=never).get_submodule("3").in_channels == 16
    assert asked == [("0", "3")]


def test_an_impossible_share_is_refused(refuses):
    with refuses(RecipeError, "split_channels(share=0)", "it is a share of the channels", "choose 0 < share <= 1"):
        split_channels(net(), (torch.randn(2, 3, 8, 8),), share=0)
