"""Sensitivity and the choice of widths: exact on small tables, sensible on a network, usable as a recipe."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.algorithms import all_layers, choose_precision, sensitivity, smallest_precision
from detent.algorithms.common.batches import outputs_of
from detent.algorithms.common.floating import as_float, evaluating
from detent.algorithms.mixed_precision import _noise
from detent.algorithms.mixed_precision_core import cheapest
from detent.errors import RecipeError
from detent.recipes import Recipe
from tests.algorithms.nets import Convs, images, ready

PRICE = st.integers(1, 64).map(float)
TABLE = st.lists(st.tuples(st.tuples(PRICE, PRICE, PRICE), st.tuples(PRICE, PRICE, PRICE)), min_size=1, max_size=4)


@given(TABLE, st.integers(1, 256))
@settings(max_examples=80, deadline=None)
def test_no_other_choice_within_the_budget_costs_less(table, budget):
    costs = {str(i): dict(zip((2, 4, 8), row[0], strict=True)) for i, row in enumerate(table)}
    prices = {str(i): dict(zip((2, 4, 8), row[1], strict=True)) for i, row in enumerate(table)}

    def total(rows, choice):
        return sum(row[bits] for row, bits in zip(rows.values(), choice, strict=True))

    every = [c for c in itertools.product((2, 4, 8), repeat=len(table)) if total(prices, c) <= budget]
    found = cheapest(costs, prices, float(budget))
    if not every:
        assert found is None
        return
    chosen = tuple(found[name] for name in costs)
    assert total(prices, chosen) <= budget
    # Prices are rounded up to 1/4096 of the budget: at most a choice on the very edge is missed.
    inside = [c for c in every if total(prices, c) <= budget * (1 - len(table) / 4096)]
    if inside:
        assert total(costs, chosen) <= min(total(costs, c) for c in inside)


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(0)
    return sensitivity(ready(Convs(), images(2)), images(1), bits=(2, 4, 8))


def test_fewer_bits_cost_more(found):
    for name, costs in found.cost.items():
        assert costs[2] > costs[4] > costs[8] > 0, name
    assert list(found.cost) == ["stem", "expand", "depthwise", "project", "fc"]


def test_sizes_and_operations_are_counted(found):
    assert found.size["expand"] == {2: 72.0, 4: 144.0, 8: 288.0}  # 24 x 12 weights
    assert found.bit_operations["expand"][4] == 24 * 12 * 64 * 4 * 8  # at 8x8 places, 8-bit inputs
    assert found.bit_operations["depthwise"][8] == 24 * 9 * 64 * 8 * 8
    assert found.bit_operations["fc"][2] == 12 * 5 * 2 * 8


def test_a_budget_is_kept_and_spent_where_it_counts(found):
    full = sum(row[8] for row in found.size.values())
    choice = choose_precision(found, 0.6 * full)
    assert choice.price <= 0.6 * full
    assert len(set(choice.bits.values())) > 1
    uniform = sum(found.cost[name][4] for name in found.cost)
    assert choice.cost < uniform
    assert choose_precision(found, full).bits == dict.fromkeys(found.cost, 8)


def test_prices_of_your_own(found):
    milliseconds = {name: {2: 1.0, 4: 1.0, 8: 2.0} for name in found.cost}
    choice = choose_precision(found, 6.0, of=milliseconds)
    assert sorted(choice.bits.values()) == [4, 4, 4, 4, 8]
    assert choose_precision(found, 1e12, of="bit_operations").bits["fc"] == 8


def test_the_rules_make_a_recipe(found):
    choice = choose_precision(found, 0.6 * sum(row[8] for row in found.size.values()))
    recipe = Recipe.from_dict({"name": "mixed", "rules": choice.rules})
    for name, bits in choice.bits.items():
        assert recipe.for_tensor("weight", name, "conv").bits == bits


def test_refusals(found, refuses):
    with refuses(
        RecipeError, "a budget of 1", "the narrowest widths already take 294", "raise it, or allow fewer bits"
    ):
        choose_precision(found, 1.0)
    with pytest.raises(RecipeError, match="no such measure"):
        choose_precision(found, 1.0, of="weight")
    with pytest.raises(RecipeError, match="none for 'stem'"):
        choose_precision(found, 1.0, of={})


def test_it_prints(found):
    assert str(found).splitlines()[0].split() == ["layer", "2", "bits", "4", "bits", "8", "bits"]
    assert found.to_dict()["size"]["expand"]["4"] == 144.0


def test_the_noise_of_a_layer_needs_no_block_around_it_and_is_the_same_in_one():
    prepared, data = ready(Convs(), images(2)), images(1)
    layer = next(layer for layer in all_layers(prepared) if layer.name == "expand")
    with evaluating(prepared):
        with as_float(prepared):
            wanted = outputs_of(prepared, data)
            inside = _noise(prepared, layer, 4, data, wanted)
        assert _noise(prepared, layer, 4, data, wanted) == inside > 0


def test_the_cheapest_widths_that_are_accurate(found):
    """With the noise as accuracy, what is found is accurate, and what is a little cheaper is not."""
    most = 4 * sum(row[8] for row in found.cost.values())
    asked = []

    def is_accurate(choice):
        asked.append(choice)
        return choice.cost <= most

    best = smallest_precision(found, is_accurate, trials=12)
    assert is_accurate(best)
    assert best.price < sum(row[8] for row in found.size.values())
    assert all(choice.price >= best.price for choice in asked if choice.cost <= most)
    assert len({tuple(choice.bits.items()) for choice in asked}) == len(asked) - 1, "none is measured twice"
    assert smallest_precision(found, lambda _: True, trials=20).bits == dict.fromkeys(found.cost, 2)
    with pytest.raises(RecipeError, match="the widest of them are not accurate"):
        smallest_precision(found, lambda _: False)
