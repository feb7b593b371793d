"""Facts about ESP-DL: what it can compute, and how it writes scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from detent.errors import DeployError
from detent.ir import Encoding, Op, Operand, Trait, ops_with
from detent.ir.reference import REFERENCE, KernelCall

__all__ = [
    "CLIPS",
    "KNOWN",
    "MOVES",
    "PAIRS",
    "POOLS",
    "TABLES",
    "WEIGHTED",
    "exponents",
    "quant_type",
    "refusal",
    "table_of",
]

WEIGHTED = ops_with(Trait.WEIGHTED) - {"ConvTranspose"}  # which is not written
POOLS = ops_with(Trait.POOL)
PAIRS = ops_with(Trait.ARITHMETIC)
TABLES = ops_with(Trait.CLIPS) | ops_with(Trait.ACTIVATION) - {"Mish", "Softplus"} | {"Abs", "Exp", "Sqrt"}
"""Activation functions: a table of 256 codes each."""

CLIPS = ops_with(Trait.CLIPS)
MOVES = ops_with(Trait.RESHAPES) | ops_with(Trait.POOL | Trait.EXTREME) | {"Slice", "Transpose"}
"""They leave codes as they are, and so the grid."""

KNOWN = WEIGHTED | POOLS | PAIRS | TABLES | MOVES | {"Concat", "ReduceMean"}

Array = npt.NDArray[Any]


def exponents(encoding: Encoding, tensor: str) -> tuple[int, ...]:
    """`e` where the scales are `2**e`."""
    mantissa, exponent = np.frexp(encoding.scale)
    if not encoding.symmetric or encoding.block is not None or not np.all(mantissa == 0.5):
        raise refusal(f"the tensor {tensor!r}", "its scale is not a power of two, or it has a zero point")
    return tuple((np.atleast_1d(exponent) - 1).tolist())


def quant_type(activation: Encoding, weight: Encoding) -> str:
    if activation.dtype == "int8":
        return "S8"
    return "W8A16" if weight.dtype == "int8" else "S16"


def refusal(what: str, found: str) -> DeployError:
    other = "deploy with files=['ppq_json'], whose float.onnx esp-ppq takes"
    return DeployError(f"write {what} as espdl", found, f"keep it out of the network, or {other}")


def table_of(ops: list[Op], data: Operand, grid: Encoding, constants: Mapping[str, Array]) -> Array:
    """The codes that `ops`, one after the other, give for each of the 256 codes, from the least to the greatest."""
    assert data.encoding is not None
    values: dict[str, Any] = {data.tensor: torch.from_numpy(data.encoding.dequantize(np.arange(-128, 128)))}
    for op in ops:
        held = [None if read is None else constants.get(read.tensor) for read in op.inputs]
        given = [None if read is None else values.get(read.tensor) for read in op.inputs]
        values[op.outputs[0]] = REFERENCE[op.type](KernelCall(op.type, given, op.attributes, held, name=op.name))
    return grid.quantize(values[ops[-1].outputs[0]].numpy()).astype(np.int8)
