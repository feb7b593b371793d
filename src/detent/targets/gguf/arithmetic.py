"""How llama.cpp multiplies weights in blocks on x86: activations are rounded to 8 bits, block by block.

Blocks of 32 (Q8_0, Q5_0, Q4_0) have a float16 scale each, those of 256 (K-quants) a float32. Codes are multiplied and
added in integers within a block, and blocks in float32, in some order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand
from detent.ir.names import TensorNames
from detent.ir.offsets import noted_offsets
from detent.ir.roundoff import UNIT, Rule
from detent.ir.roundoff.error_bound import Errors, FloatKernel, Inputs, is_certain, of_finite
from detent.targets.base.blocks import blocks_of
from detent.twin import Arithmetic, Step, requantize
from detent.twin.arithmetic import Kernel
from detent.twin.lowering import float_step, lower

__all__ = ["Ggml", "is_product", "multiply", "round_activations"]

_TYPE = "GgmlMulMat"
_SUPER = 256


def round_activations(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Activations (..., columns) as whole numbers (..., blocks, size), and the scale of each block.

    The largest number of a block becomes 127. In blocks of 256 the sign of the scale is such that it becomes -127.

    >>> codes, scale = round_activations(torch.tensor([[254.0] + [1.0, 3.0] * 15 + [0.0]]), 32)
    >>> codes[0, 0, :3].tolist(), scale.item()
    ([127.0, 0.0, 2.0], 2.0)
    """
    blocked = x.float().reshape(*x.shape[:-1], -1, size)
    at = blocked.abs().argmax(-1, keepdim=True)
    largest = blocked.gather(-1, at)
    most = torch.full_like(largest, 127.0)  # torch multiplies a plain number by the reciprocal, which rounds twice
    if size == _SUPER:
        factor = torch.where(largest != 0, -most / largest, 0.0)
        codes = torch.round(blocked * factor)
        return codes, torch.where(factor != 0, 1 / factor, 0.0).squeeze(-1)
    largest = largest.abs()
    factor = torch.where(largest > 0, most / largest, 0.0)
    return torch.round(blocked * factor), (largest / most).half().float().squeeze(-1)


def multiply(op: Op, x: Tensor, weight: Tensor, reach: Tensor) -> Tensor:
    """The product, of real weights: float64, which holds the sums of a block exactly."""
    del reach
    codes, scale = round_activations(x, int(op.attributes["block"]))
    real = (codes.double() * scale.double().unsqueeze(-1)).flatten(-2)
    return (real @ (weight.double().T if op.attributes["transB"] else weight.double())).float()


def _error(op: Op, kernel: FloatKernel, inputs: Inputs, values: tuple[Tensor, ...]) -> Errors:
    """Of a sum over n blocks. A term is an integer sum, below 2^24 and so exact in float32, times the product of two
    scales, rounded twice; K-quants add as many terms of offsets. Adding these 2 n terms up, in 8 parts that are added
    last, rounds 2 n + 8 times, and the twin's real weights are rounded once. All is relative to the sum of |activation|
    times the largest number that a group's codes and offset can make, which is `reach`."""
    del kernel
    x, weight, reach = inputs
    assert x is not None
    assert weight is not None
    assert reach is not None
    block = int(op.attributes["block"])
    codes, scale = round_activations(x.value, block)
    groups = reach.value.shape[0]
    sums = (codes.abs() * scale.abs().unsqueeze(-1)).flatten(-2)
    sums = sums.reshape(*sums.shape[:-1], groups, -1).sum(-1).double()
    terms = 2 * codes.shape[-2] + 11
    error = 2 * (terms * UNIT / (1 - terms * UNIT)) * (sums @ reach.value.double())
    if not is_certain(inputs):
        # Where activations are uncertain, so is every code by a step of the grid.
        spread = x.spread.double().reshape(*x.value.shape[:-1], -1, block)
        step = (scale.abs().double() + spread.amax(-1) / 127).unsqueeze(-1)
        matrix = (weight.value.double().T if op.attributes["transB"] else weight.value.double()).abs()
        error = error + (spread + step).flatten(-2) @ matrix
    return [of_finite(error, values[0])]


class Ggml(Arithmetic):
    """The same integers within a block, and float32 sums over blocks in another order."""

    name = "gguf"
    claim = "integer sums of blocks equal; float32 sums over blocks in another order"
    float_slack = 2.0**-18
    """Of the largest number: exp in softmax and SiLU is a polynomial there."""

    functions: ClassVar[Mapping[str, Kernel]] = {_TYPE: multiply}
    roundoff: ClassVar[Mapping[str, Rule]] = {_TYPE: _error}

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return requantize.quantize(values, encoding)

    @property
    def integer_operators(self) -> frozenset[str]:
        return frozenset(("MatMul", "Gemm"))

    def rewrite(self, graph: Network) -> Network:
        """Products of weights in blocks as operations of their own, which also read how large terms can be."""
        taken = [*graph.inputs, *graph.constants, *(name for op in graph.ops for name in (op.name, *op.outputs))]
        names, constants, ops = TensorNames(taken, "."), dict(graph.constants), []
        for op in graph.ops:
            found = None if op.type == "Gather" else _reach(graph, op)
            if found is None:
                ops.append(op)
                continue
            block, reach = found
            weight = op.inputs[1]
            assert weight is not None
            largest = Operand(names.unique(f"{weight.tensor}_reach"))
            constants[largest.tensor] = np.ascontiguousarray(reach.T.astype(np.float32))
            turned = int(op.type == "Gemm" and bool(op.attribute("transB")))
            attributes = {"block": block, "transB": turned}
            ops.append(
                replace(op, type=_TYPE, domain="ggml", inputs=(op.inputs[0], weight, largest), attributes=attributes)
            )
        return replace(graph, ops=tuple(ops), constants=constants)

    def lower(self, graph: Network) -> list[Step]:
        def product(graph: Network, op: Op) -> Step | None:
            return replace(float_step(graph, op, multiply), ran_as="integer")

        return lower(graph, {_TYPE: product})


def is_product(graph: Network, op: Op) -> bool:
    """Whether an operation multiplies by a weight in blocks."""
    return op.type != "Gather" and _reach(graph, op) is not None


def _reach(graph: Network, op: Op) -> tuple[int, npt.NDArray[np.float32]] | None:
    """How many activations are rounded together, and the largest that the terms of each group can be (rows, groups);
    None if it is no product of a weight in blocks."""
    offset = noted_offsets(op)
    if offset is not None and op.type in ("MatMul", "Gemm") and op.inputs[1] is not None:
        weight = graph.constants[op.inputs[1].tensor]
        weight = weight if op.type == "Gemm" and op.attribute("transB") else weight.T
        return _SUPER, np.abs(weight).reshape(*offset.shape, -1).max(-1) + 2 * offset
    blocks = blocks_of(graph, op, (16, 32))
    if blocks is None or len(op.inputs) > 2:
        return None
    return (32 if blocks.size == 32 else _SUPER), blocks.scale * (1 << (blocks.bits - 1))
