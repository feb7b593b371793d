"""Weight splitting: the same float function from two weights of smaller range."""

import pytest
import torch
from torch import nn

import detent
from detent.algorithms import split_weights
from detent.errors import RecipeError
from tests.algorithms.nets import Mlp, noise, vectors


def with_outliers():
    net = Mlp().eval()
    with torch.no_grad():
        net.left.weight[3, 4], net.left.weight[9, 1] = 4.0, -3.0
    return net


def test_the_function_is_the_same_and_both_ranges_are_smaller():
    net, x = with_outliers(), vectors(1)[0]
    split = split_weights(net, ["left"], at=0.25)
    with torch.no_grad():
        torch.testing.assert_close(split(x), net(x), rtol=1e-5, atol=1e-5)
    assert split.left.bulk.weight.abs().max().item() == 1.0
    assert split.left.rest.weight.abs().max().item() == 3.0
    assert (split.left.rest.weight != 0).sum().item() == 2
    assert split.left.rest.bias is None
    assert isinstance(net.left, nn.Linear)


def test_the_quantized_model_loses_less():
    net, data = with_outliers(), vectors(2)
    recipe = detent.Recipe.from_dict({"name": "mine", "weight": {"bits": 4, "granularity": "per_tensor"}})
    lost = []
    for one in (net, split_weights(net, ["left"], at=0.2)):
        prepared = detent.prepare(one, (data[0],), backend="academic_nlp", recipe=recipe)
        detent.calibrate(prepared, data)
        lost.append(noise(prepared.eval(), net, data))
    assert lost[1] < 0.7 * lost[0]


def test_refusals(refuses):
    with refuses(
        RecipeError, "split the weight of 'lfet'", "the model has no such layer", "name convolutions and linear layers"
    ):
        split_weights(Mlp(), ["lfet"])
    with pytest.raises(RecipeError, match="it is a LayerNorm"):
        split_weights(Mlp(), ["norm"])
    with pytest.raises(RecipeError, match="choose 0 < at < 1"):
        split_weights(Mlp(), ["left"], at=1.0)
