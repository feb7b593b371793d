"""Steps that all of LiteRT's kernels compute alike: data movement, pooling, table lookup, integer biases."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand
from detent.ir.reference.windows import pool_windows
from detent.targets.litert.file.fusing import TfliteNode
from detent.targets.litert.file.kernels import is_wide
from detent.targets.litert.file.numbers import bias_codes
from detent.twin import Step
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.float_ops import float_kernel

__all__ = ["accumulator_bias", "along_axis", "average", "move", "shift_of", "table_kernel"]

Integers = npt.NDArray[np.int64]


def shift_of(encoding: Encoding) -> int:
    """The offset from the codes of the ONNX network to those of the file, which are int8."""
    return 128 if encoding.dtype == "uint8" else 0


def table_kernel(table: Integers, x: Encoding) -> Kernel:
    """Look every code up in `table`."""
    held = torch.from_numpy(table.astype(np.float32))
    return lambda codes: held[(codes - x.qmin).long()]


def accumulator_bias(graph: Network, node: TfliteNode, acc: Accumulator) -> Integers | None:
    """The integer bias on the scale of the accumulator; a float one is quantized as the writer does."""
    inputs = node.main.inputs
    read = node.bias or (inputs[2] if len(inputs) > 2 else None)
    if read is None:
        return None
    held, channels = graph.constants[read.tensor].reshape(-1), acc.weights.shape[0]
    scale = np.broadcast_to(acc.scale.reshape(-1), (channels,))
    if read.encoding is not None and read.encoding.symmetric:
        given = np.broadcast_to(read.encoding.scale.reshape(-1), (channels,))
        if np.allclose(given, scale, rtol=1e-6, atol=0):
            return np.array(np.broadcast_to(held, (channels,)), np.int64)
    real = held if read.encoding is None else read.encoding.dequantize(held)
    wide = is_wide(acc.input)
    return bias_codes(np.broadcast_to(real, (channels,)), scale, read.tensor, wide=wide).astype(np.int64)


def move(graph: Network, op: Op, x: Encoding) -> Step | None:
    """Data movement on codes: readers requantize if they use another grid. A padding value is quantized first."""
    writes = tuple(Operand(name, x) for name in op.outputs if name)
    if op.type != "Pad":
        return Step((op,), op.inputs, writes, float_kernel(graph, op), "moved")
    value = op.optional(2)
    if value is not None and value.tensor not in graph.constants:
        return None
    real = 0.0 if value is None else float(np.ravel(graph.constants[value.tensor])[0])
    filler = torch.tensor(float(x.quantize(np.array(real, np.float32))))
    compute = float_kernel(graph, op)
    reads = (*op.inputs[:2], None, *op.inputs[3:])

    def kernel(codes: Tensor, pads: Tensor | None = None, _value: None = None, axes: Tensor | None = None) -> Tensor:
        result: Tensor = compute(codes, pads, filler, axes)
        return result

    return Step((op,), reads, writes, kernel, "moved")


def average(op: Op, x: Encoding) -> Kernel:
    """`(sum +- count / 2) / count` of the file's codes, zero point included: half away from the code 0."""
    shift, zero_point = shift_of(x), int(x.zero_point)
    exact = torch.float64 if is_wide(x) else torch.float32

    def kernel(codes: Tensor) -> Tensor:
        parts, counts = pool_windows(op.attributes, codes.to(exact) - zero_point)  # outside is the real number 0
        sums = torch.stack(parts).sum(0).add_(counts * (zero_point - shift))
        sign = torch.where(sums > 0, 1.0, -1.0)
        return ((sums + sign * (counts / 2).floor()).to(torch.float64) / counts).trunc().add_(shift).to(torch.float32)

    return kernel


def along_axis(op: Op, kernel: Callable[[Tensor], Tensor]) -> Kernel:
    axis = int(op.attribute("axis"))
    return lambda codes: kernel(codes.movedim(axis, -1)).movedim(-1, axis)
