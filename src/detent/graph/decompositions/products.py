"""Products that torch has under other names, as matrix products: targets have integers for these."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from detent.graph.decompositions.attention import example_of

__all__ = ["addmm", "baddbmm", "einsum"]


def addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:  # noqa: A002 - torch's name
    """`beta * input + alpha * mat1 @ mat2`; with one number for each column, a linear layer."""
    if beta == alpha == 1 and example_of(input).dim() == 1:
        return F.linear(mat1, mat2.t(), input)
    product = torch.matmul(mat1, mat2)
    return (input if beta == 1 else input * beta) + (product if alpha == 1 else product * alpha)


def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Any:  # noqa: A002
    """`beta * input + alpha * batch1 @ batch2`; with beta 0 the input is not read."""
    product = torch.matmul(batch1, batch2)
    scaled = product if alpha == 1 else product * alpha
    return scaled if beta == 0 else (input if beta == 1 else input * beta) + scaled


class _Named(NamedTuple):
    """A tensor, and a letter for each of its axes."""

    tensor: Any
    axes: str


def einsum(equation: str, *operands: Any) -> Any:
    """Products of two tensors, from left to right, whatever the equation. Not implemented are tensors with the same
    axis twice, and axes of size 1 that are repeated."""
    named = _named(equation.replace(" ", ""), operands)
    if named is None:
        return NotImplemented
    (left, *others), result = named
    for position, right in enumerate(others, start=1):
        needed = {*result, *(axis for term in others[position:] for axis in term.axes)}
        left = _product(_summed(left, {*needed, *right.axes}), _summed(right, {*needed, *left.axes}), needed)
    return _arranged(_summed(left, set(result)), result).tensor


def _named(equation: str, operands: Sequence[Any]) -> tuple[list[_Named], str] | None:
    """The tensors with a letter for every axis, and the letters of the result."""
    given, arrow, result = equation.partition("->")
    terms = given.split(",")
    shapes = [tuple(example_of(each).shape) for each in operands]
    rest = [len(shape) - len(term.replace("...", "")) for term, shape in zip(terms, shapes, strict=True)]
    free = [letter for letter in string.ascii_letters if letter not in equation][: max(rest)]
    dots = "".join(free)
    if not arrow:
        letters = given.replace("...", "").replace(",", "")
        result = "..." + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    spelled = [term.replace("...", dots[len(dots) - count :]) for term, count in zip(terms, rest, strict=True)]
    sizes: dict[str, int] = {}
    for term, shape in zip(spelled, shapes, strict=True):
        is_repeated = len(set(term)) != len(term)
        if is_repeated or any(sizes.setdefault(axis, size) != size for axis, size in zip(term, shape, strict=True)):
            return None
    return [_Named(*pair) for pair in zip(operands, spelled, strict=True)], result.replace("...", dots)


def _product(left: _Named, right: _Named, needed: set[str]) -> _Named:
    shared = [axis for axis in left.axes if axis in right.axes]
    both = "".join(axis for axis in shared if axis in needed)
    inner = "".join(axis for axis in shared if axis not in needed)
    rows = "".join(axis for axis in left.axes if axis not in shared)
    columns = "".join(axis for axis in right.axes if axis not in shared)
    if not inner:
        wide = _widened(_arranged(left, both + rows), both + rows + columns)
        return _Named(wide * _widened(_arranged(right, both + columns), both + rows + columns), both + rows + columns)
    if not both and len(rows) == 1 and len(columns) > 1:
        left, right, rows, columns = right, left, columns, rows
    # Without common axes, those of the left may stay as they are.
    row = rows if not both else rows[:1]
    a = _joined(_joined(_arranged(left, both + rows + inner), inner), rows if both else "")
    b = _joined(_joined(_arranged(right, both + inner + columns), inner), columns)
    a_tensor = a.tensor.unsqueeze(-2) if not rows else a.tensor
    b_tensor = b.tensor.unsqueeze(-1) if not columns else b.tensor
    product = torch.matmul(a_tensor, b_tensor)
    product = product if columns else product.squeeze(-1)
    product = product if rows else product.squeeze(-2 if columns else -1)
    made = _Named(product, both + row + columns[:1])
    made = _parted(made, columns, right)
    return _parted(made, rows, left) if both else made


def _summed(term: _Named, kept: set[str]) -> _Named:
    """The term summed over the axes that are not `kept`."""
    gone = [place for place, axis in enumerate(term.axes) if axis not in kept]
    if not gone:
        return term
    return _Named(term.tensor.sum(gone), "".join(axis for axis in term.axes if axis in kept))


def _arranged(term: _Named, axes: str) -> _Named:
    order = [term.axes.index(axis) for axis in axes]
    if order == sorted(order):
        return term
    turned = term.tensor.transpose(0, 1) if order == [1, 0] else term.tensor.permute(order)
    return _Named(turned, axes)


def _widened(term: _Named, axes: str) -> Any:
    """The term with an axis of size 1 for each axis that it lacks."""
    tensor = term.tensor
    for place, axis in enumerate(axes):
        tensor = tensor if axis in term.axes else tensor.unsqueeze(place)
    return tensor


def _joined(term: _Named, axes: str) -> _Named:
    """Neighboring axes as one, under the letter of the first."""
    if len(axes) < 2:
        return term
    start = term.axes.index(axes[0])
    return _Named(term.tensor.flatten(start, start + len(axes) - 1), term.axes.replace(axes, axes[0]))


def _parted(term: _Named, axes: str, source: _Named) -> _Named:
    """The reverse of `_joined`, of axes that have the sizes that they have in `source`."""
    if len(axes) < 2:
        return term
    sizes = tuple(source.tensor.size(source.axes.index(axis)) for axis in axes)
    parted = term.tensor.unflatten(term.axes.index(axes[0]), sizes)
    return _Named(parted, term.axes.replace(axes[0], axes))
