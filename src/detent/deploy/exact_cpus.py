"""On which kinds of CPU an engine computes the same integers from a deployed network."""

from __future__ import annotations

import numpy as np
import torch

from detent.cpus import X86
from detent.deploy.deployment import Deployment
from detent.deploy.qdq_graph import Op, QdqGraph
from detent.numerics import PAIR_LIMIT, Pairs

__all__ = ["can_saturate", "exact_cpus", "saturating_layers"]


def exact_cpus(deployment: Deployment) -> tuple[str, ...]:
    """The kinds of x86 CPU on which no pair of products can saturate, whatever the inputs."""
    saturating = deployment.backend.saturates_on if saturating_layers(deployment.graph) else ()
    return tuple(name for name in X86 if name not in saturating)


def saturating_layers(graph: QdqGraph) -> tuple[str, ...]:
    """The names of the operations that have two weights whose products can leave 16 bits when they are added."""
    return tuple(op.name for op in graph.ops if can_saturate(graph, op))


def can_saturate(graph: QdqGraph, op: Op) -> bool:
    """Whether two products of 8-bit numbers that an engine may add in a pair can leave 16 bits."""
    weight = op.inputs[1] if len(op.inputs) > 1 else None
    if weight is None or weight.encoding is None or weight.encoding.dtype != "int8" or weight.encoding.block:
        return False
    if weight.tensor not in graph.constants:
        return op.type == "MatMul" and weight.encoding.qmax - weight.encoding.qmin > PAIR_LIMIT
    codes = graph.constants[weight.tensor].astype(np.int64)
    pairs = _pairs(op, codes.shape)
    return pairs is not None and pairs.largest(torch.from_numpy(codes)) > PAIR_LIMIT


def _pairs(op: Op, shape: tuple[int, ...]) -> Pairs | None:
    """As `detent.backends` has them; None of an operation that multiplies by no weights, or by each of them alone."""
    groups = int(op.attributes.get("group", 1))
    if op.type == "Conv" and not (shape[1] == 1 and shape[0] == groups > 1):
        return Pairs(outputs=0, inputs=1, settled=shape[1] % 2 == 0)
    if op.type == "ConvTranspose":
        return Pairs(outputs=1, inputs=0, settled=shape[0] // groups % 2 == 0)
    if op.type in ("Gemm", "MatMul") and len(shape) == 2:
        inputs = 1 if op.type == "Gemm" and op.attributes.get("transB") else 0
        return Pairs(outputs=1 - inputs, inputs=inputs, settled=shape[inputs] % 2 == 0)
    return None
