"""A network that is being rewritten for MNN, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import onnx
from onnx import helper, numpy_helper

from detent.ir import Network
from detent.targets.mnn.layers import BINARY, MnnUnit, has_small_groups, is_large
from detent.targets.mnn.scale_propagation import REAL, aliases, read_as
from detent.targets.mnn.scales import MnnScales

__all__ = ["MnnScope"]

_FLOATS = np.finfo(np.float32)


class MnnScope:
    """The nodes and constants of a network by name, and of which of them MNN has to read an alias."""

    def __init__(self, model: onnx.ModelProto, graph: Network):
        self._model = model
        self.constants = {each.name: each for each in model.graph.initializer}
        self.outputs = {each.name for each in model.graph.output}
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

    def read_casts(self) -> None:
        """Let operations read the aliases that are made for them."""
        for node in self._model.graph.node:
            for index, name in enumerate(node.input):
                node.input[index] = read_as(name, self._heads.get(node.output[0], node.output[0]), self.casts)

    def made_of(self, tensor: str) -> Iterator[onnx.NodeProto]:
        """What makes the aliases of a tensor."""
        for one, other in pairwise(aliases(tensor, self.casts)):
            yield self.same(one, other)

    def same(self, tensor: str, output: str) -> onnx.NodeProto:
        """The same numbers, for which no scale goes on."""
        return helper.make_node("Max", [tensor, self.number(float(_FLOATS.min))], [output], name=f"{output}.same")

    def product(self, tensor: str) -> MnnUnit | None:
        """The large matrix product that a tensor is part of."""
        return self._products.get(tensor)

    def producer(self, tensor: str) -> onnx.NodeProto:
        found: onnx.NodeProto = next(node for node in self._model.graph.node if tensor in node.output)
        return found

    def constant(self, name: str, values: np.ndarray) -> str:
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(values, name)
            self._model.graph.initializer.append(self.constants[name])
        return name

    def number(self, value: float) -> str:
        return self.constant(f"mnn.{value:g}", np.array(value, np.float32))

    def array(self, name: str) -> np.ndarray:
        return numpy_helper.to_array(self.constants[name])

    def sizes(self, tensor: str) -> tuple[int | str, ...] | None:
        """Of a tensor, without batch and channels."""
        shape = self._shapes.get(_plain(tensor))
        return None if shape is None else tuple(shape[2:])

    def rank(self, tensor: str) -> int | None:
        shape = self._shapes.get(_plain(tensor))
        return None if shape is None else len(shape)

    def readers(self, tensor: str) -> list[onnx.NodeProto]:
        return [node for node in self._model.graph.node if tensor in node.input]


def _plain(alias: str) -> str:
    """The tensor that it is an alias of."""
    while alias.endswith(REAL):
        alias = alias.removesuffix(REAL)
    return alias
