"""Equivalent schemes: different codes, or another kind of scheme, for the same real numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from detent.numerics import QParams, Scheme

__all__ = ["Held", "alike", "as_scheme", "ends", "same_numbers"]

Held = tuple[Scheme, QParams]


def same_numbers(held: Held) -> Iterator[tuple[int, Held]]:
    """The scheme of a tensor, and other integer schemes with the same step, each with how much it differs.

    0: the same real numbers. 1: one more number, below a narrow range. 2: one less, that of -128.
    """
    for signed_or_not in _of_both_signs(held):
        for difference, ranged in _of_both_ranges(signed_or_not):
            for again in _of_both_signs(ranged):
                for one in _of_both_kinds(again):
                    yield difference, one


def as_scheme(held: Held, scheme: Scheme) -> QParams | None:
    """The qparams for the same real numbers in that scheme, if it has them; rounding does not matter."""
    given = replace(held[0], rounding=scheme.rounding), held[1]
    return next((qparams for off, (one, qparams) in same_numbers(given) if one == scheme and not off), None)


def alike(one: Held, other: Held) -> bool:
    (scheme, qparams), (others, others_qparams) = one, other
    return (
        scheme == others
        and torch.equal(qparams.scale, others_qparams.scale)
        and torch.equal(qparams.zero_point, others_qparams.zero_point)
    )


def ends(scheme: Scheme, qparams: QParams) -> tuple[float, float]:
    """The lowest and highest number of a grid, over all its channels."""
    low, high = (end * qparams.scale.double() for end in scheme.grid.ends(qparams.zero_point.double()))
    return float(low.min()), float(high.max())


def _of_both_signs(held: Held) -> Iterator[Held]:
    yield held
    scheme, qparams = held
    grid = scheme.grid
    if grid.is_uniform and not grid.narrow:
        other = grid.like(signed=not grid.signed)
        zero_point = qparams.zero_point + (other.qmin - grid.qmin)
        yield replace(scheme, grid=other, symmetric=False), QParams(qparams.scale, zero_point)


def _of_both_ranges(held: Held) -> Iterator[tuple[int, Held]]:
    yield 0, held
    scheme, qparams = held
    grid = scheme.grid
    if grid.narrow:
        yield 1, (replace(scheme, grid=grid.like(narrow=False)), qparams)
    elif grid.can_be_narrow and grid.signed and not qparams.zero_point.any():
        yield 2, (replace(scheme, grid=grid.like(narrow=True)), qparams)


def _of_both_kinds(held: Held) -> Iterator[Held]:
    """The affine scheme and, if the zero point is 0, the symmetric one."""
    yield held
    scheme, qparams = held
    if scheme.grid.is_uniform and not qparams.zero_point.any():
        yield replace(scheme, symmetric=not scheme.symmetric), qparams
