"""Products of block-quantized weights with activations that the engine rounds to 8 bits at run time, block by block.

Codes are multiplied and added in integers within a block, and blocks in float32, in some order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand
from detent.ir.names import TensorNames
from detent.ir.roundoff import UNIT
from detent.ir.roundoff.error_bound import Errors, FloatKernel, Inputs, is_certain, of_finite
from detent.twin import Arithmetic, Step, requantize
from detent.twin.lowering import float_step, lower

__all__ = ["BlockProduct", "RoundedBlocks"]


@dataclass(frozen=True)
class BlockProduct:
    """The engine's operator: `type` in `domain`, with the inputs activations, real weight, `reach` and perhaps a bias.

    `reach` (groups, outputs) is the largest number that the codes of a group of weights can make. A group is a block of
    activations or a part of one.

    `round_blocks` rounds activations (..., columns) to whole numbers (..., blocks, size), and gives the scale of each
    block too. `roundings` is how often a sum is rounded beyond twice for each block.
    """

    type: str
    domain: str
    round_blocks: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    roundings: int

    def multiply(self, op: Op, x: Tensor, weight: Tensor, reach: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply in float64, which holds the sums of a block exactly."""
        del reach
        codes, scale = self.round_blocks(x, int(op.attributes["block_size"]))
        real = (codes.double() * scale.double().unsqueeze(-1)).flatten(-2)
        product = real @ _matrix(op, weight)
        return (product if bias is None else product + bias.double()).float()

    def error(self, op: Op, kernel: FloatKernel, inputs: Inputs, values: tuple[Tensor, ...]) -> Errors:
        """Relative to the sum of |activation| times `reach`, and |bias|. The integer sum of a block is below 2^24 and
        so exact in float32."""
        del kernel
        x, weight, reach, bias = (*inputs, None)[:4]
        assert x is not None
        assert weight is not None
        assert reach is not None
        codes, scale = self.round_blocks(x.value, int(op.attributes["block_size"]))
        *rows, blocks, size = codes.shape
        groups = reach.value.shape[0]
        added = self.magnitudes(x.value, codes).reshape(*rows, blocks, groups // blocks, -1)
        sums = added.sum(-1) * scale.abs().unsqueeze(-1)
        largest = sums.reshape(*rows, groups).double() @ reach.value.double()
        if bias is not None:
            largest = largest + bias.value.double().abs()
        count = (2 * blocks + self.roundings) * UNIT
        error = 2 * (count / (1 - count)) * largest
        if not is_certain(inputs):
            # Where activations are uncertain, so is every code by a step of the grid.
            spread = x.spread.double().reshape(*rows, blocks, size)
            moved = spread + self.moved(scale.abs().double(), spread)
            error = error + moved.flatten(-2) @ _matrix(op, weight.value).abs()
        return [of_finite(error, values[0])]

    def magnitudes(self, x: Tensor, codes: Tensor) -> Tensor:
        """How large the numbers are that the engine adds up for each activation, in steps."""
        del x
        return codes.abs()

    def moved(self, scale: Tensor, spread: Tensor) -> Tensor:
        """How far rounding takes activations that are uncertain by `spread`: a step of the grid of their block."""
        return (scale + spread.amax(-1) / 127).unsqueeze(-1)


def _matrix(op: Op, weight: Tensor) -> Tensor:
    return weight.double().T if op.attributes["transB"] else weight.double()


class RoundedBlocks(Arithmetic):
    """The same integers within a block, and float32 sums over blocks in another order.

    A subclass has `functions` and `roundoff` of its `product`.
    """

    claim = "integer sums of blocks equal; float32 sums over blocks in another order"

    product: ClassVar[BlockProduct]

    @abstractmethod
    def blocks(self, graph: Network, op: Op) -> tuple[int, npt.NDArray[Any]] | None:
        """For a product with a weight in blocks: the block size of its activations, and the `reach` of its groups
        (outputs, groups); None of any other operation."""

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return requantize.quantize(values, encoding)

    @property
    def integer_operators(self) -> frozenset[str]:
        return frozenset(("MatMul", "Gemm"))

    def rewrite(self, graph: Network) -> Network:
        """Products of weights in blocks as the engine's operator."""
        names, constants, ops = TensorNames(graph.names, "."), dict(graph.constants), []
        for op in graph.ops:
            found = self.blocks(graph, op)
            if found is None:
                ops.append(op)
                continue
            size, largest = found
            x, weight, *bias = op.inputs
            assert weight is not None
            reach = Operand(names.unique(f"{weight.tensor}_reach"))
            constants[reach.tensor] = np.ascontiguousarray(largest.T.astype(np.float32))
            turned = int(op.type == "Gemm" and bool(op.attribute("transB")))
            product = replace(op, type=self.product.type, domain=self.product.domain, inputs=(x, weight, reach, *bias))
            ops.append(replace(product, attributes={"block_size": size, "transB": turned}))
        return replace(graph, ops=tuple(ops), constants=constants)

    def lower(self, graph: Network) -> list[Step]:
        def product(graph: Network, op: Op) -> Step | None:
            return replace(float_step(graph, op, self.product.multiply), ran_as="integer")

        return lower(graph, {self.product.type: product})
