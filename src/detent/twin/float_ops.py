"""ONNX operations in float32, for what an engine runs between a DequantizeLinear and a QuantizeLinear, and data
movement, which runs on codes as well.

They are the reference kernels, which compute in the order that ONNX Runtime does, to the last bit where torch can.
Where it cannot, ONNX Runtime itself computes the node (`foreign`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from detent.errors import DeployError
from detent.ir import Network, Op, Trait, ops_with
from detent.ir.reference import REFERENCE, KernelCall
from detent.ir.reference import Kernel as ReferenceKernel
from detent.twin.arithmetic import Kernel
from detent.twin.foreign import foreign_kernel

__all__ = ["FLOAT_OPS", "MOVES", "compute", "float_kernel", "only_moves"]

_LEFT_TO_ONNXRUNTIME = frozenset(
    (
        # Sums in an order of its own.
        "Col2Im", "CumSum", "Einsum", "GRU", "LSTM", "RNN", "Range", "ReduceL1", "ReduceL2", "ReduceLogSum",
        "ReduceLogSumExp", "ReduceSumSquare",
        # A function that it approximates.
        "Celu",
        # Which of several that are equal it takes.
        "ArgMax", "ArgMin", "TopK",
    )
)  # fmt: skip

FLOAT_OPS: Mapping[str, ReferenceKernel] = {
    name: kernel for name, kernel in REFERENCE.items() if name not in _LEFT_TO_ONNXRUNTIME
}
"""Operations that the twin computes itself."""

MOVES = (
    ops_with(Trait.MOVES_VALUES) - {"GatherElements"}  # which no engine is proven to run on codes
    | ops_with(Trait.POOL | Trait.EXTREME)
    | {"Resize"}  # if its mode is nearest
)
"""Operations with one data input whose output values are input values."""


def only_moves(op: Op) -> bool:
    """Whether the values that `op` gives are values of its first input."""
    return op.type in MOVES and (op.type != "Resize" or op.attribute("mode") == "nearest")


def compute(op: Op, *inputs: Tensor | None) -> Any:
    """The output of an operation of `FLOAT_OPS`: a tensor, or one for each named output."""
    outputs = sum(1 for name in op.outputs if name)
    return FLOAT_OPS[op.type](KernelCall(op.type, inputs, op.attributes, outputs=outputs, name=op.name))


def float_kernel(graph: Network, op: Op) -> Kernel:
    """The function of `op`, on one tensor for each of its inputs. One that is not in the table is run by ONNX Runtime;
    an operation of another domain than ONNX's is refused."""
    if op.domain not in ("", "ai.onnx", "com.microsoft"):
        raise DeployError(
            f"compute {op.domain}.{op.type} {op.name!r}",
            f"the twin has no such operation, as of opset {graph.opset}",
            "leave it out of the network that is verified, or write it with operations of ONNX",
        )
    if op.type not in FLOAT_OPS:
        return foreign_kernel(graph, op)
    return partial(compute, op)
