"""A network in parts that run one after another: on Qualcomm's HTP, or on the host's CPU where the HTP takes them not.

ONNX Runtime itself leaves operations to the CPU only if the HTP's library says beforehand that it does not know them.
Others fail when the graph is finished, and all of it with them; these are found by halving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from detent.ir.shapes import shapes_of

__all__ = ["PartModel", "Segment", "network_ops", "parts", "segments"]

Nodes = tuple[onnx.NodeProto, ...]

_QDQ = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Segment:
    """Operations, by the names of their first outputs, and whether they run on the host."""

    ops: frozenset[str]
    on_host: bool


@dataclass(frozen=True)
class PartModel:
    """The model of one segment."""

    model: onnx.ModelProto
    on_host: bool

    @property
    def inputs(self) -> list[str]:
        return [value.name for value in self.model.graph.input]

    @property
    def outputs(self) -> list[str]:
        return [value.name for value in self.model.graph.output]


def network_ops(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The operations of a model: all nodes except QuantizeLinear and DequantizeLinear."""
    return [node for node in model.graph.node if node.op_type not in _QDQ]


def parts(model: onnx.ModelProto, found: Sequence[Segment], also: Iterable[str] = ()) -> list[PartModel]:
    """The models of the segments of a network, which give the tensors `also` besides its outputs."""
    if len(found) == 1:
        whole = onnx.ModelProto()
        whole.CopyFrom(model)
        known = {value.name for value in whole.graph.output}
        whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in also if name not in known)
        return [PartModel(whole, found[0].on_host)]
    cut = _Cutting(model, also)
    on_host = {name for segment in found if segment.on_host for name in segment.ops}
    return [cut.part(segment, on_host) for segment in found]


def segments(model: onnx.ModelProto, loads: Callable[[PartModel], bool]) -> list[Segment]:
    """In the order in which they run; what computes on no codes before anything else does comes first, on the host."""
    cut = _Cutting(model)
    before = cut.before_codes()
    found = [Segment(frozenset(before), True)] if before else []
    found += _halved([unit for unit in cut.units() if not before.issuperset(unit)], before, cut, loads)
    merged: list[Segment] = []
    for segment in found:
        if merged and merged[-1].on_host and segment.on_host:
            merged[-1] = Segment(merged[-1].ops | segment.ops, True)
        else:
            merged.append(segment)
    return merged


def _halved(
    units: Sequence[tuple[str, ...]], before: set[str], cut: _Cutting, loads: Callable[[PartModel], bool]
) -> list[Segment]:
    if not units:
        return []
    ops = frozenset(name for unit in units for name in unit)
    if loads(cut.part(Segment(ops, False), before)):
        return [Segment(ops, False)]
    if len(units) == 1:
        return [Segment(ops, True)]
    middle = len(units) // 2
    return [*_halved(units[:middle], before, cut, loads), *_halved(units[middle:], before, cut, loads)]


class _Cutting:
    """Cuts parts from a model whose shapes are known.

    From the HTP codes go on to other parts, and from the host real numbers.
    """

    def __init__(self, model: onnx.ModelProto, also: Iterable[str] = ()):
        self.model = onnx.shape_inference.infer_shapes(model)
        graph = self.model.graph
        self._ops = network_ops(self.model)
        self._made_by = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._given = {*(value.name for value in graph.output), *also}
        values = (*graph.input, *graph.output, *graph.value_info)
        self._types = {value.name: value.type.tensor_type.elem_type for value in values}
        self._shapes = shapes_of(model)

    # --- which operations belong together

    def before_codes(self) -> set[str]:
        """The operations that depend on inputs of the network and on numbers alone, by way of no codes."""
        found: set[str] = set()
        known = {value.name for value in self.model.graph.input} | {"", *self._constants}
        for node in self._ops:
            if known.issuperset(node.input):
                found.add(node.output[0])
                known.update(node.output)
        return found

    def units(self) -> list[tuple[str, ...]]:
        """Operations with those that alone read their results as they are, such as a product and the bias behind it."""
        unit_of: dict[str, list[str]] = {}
        order: dict[int, tuple[int, list[str]]] = {}
        for i, node in enumerate(self._ops):
            joined = [node.output[0]]
            for name in node.input:
                maker = self._made_by.get(name)
                if maker is not None and maker.op_type not in _QDQ and self._is_read_once(maker):
                    earlier = unit_of[maker.output[0]]
                    if earlier is not joined:
                        order.pop(id(earlier), None)
                        joined[:0] = earlier
            unit_of.update(dict.fromkeys(joined, joined))
            order[id(joined)] = (i, joined)
        return [tuple(names) for _, names in sorted(order.values())]

    def _is_read_once(self, node: onnx.NodeProto) -> bool:
        name = node.output[0]
        return len(node.output) == 1 and len(self._readers.get(name, [])) == 1 and name not in self._given

    # --- cutting

    def part(self, segment: Segment, on_host: Iterable[str]) -> PartModel:
        """The operations of a segment, with the nodes that quantize what they read and write; `on_host` are all
        operations that run there."""
        host = {*on_host, *(segment.ops if segment.on_host else ())}
        nodes = list(self._nodes(segment, host))
        names = {node.output[0] for node in nodes}
        ordered = [node for node in self.model.graph.node if node.output[0] in names]
        made = {name for node in ordered for name in node.output}
        read = list(dict.fromkeys(name for node in ordered for name in node.input if name))
        wanted = [name for name in made if name in self._given or self._leaves(name, names, segment.on_host)]
        graph = helper.make_graph(
            ordered,
            self.model.graph.name,
            [self._value(name) for name in read if name not in made and name not in self._constants],
            [self._value(name) for name in sorted(wanted)],
            [self._constants[name] for name in read if name in self._constants],
        )
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        model.graph.CopyFrom(graph)
        return PartModel(model, segment.on_host)

    def _nodes(self, segment: Segment, host: set[str]) -> Iterator[onnx.NodeProto]:
        for op in self._ops:
            if op.output[0] not in segment.ops:
                continue
            yield op
            for name in op.input:
                yield from self._quantizing(name, segment, host)
            for name in op.output:
                yield from self._quantized(name, segment.on_host)

    def _quantizing(self, name: str, segment: Segment, host: set[str]) -> Iterator[onnx.NodeProto]:
        """What lies before a tensor that is read: from codes, and those from real numbers unless the HTP made them."""
        node = self._made_by.get(name)
        while node is not None and node.op_type in _QDQ:
            maker = self._made_by.get(node.input[0])
            own = maker is None or maker.op_type in _QDQ or maker.output[0] in host or maker.output[0] in segment.ops
            if node.op_type == "QuantizeLinear" and not own:
                return
            yield node
            node = maker

    def _quantized(self, name: str, on_host: bool) -> Iterator[onnx.NodeProto]:
        """What quantizes a result on the HTP, and the outputs of the network that are made of it."""
        for node in self._readers.get(name, []):
            if node.op_type == "QuantizeLinear":
                given = [reader for reader in self._readers.get(node.output[0], []) if reader.output[0] in self._given]
                yield from [] if on_host and not given else [node, *given]

    def _leaves(self, name: str, nodes: set[str], on_host: bool) -> bool:
        """Whether another part reads a tensor: codes, or what is no codes yet, which each quantizes for itself."""
        kind = self._made_by[name].op_type
        if kind == "DequantizeLinear":
            return False
        readers = self._readers.get(name, [])
        if kind == "QuantizeLinear":
            readers = [reader for node in readers for reader in (node, *self._readers.get(node.output[0], []))]
            return not on_host and any(reader.output[0] not in nodes for reader in readers)
        quantized = on_host and any(reader.op_type == "QuantizeLinear" for reader in readers)
        return quantized or any(reader.output[0] not in nodes for reader in readers)

    def _value(self, name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, self._types[name], self._shapes[name])
