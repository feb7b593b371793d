"""How MatMulNBits computes on x86 at accuracy level 4 (MLAS, SQNBIT_CompInt8).

Every block of a row of activations is rounded to 8 bits, codes are multiplied and added in integers within a block, and
blocks in float32. Level 0 computes on real numbers, in some order: `detent.twin.WeightOnly`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand
from detent.ir.names import TensorNames
from detent.ir.roundoff import UNIT, Rule
from detent.ir.roundoff.error_bound import Errors, FloatKernel, Inputs, is_certain, of_finite
from detent.targets.onnxruntime_genai.blocks import blocks_of
from detent.twin import Arithmetic, Step, requantize
from detent.twin.arithmetic import Kernel
from detent.twin.lowering import float_step, lower

__all__ = ["RoundedActivations", "multiply_blocks", "round_blocks"]

_TYPE = "MatMulNBits"


def round_blocks(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Activations (..., columns) as whole numbers -127 to 127 (..., blocks, size), and the scale of each block.

    The largest number of a block becomes 127. The quotient is a product with the reciprocal of the scale, in float32.

    >>> codes, scale = round_blocks(torch.tensor([[1.0, -0.5, 0.0, 0.0, 254.0, 1.0, 3.0, 0.0]]), 4)
    >>> codes.tolist(), scale[0, 1].item()
    ([[[127.0, -64.0, 0.0, 0.0], [127.0, 0.0, 2.0, 0.0]]], 2.0)
    """
    blocked = x.float().reshape(*x.shape[:-1], -1, size)
    largest = blocked.abs().amax(-1)
    most = torch.full_like(largest, 127.0)  # torch multiplies a plain number by the reciprocal, which rounds twice
    factor = torch.where(largest > 0, most / largest, 0.0)
    return torch.round(blocked * factor.unsqueeze(-1)), largest / most


def multiply_blocks(op: Op, x: Tensor, weight: Tensor, size: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product of level 4, of real weights: float64, which holds the sums of a block exactly."""
    del size
    codes, scale = round_blocks(x, int(op.attributes["block_size"]))
    real = (codes.double() * scale.double().unsqueeze(-1)).flatten(-2)
    matrix = weight.double().T if op.attributes["transB"] else weight.double()
    made = real @ matrix
    return (made if bias is None else made + bias.double()).float()


def _error(op: Op, kernel: FloatKernel, inputs: Inputs, values: tuple[Tensor, ...]) -> Errors:
    """Of a sum over n blocks. A term is the integer sum of a block, below 2^24 and so exact in float32, with unsigned
    codes, times the product of two scales: three roundings with that of the scale of activations. The engine takes
    zero points into account by n further terms. Adding these 2 n terms up and the bias rounds 2 n times more, and the
    twin's real weights are rounded once. All is relative to the sum of |activation| times the largest of
    `scale * (code + zero point)`, which is `size`."""
    del kernel
    x, weight, size, bias = inputs
    assert x is not None
    assert weight is not None
    assert size is not None
    block = int(op.attributes["block_size"])
    codes, scale = round_blocks(x.value, block)
    terms = 2 * codes.shape[-2] + 5
    reach = (codes.abs().sum(-1) * scale).double() @ size.value.double()
    if bias is not None:
        reach = reach + bias.value.double().abs()
    error = 2 * (terms * UNIT / (1 - terms * UNIT)) * reach
    if not is_certain(inputs):
        # Where activations are uncertain, so is every code by a step of the grid.
        spread = x.spread.double().reshape(*x.value.shape[:-1], -1, block)
        step = (scale.double() + spread.amax(-1) / 127).unsqueeze(-1)
        matrix = (weight.value.double().T if op.attributes["transB"] else weight.value.double()).abs()
        error = error + (spread + step).flatten(-2) @ matrix
    return [of_finite(error, values[0])]


class RoundedActivations(Arithmetic):
    """Level 4: the same integers within a block, and float32 sums over blocks in another order."""

    name = "onnxruntime_genai_a8"
    claim = "integer sums of blocks equal; float32 sums over blocks in another order"

    functions: ClassVar[Mapping[str, Kernel]] = {_TYPE: multiply_blocks}
    roundoff: ClassVar[Mapping[str, Rule]] = {_TYPE: _error}

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return requantize.quantize(values, encoding)

    @property
    def integer_operators(self) -> frozenset[str]:
        return frozenset(("MatMul", "Gemm"))

    def rewrite(self, graph: Network) -> Network:
        """Products of weights in blocks as operations of their own, which also read how large codes can be."""
        taken = [*graph.inputs, *graph.constants, *(name for op in graph.ops for name in (op.name, *op.outputs))]
        names, constants, ops = TensorNames(taken, "."), dict(graph.constants), []
        for op in graph.ops:
            blocks = None if op.type == "Gather" else blocks_of(graph, op)
            if blocks is None:
                ops.append(op)
                continue
            size = Operand(names.unique(f"{blocks.tensor}_size"))
            largest = (1 << blocks.bits) - 1 + blocks.zero_point
            constants[size.tensor] = np.ascontiguousarray((blocks.scale * largest).T.astype(np.float32))
            bias = op.inputs[2] if len(op.inputs) > 2 else None
            turned = int(op.type == "Gemm" and bool(op.attribute("transB")))
            ops.append(
                replace(
                    op,
                    type=_TYPE,
                    domain="com.microsoft",
                    inputs=(op.inputs[0], op.inputs[1], size, bias),
                    attributes={"block_size": blocks.size, "transB": turned},
                )
            )
        return replace(graph, ops=tuple(ops), constants=constants)

    def lower(self, graph: Network) -> list[Step]:
        def product(graph: Network, op: Op) -> Step | None:
            return replace(float_step(graph, op, multiply_blocks), ran_as="integer")

        return lower(graph, {_TYPE: product})
