"""One flat graph: functions of the model inlined, an `If` replaced by the branch it takes, a name for every node.

What is deployed is this graph with Q and DQ in it, and an engine takes no file in which two nodes have one name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx.inliner
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from detent.errors import OnnxError
from detent.frontends.onnx.call import label
from detent.frontends.onnx.reading.inference import without_weights
from detent.ir import TensorNames
from detent.ir.protos import without_initializers

__all__ = ["inline_functions", "with_branches"]

_DEPTH = 64  # functions that call functions
_MOST_NODES = 2**15  # or 16 times those that the file has: time and memory are in proportion to it


def inline_functions(model: ModelProto) -> ModelProto:
    """The functions of the model inlined, and every node with a name of its own; `model` itself if nothing changes."""
    nodes = _inlined_own_functions(model) if model.functions else list(model.graph.node)
    apart = list(_with_unique_names(nodes))
    if not model.functions and all(one is other for one, other in zip(nodes, apart, strict=True)):
        return model
    return _with(model, apart)


def with_branches(model: ModelProto, taken: Mapping[str, GraphProto]) -> ModelProto:
    """`model` with each `If` that `taken` names replaced by the branch it takes."""
    names = _names_of(model.graph)
    nodes: list[NodeProto] = []
    tensors: list[TensorProto] = []
    for node in model.graph.node:
        if node.op_type != "If" or label(node) not in taken:
            nodes.append(node)
            continue
        inner, held = _branch(taken[label(node)], node.output, names)
        nodes += inner
        tensors += held
    return _with(model, _with_unique_names(nodes), tensors)


def _with(model: ModelProto, nodes: Iterable[NodeProto], more: Iterable[TensorProto] = ()) -> ModelProto:
    made = without_initializers(model)
    kept = list(nodes)
    del made.graph.node[:], made.functions[:]
    made.graph.node.extend(kept)
    made.graph.initializer.extend([*model.graph.initializer, *more])
    return made


def _inlined_own_functions(model: ModelProto) -> list[NodeProto]:
    _Counting(model).check()
    try:
        flat = onnx.inliner.inline_local_functions(without_weights(model, model.graph.node))
    except Exception as error:  # attributes that are not given
        raise OnnxError("write out the functions of a model", str(error), "export it without functions") from error
    return list(flat.graph.node)


class _Counting:
    """How many nodes the functions of a model are written out: a few that call each other twice are millions."""

    def __init__(self, model: ModelProto):
        self._nodes = model.graph.node
        self._functions = {(one.domain, one.name, one.overload): one for one in model.functions}
        self._counts: dict[tuple[str, str, str], int | None] = {}

    def check(self) -> None:
        held = len(self._nodes) + sum(len(one.node) for one in self._functions.values())
        most = max(_MOST_NODES, 16 * held)
        if self._of(self._nodes, 0) > most:
            raise OnnxError(
                "write out the functions of a model",
                f"they are more than {most} nodes",
                "export it without them",
            )

    def _of(self, nodes: Iterable[NodeProto], depth: int) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += self._calls(key, depth) if key in self._functions else 1
            inner = [graph for a in node.attribute for graph in (*([a.g] if a.HasField("g") else []), *a.graphs)]
            total += sum(self._of(graph.node, depth) for graph in inner)
        return total

    def _calls(self, key: tuple[str, str, str], depth: int) -> int:
        if depth > _DEPTH or self._counts.get(key, 0) is None:
            raise OnnxError(
                f"write out the function {key[1]!r}",
                "it calls itself, or others too deep",
                "export it without functions",
            )
        if key not in self._counts:
            self._counts[key] = None
            self._counts[key] = self._of(self._functions[key].node, depth + 1)
        return self._counts[key] or 0


def _with_unique_names(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """The nodes; of those with one name all but the first have another. Without a name a node has its output's."""
    given = {node.name for node in nodes}
    seen: set[str] = set()
    for node in nodes:
        found = wanted = label(node)
        count = 0
        while found in seen or (found in given and not node.name) or (count and found in given):
            count += 1
            found = f"{wanted}_{count}"
        seen.add(found)
        if found == wanted:
            yield node
            continue
        renamed = NodeProto()
        renamed.CopyFrom(node)
        renamed.name = found
        yield renamed


def _names_of(graph: GraphProto) -> TensorNames:
    ends = (part.name for part in (*graph.input, *graph.output, *graph.initializer))
    return TensorNames([*ends, *(name for node in graph.node for name in (*node.input, *node.output))])


def _branch(graph: GraphProto, outputs: Sequence[str], names: TensorNames) -> tuple[list[NodeProto], list[TensorProto]]:
    """What a branch computes and holds, under names that are free; its output is called `outputs`."""
    computed = {name for node in graph.node for name in node.output if name}
    renamed: dict[str, str] = {}
    copies: list[NodeProto] = []
    for end, output in zip((value.name for value in graph.output), outputs, strict=False):
        if output and end in computed and end not in renamed:
            renamed[end] = output
        elif output:
            copies.append(helper.make_node("Identity", [end], [output], name=output))
    for name in (*(tensor.name for tensor in graph.initializer), *sorted(computed)):
        renamed.setdefault(name, names.unique(name))
    nodes = [_renamed(node, renamed) for node in (*graph.node, *copies)]
    tensors = []
    for tensor in graph.initializer:
        held = TensorProto()
        held.CopyFrom(tensor)
        held.name = renamed[tensor.name]
        tensors.append(held)
    return nodes, tensors


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    _rename(made, names)
    return made


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Also in the graphs inside of it, which read what is outside of them."""
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            own = {part.name for part in (*graph.input, *graph.initializer)}
            own.update(name for inner in graph.node for name in inner.output)
            outer = {name: new for name, new in names.items() if name not in own}
            for inner in graph.node:
                _rename(inner, outer)
            for value in graph.output:
                value.name = outer.get(value.name, value.name)
