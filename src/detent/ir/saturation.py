"""Finds the layers of a deployed network that saturate on CPUs that add products in pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from detent.ir.attributes import attribute_value
from detent.ir.network import Network, Op
from detent.ir.ops import Trait, ops_with
from detent.numerics import PAIR_LIMIT, Pairs

__all__ = ["can_saturate", "saturating_layers"]


def saturating_layers(network: Network) -> tuple[str, ...]:
    """The names of the operations that can saturate."""
    return tuple(op.name for op in network.ops if can_saturate(network, op))


def can_saturate(graph: Network, op: Op) -> bool:
    """Whether two products of 8-bit numbers that an engine may add in a pair can leave 16 bits."""
    weight = op.optional(1)
    if weight is None or weight.encoding is None or weight.encoding.dtype != "int8" or weight.encoding.block:
        return False
    if weight.tensor not in graph.constants:
        return op.type == "MatMul" and weight.encoding.qmax - weight.encoding.qmin > PAIR_LIMIT
    return _leaves_16_bits(op.type, op.attributes, graph.constants[weight.tensor])


def _leaves_16_bits(kind: str, attributes: Mapping[str, Any], codes: npt.NDArray[Any]) -> bool:
    pairs = _pairs(kind, attributes, codes.shape)
    return pairs is not None and pairs.largest(torch.from_numpy(codes.astype(np.int16))) > PAIR_LIMIT


def _pairs(kind: str, attributes: Mapping[str, Any], shape: tuple[int, ...]) -> Pairs | None:
    """The pairs whose products are added first; None if there are no weights, or each product is added alone."""
    if kind in ops_with(Trait.CONVOLUTION):
        of = Pairs.of_convolution if kind == "Conv" else Pairs.of_transposed
        return of(shape, int(attribute_value(kind, attributes, "group")))
    if kind in ("Gemm", "MatMul") and len(shape) == 2:
        transposed = kind == "Gemm" and attribute_value(kind, attributes, "transB")
        return Pairs.of_matrix(shape, inputs=1 if transposed else 0)
    return None
