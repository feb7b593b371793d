"""ONNX operations as torch functions, in one table by operation type.

They take float tensors; those that only move or pick values take quantized ones too. What ONNX gives as a tensor and
torch wants as Python numbers (shapes, axes, bounds) is best constant in the network: then nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
from torch import Tensor

from detent.deploy.qdq_graph import Op
from detent.deploy.torch_call import Call, Function
from detent.deploy.torch_compute import COMPUTES
from detent.deploy.torch_moves import MOVES
from detent.deploy.torch_recurrent import RECURRENT
from detent.deploy.torch_reductions import REDUCTIONS

__all__ = ["FUNCTIONS", "call"]

FUNCTIONS: dict[str, Function] = {**COMPUTES, **MOVES, **RECURRENT, **REDUCTIONS}
"""By ONNX operation type."""


def call(op: Op, values: Sequence[Tensor | None], constants: Mapping[str, npt.NDArray[Any]]) -> tuple[Tensor, ...]:
    """What an operation gives, one tensor for each of its outputs."""
    run = Call(op, values, constants)
    if op.type not in FUNCTIONS:
        raise run.refusal("Detent knows no torch function for this type")
    found = FUNCTIONS[op.type](run)
    return found if isinstance(found, tuple) else (found,)
