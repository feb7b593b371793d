"""Chooses the bit width of each layer with the least total noise within a budget."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["cheapest"]

_STEPS = 4096  # the budget in so many parts; prices are rounded up to whole ones, so the budget is kept


def cheapest(
    costs: Mapping[str, Mapping[int, float]], prices: Mapping[str, Mapping[int, float]], budget: float
) -> dict[str, int] | None:
    """One option per name, with the least sum of costs among those whose prices sum up to at most `budget`.

    None if even the cheapest options exceed it. Exact up to rounding prices to 1/4096 of the budget.

    >>> costs = {"a": {4: 9.0, 8: 1.0}, "b": {4: 2.0, 8: 1.0}}
    >>> prices = {"a": {4: 4.0, 8: 8.0}, "b": {4: 4.0, 8: 8.0}}
    >>> cheapest(costs, prices, 12.0), cheapest(costs, prices, 7.0)
    ({'a': 8, 'b': 4}, None)
    """
    least = sum(min(options.values()) for options in prices.values())
    if least > budget:
        return None
    unit = budget / _STEPS if budget > 0 else 1.0
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    slack = len(prices)  # rounding up costs at most a unit for each name
    for name, options in costs.items():
        grown: dict[int, tuple[float, tuple[int, ...]]] = {}
        for spent, (cost, chosen) in best.items():
            for option, more in options.items():
                total = spent + math.ceil(prices[name][option] / unit - 1e-9)
                if total <= _STEPS + slack and (total not in grown or cost + more < grown[total][0]):
                    grown[total] = (cost + more, (*chosen, option))
        best = _undominated(grown)
    names = list(costs)
    found = [
        (cost, chosen)
        for cost, chosen in best.values()
        if sum(prices[name][option] for name, option in zip(names, chosen, strict=True)) <= budget * (1 + 1e-12)
    ]
    if not found:
        return {name: min(options, key=lambda option: options[option]) for name, options in prices.items()}
    return dict(zip(names, min(found)[1], strict=True))


def _undominated(states: dict[int, tuple[float, tuple[int, ...]]]) -> dict[int, tuple[float, tuple[int, ...]]]:
    kept: dict[int, tuple[float, tuple[int, ...]]] = {}
    least = math.inf
    for spent in sorted(states):
        if states[spent][0] < least:
            kept[spent], least = states[spent], states[spent][0]
    return kept
