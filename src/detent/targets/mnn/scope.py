"""The state of rewriting a network for MNN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Network, Op, Operand
from detent.targets.mnn.layers import BINARY, MnnUnit, has_small_groups, is_large
from detent.targets.mnn.scales import MnnScales

__all__ = ["MnnScope", "written"]

_FLOATS = np.finfo(np.float32)


class MnnScope:
    """The float `network`, in which operations read the aliases that were created for them, and its constants, which
    grow. `graph` is the deployed network."""

    def __init__(self, network: Network, graph: Network):
        self.constants = dict(network.constants)
        self.outputs = {each.name for each in network.outputs}
        known = MnnScales(graph)
        self.convolved = {op.outputs[0] for unit in known.units for op in unit.ops if unit.head.type == "Conv"}
        self.alone = {unit.head.outputs[0] for unit in known.units}
        self.behind_products = known.behind_products
        self.never_on_codes, self.scaled = known.never_on_codes, known.grids.keys()
        self.casts = known.casts
        self.kept_from_codes = {
            unit.output
            for unit in known.units
            if unit.head.type in BINARY and unit.head.outputs[0] in known.never_on_codes
        }
        self.dense = {op.outputs[0] for op in graph.ops if has_small_groups(graph, op)}
        self._heads = {op.outputs[0]: unit.head.outputs[0] for unit in known.units for op in unit.ops}
        self._shapes = graph.shapes
        self._products = {op.outputs[0]: unit for unit in known.units for op in unit.ops if is_large(graph, unit)}
        self.network = replace(network, ops=tuple(self._with_aliases(op) for op in network.ops))

    def _with_aliases(self, op: Op) -> Op:
        """With the aliases that are made for an operation in place of what it reads."""
        head = self._heads.get(op.outputs[0], op.outputs[0])
        reads = (read and replace(read, tensor=self.casts.read_as(read.tensor, head)) for read in op.inputs)
        return replace(op, inputs=tuple(reads))

    def made_of(self, tensor: str) -> Iterator[Op]:
        """The operations that create the aliases of a tensor."""
        for one, other in pairwise(self.casts.aliases(tensor)):
            yield self.same(one, other)

    def same(self, tensor: str, output: str) -> Op:
        """An alias with the same values, through which no scale propagates."""
        return written("Max", [tensor, self.number(float(_FLOATS.min))], output, f"{output}.same")

    def product(self, tensor: str) -> MnnUnit | None:
        """The large matrix product that a tensor is part of."""
        return self._products.get(tensor)

    def producer(self, tensor: str) -> Op:
        found = self.network.producer(tensor)
        assert found is not None
        return found

    def constant(self, name: str, values: npt.NDArray[Any]) -> str:
        self.constants.setdefault(name, values)
        return name

    def number(self, value: float) -> str:
        return self.constant(f"mnn.{value:g}", np.array(value, np.float32))

    def sizes(self, tensor: str) -> tuple[int | str, ...] | None:
        """The spatial sizes of a tensor."""
        shape = self._shape(tensor)
        return None if shape is None else tuple(shape[2:])

    def rank(self, tensor: str) -> int | None:
        shape = self._shape(tensor)
        return None if shape is None else len(shape)

    def _shape(self, tensor: str) -> tuple[int | str, ...] | None:
        return self._shapes.get(self.casts.lineage(tensor)[-1])

    def readers(self, tensor: str) -> list[Op]:
        return [op for op in self.network.ops if tensor in op.input_names]


def written(op_type: str, reads: Sequence[str], output: str, name: str, **attributes: Any) -> Op:
    """An operation on real numbers; an absent input is ""."""
    inputs = tuple(Operand(tensor) if tensor else None for tensor in reads)
    return Op(op_type, name, inputs, (output,), attributes)
