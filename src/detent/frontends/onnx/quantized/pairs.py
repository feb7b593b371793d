"""Q/DQ pairs in the graph of a file: separates a second grid of a tensor, and restores ReLUs that a grid replaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from detent.frontends.onnx.skeleton import reads
from detent.ir import attribute_value
from detent.ir.protos import constant_tensors, without_initializers

__all__ = ["split_second_grids", "with_relus"]

Grid = tuple[object, ...]


def split_second_grids(model: ModelProto, ends: Mapping[str, tuple[int, int]]) -> ModelProto:
    """`model` with an Identity before every second grid of a tensor, for another reader or behind its first: what that
    gives is the tensor of the second grid. `model` itself if no tensor has two. `ends` are of codes, by tensor."""
    again = _second_grids(model, ends)
    if not again:
        return model
    taken = {name for node in model.graph.node for name in (*reads(node), *node.output)}
    return _with_nodes(model, _passed_on(model, again, taken))


def with_relus(model: ModelProto, relus: Mapping[str, str]) -> ModelProto:
    """`model` with a Relu before the Q whose codes are in `relus`, giving the tensor that is named there."""
    return _with_nodes(model, _clipped(model, relus)) if relus else model


def _with_nodes(model: ModelProto, nodes: Iterator[NodeProto]) -> ModelProto:
    made = without_initializers(model)
    made.graph.initializer.extend(model.graph.initializer)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _reading(node: NodeProto, tensor: str) -> NodeProto:
    changed = NodeProto()
    changed.CopyFrom(node)
    changed.input[0] = tensor
    return changed


def _passed_on(model: ModelProto, again: set[int], taken: set[str]) -> Iterator[NodeProto]:
    for place, node in enumerate(model.graph.node):
        if place not in again:
            yield node
            continue
        stem = f"{node.input[0]}_again"
        name = next(n for n in (stem, *(f"{stem}_{i}" for i in range(1, len(taken) + 2))) if n not in taken)
        taken.add(name)
        yield helper.make_node("Identity", [node.input[0]], [name], name=f"{name}/Identity")
        yield _reading(node, name)


def _clipped(model: ModelProto, relus: Mapping[str, str]) -> Iterator[NodeProto]:
    written: set[str] = set()
    for node in model.graph.node:
        name = relus.get(node.output[0], "") if node.op_type == "QuantizeLinear" else ""
        if name and name not in written:
            written.add(name)
            yield helper.make_node("Relu", [node.input[0]], [name], name=name)
        yield _reading(node, name) if name else node


def _second_grids(model: ModelProto, ends: Mapping[str, tuple[int, int]]) -> set[int]:
    """The positions of Q nodes that put a tensor on another grid than its first one, or than the one it comes from."""
    constants = constant_tensors(model.graph)
    makers = {name: node for node in model.graph.node for name in node.output}
    first: dict[str, Grid | None] = {}
    again: set[int] = set()
    for place, node in enumerate(model.graph.node):
        tensor = node.input[0] if node.op_type == "QuantizeLinear" else ""
        if not tensor or tensor in constants:
            continue
        before, grid = makers.get(tensor), _grid(node, constants, ends)
        if before is not None and before.op_type == "DequantizeLinear" and before.input[0] not in constants:
            first.setdefault(tensor, _grid(before, constants, ends))
        if grid is not None and first.setdefault(tensor, grid) != grid:
            again.add(place)
    return again


def _grid(node: NodeProto, constants: Mapping[str, TensorProto], ends: Mapping[str, tuple[int, int]]) -> Grid | None:
    """The grid of a Q or DQ node; None if a part of it is computed."""
    parts: list[object] = []
    several = False
    for name in node.input[1:3]:
        held = constants.get(name)
        if name and held is None:
            return None
        array = numpy_helper.to_array(held) if held is not None else None
        parts.append((str(array.dtype), array.tobytes()) if array is not None else None)
        several = several or (array is not None and array.size > 1)
    parts.append(ends.get(node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]))
    attributes = {a.name: a.i for a in node.attribute}
    along = [attribute_value(node.op_type, attributes, name) for name in ("axis", "block_size")]
    return (*parts, *along) if several else tuple(parts)
