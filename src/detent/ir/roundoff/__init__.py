"""Bounds on the difference of two float32 computations of an operation: one rule per operator (`OpSpec.roundoff`)."""

from __future__ import annotations

from detent.ir.roundoff.error_bound import UNIT, ErrorBound, FloatKernel, Rule
from detent.ir.roundoff.table import ROUNDOFF, error_bounds, rounds

__all__ = ["ROUNDOFF", "UNIT", "ErrorBound", "FloatKernel", "Rule", "error_bounds", "rounds"]
