"""Matches a quantized operation in a QDQ model and replaces it with other nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from detent.ir import CLIPPED, attribute_value
from detent.ir.protos import without_initializers
from detent.ir.shapes import shapes_of
from detent.rewrites.original import Original

__all__ = ["BLOCKS", "PHASES", "Constant", "Editing", "Found"]

PHASES = "_phases"
"""Ends the name of the weight or bias of a transposed convolution that is stored as that of a convolution: what it has
for each output channel is there once for each step of the stride."""

BLOCKS = "_blocks"
"""Ends the name of the weight of a convolution that is stored as that of one on blocks of pixels."""

_ACTIVATIONS = ("Relu", "Clip")


@dataclass(frozen=True)
class Constant:
    """What a constant input holds: `codes` with the scale and zero point of its DequantizeLinear, along `axis` if there
    are several, or real numbers (`scale` is None)."""

    name: str
    codes: npt.NDArray[Any]
    scale: npt.NDArray[Any] | None = None
    zero_point: npt.NDArray[Any] | None = None
    axis: int | None = None

    def renamed(self, name: str, codes: npt.NDArray[Any]) -> Constant:
        """Other codes on the same grid."""
        return replace(self, name=name, codes=codes)


@dataclass(frozen=True)
class Found:
    """An operation that reads a quantized tensor and whose result, perhaps through an activation function, is read on
    one grid and not otherwise, or as real numbers.

    `nodes` are all of it, `data` and `result` the names of what goes in (real numbers) and comes out; `before` and
    `behind` the scale and zero point of their grids, the latter empty if the result is read as real numbers.
    """

    nodes: tuple[onnx.NodeProto, ...]
    data: str
    before: tuple[str, ...]
    result: str
    behind: tuple[str, ...]


class Editing:
    """A copy of a model in the making; `finished` is the result."""

    def __init__(self, model: onnx.ModelProto):
        self.model = without_initializers(model)
        graph = self.model.graph
        self.nodes = list(graph.node)
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._given = {value.name for value in graph.output}
        self._shapes = shapes_of(model)
        self._taken = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
        self._instead: dict[str, list[onnx.NodeProto]] = {}  # by the last output of what they replace
        self._gone: set[str] = set()
        self._written: list[onnx.NodeProto] = []
        self._made_by = {name: node for node in self.nodes for name in node.output}
        self._users: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self._users.setdefault(name, []).append(node)

    # --- finding

    def found(self, *nodes: onnx.NodeProto, may_end_float: bool = False) -> Found | None:
        """The operation that `nodes` are, each alone reading the one before, if it is quantized before and behind.

        With `may_end_float` also if it is read as real numbers, unless through an activation function.
        """
        data = self._dequantized(nodes[0].input[0])
        if data is None or data.input[0] in self.initializers or nodes[0].output[0] in self._gone:
            return None
        chain = list(nodes)
        while (reader := self.only_reader(chain[-1].output[0])) is not None and reader.op_type in _ACTIVATIONS:
            if reader.output[0].endswith(CLIPPED):
                return None
            chain.append(reader)
        result = chain[-1].output[0]
        readers = self._users.get(result, [])
        grids = {tuple(reader.input[1:]) for reader in readers}
        on_grid = result not in self._given and len(grids) == 1 and all(r.op_type == "QuantizeLinear" for r in readers)
        if not on_grid and not (may_end_float and len(chain) == len(nodes)):
            return None
        behind = grids.pop() if on_grid else ()
        return Found(tuple(chain), nodes[0].input[0], tuple(data.input[1:]), result, behind)

    def only_reader(self, tensor: str) -> onnx.NodeProto | None:
        """The node that alone reads a tensor, as its first input or an addition's."""
        readers = self._users.get(tensor, [])
        return readers[0] if len(readers) == 1 and tensor not in self._given else None

    def maker(self, tensor: str) -> onnx.NodeProto | None:
        """The node that gives a tensor."""
        return self._made_by.get(tensor)

    def is_gone(self, node: onnx.NodeProto) -> bool:
        """Whether something else was written in its place."""
        return node.output[0] in self._gone

    def readers(self, tensor: str) -> list[onnx.NodeProto]:
        """The nodes that read a tensor, and one more if the network gives it."""
        end = [onnx.NodeProto(op_type="the output of the graph")] if tensor in self._given else []
        return [*self._users.get(tensor, []), *end]

    def constant(self, name: str) -> Constant | None:
        """The constant behind an input, stored as codes or as real numbers; None if it is computed."""
        if name in self.initializers:
            return Constant(name, numpy_helper.to_array(self.initializers[name]))
        node = self._dequantized(name)
        if node is None or any(held not in self.initializers for held in node.input):
            return None
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if attributes.get("block_size") or len(node.input) != 3:
            return None
        codes, scale, zero_point = (numpy_helper.to_array(self.initializers[held]) for held in node.input)
        axis = None if scale.ndim == 0 else int(attribute_value(node.op_type, attributes, "axis")) % codes.ndim
        return Constant(name, codes, scale, zero_point, axis)

    def shape(self, tensor: str) -> tuple[int | str, ...] | None:
        return self._shapes.get(tensor)

    def sizes(self, tensor: str) -> list[int] | None:
        """As a Reshape takes them, with -1 for a free size; None if there are several, or none is known."""
        shape = self._shapes.get(tensor)
        if shape is None or sum(isinstance(size, str) for size in shape) > 1:
            return None
        return [-1 if isinstance(size, str) else size for size in shape]

    def _dequantized(self, name: str) -> onnx.NodeProto | None:
        maker = self._made_by.get(name)
        return maker if maker is not None and maker.op_type == "DequantizeLinear" else None

    # --- writing

    def fresh(self, stem: str) -> str:
        name = next(n for n in (stem, *(f"{stem}.{i}" for i in range(1, 10_000))) if n not in self._taken)
        self._taken.add(name)
        return name

    def integers(self, values: Sequence[int], stem: str) -> str:
        return self._initializer(np.array(values, np.int64), f"{stem}_constant")

    def reals(self, values: npt.NDArray[np.float32], stem: str) -> str:
        return self._initializer(values, f"{stem}_constant")

    def _initializer(self, array: npt.NDArray[Any], stem: str) -> str:
        name = self.fresh(stem)
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name

    def stored(self, constant: Constant) -> str:
        """The name of a new constant's real values; made once."""
        if constant.name in self._made_by or constant.name in self.initializers:
            return constant.name
        if constant.scale is None or constant.zero_point is None:
            return self._initializer(constant.codes, constant.name)
        parts = {"quantized": constant.codes, "scale": constant.scale, "zero_point": constant.zero_point}
        names = [self._initializer(array, f"{constant.name}_{part}") for part, array in parts.items()]
        attributes: dict[str, Any] = {} if constant.axis is None else {"axis": constant.axis}
        node = helper.make_node(
            "DequantizeLinear", names, [constant.name], name=f"{constant.name}/DequantizeLinear", **attributes
        )
        self._taken.add(constant.name)
        self._made_by[constant.name] = node
        self._written.append(node)
        return constant.name

    def write(
        self,
        op: str,
        inputs: Sequence[str],
        stem: str,
        *,
        name: str | None = None,
        original: Original | None = None,
        **attributes: Any,
    ) -> str:
        """A node; the name of what it gives. `original` is what it was before."""
        given = self.fresh(f"{stem}.{op.lower()}")
        name = name or self.fresh(f"{stem}/{op}")
        node = helper.make_node(op, list(inputs), [given], name=name, **attributes)
        if original is not None:
            original.keep(node)
        self._written.append(node)
        return given

    def moved(self, op: str, tensor: str, arguments: Sequence[Sequence[int]], stem: str) -> str:
        """A Transpose, Reshape or Slice."""
        if op == "Transpose":
            return self.write(op, [tensor], stem, perm=arguments[0])
        return self.write(op, [tensor, *(self.integers(each, stem) for each in arguments)], stem)

    def on_grid(self, tensor: str, grid: Sequence[str]) -> str:
        """A tensor through QuantizeLinear and DequantizeLinear."""
        codes, real = self.fresh(f"{tensor}_quantized"), self.fresh(f"{tensor}_dequantized")
        for op, given, made in (("QuantizeLinear", tensor, codes), ("DequantizeLinear", codes, real)):
            name = self.fresh(f"{tensor}/{op}")
            self._written.append(helper.make_node(op, [given, *grid], [made], name=name))
        return real

    def activated(self, tensor: str, nodes: Sequence[onnx.NodeProto]) -> str:
        """The activation functions of what is replaced, under their names."""
        for node in nodes:
            made = onnx.NodeProto()
            made.CopyFrom(node)
            made.input[0], made.output[0] = tensor, self.fresh(f"{node.output[0]}.{node.op_type.lower()}")
            self._written.append(made)
            tensor = made.output[0]
        return tensor

    def replace(self, found: Found) -> None:
        """Put what was written since the last time in the place of `found`; the last node gives its result."""
        self._written[-1].output[0] = found.result
        self._instead[found.result] = self._written
        self._gone.update(node.output[0] for node in found.nodes)
        self._written = []

    def finished(self) -> onnx.ModelProto:
        nodes = []
        for node in self.nodes:
            name = node.output[0]
            nodes += self._instead.get(name, [] if name in self._gone else [node])
        graph = self.model.graph
        kept, wanted = [], set(self._given)
        for node in reversed(nodes):
            if wanted.intersection(node.output):
                kept.append(node)
                wanted.update(node.input)
        del graph.node[:]
        graph.node.extend(reversed(kept))
        graph.initializer.extend(tensor for name, tensor in self.initializers.items() if name in wanted)
        made = {name for node in kept for name in node.output}
        values = [value for value in graph.value_info if value.name in made]
        del graph.value_info[:]
        graph.value_info.extend(values)
        return self.model
