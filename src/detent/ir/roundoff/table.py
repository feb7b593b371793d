"""The table of round-off rules."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from detent.ir.network import Op
from detent.ir.ops import Trait, ops_with
from detent.ir.roundoff.error_bound import (
    ErrorBound,
    Errors,
    FloatKernel,
    Inputs,
    Rule,
    is_chosen_otherwise,
    unknown_error,
)
from detent.ir.roundoff.exact import exact, greatest
from detent.ir.roundoff.functions import FUNCTIONS
from detent.ir.roundoff.recurrent import RECURRENT
from detent.ir.roundoff.sums import SUMS, interpolated

__all__ = ["ROUNDOFF", "error_bounds", "rounds"]


def rounds(op: Op) -> bool:
    """Whether it may give a number that none of its inputs holds, and so one that is rounded."""
    is_nearest = op.type == "Resize" and op.attribute("mode") == "nearest"
    return not is_nearest and op.type not in ops_with(Trait.EXACT)


def error_bounds(op: Op, kernel: FloatKernel, inputs: Inputs, rule: Rule | None = None) -> tuple[ErrorBound, ...]:
    """The outputs of `op`, computed by `kernel`, each with how far another float32 computation may be from it: by the
    `rule` of its operator unless another is given."""
    results = kernel(*(None if each is None else each.value for each in inputs))
    values: tuple[Tensor, ...] = (results,) if isinstance(results, Tensor) else tuple(results)
    otherwise = is_chosen_otherwise(inputs)
    if not values[0].is_floating_point() and not otherwise:
        return tuple(ErrorBound(value) for value in values)
    rule = None if otherwise else rule or ROUNDOFF.get(op.type)
    errors = None if rule is None else rule(op, kernel, inputs, values)
    if errors is None:
        errors = [unknown_error(value, inputs) for value in values]
    return tuple(ErrorBound(*pair) for pair in zip(values, errors, strict=False))


def _resized(op: Op, kernel: FloatKernel, inputs: Inputs, values: tuple[Tensor, ...]) -> Errors:
    return (interpolated if rounds(op) else exact)(op, kernel, inputs, values)


ROUNDOFF: Mapping[str, Rule] = {
    **dict.fromkeys(ops_with(Trait.EXACT), exact),
    **FUNCTIONS,
    **RECURRENT,
    **SUMS,
    "Resize": _resized,
    "TopK": greatest,
}
"""By operator; of others nothing is known."""
