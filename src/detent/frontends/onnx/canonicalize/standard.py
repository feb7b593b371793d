"""Converts to standard ONNX: sorts nodes topologically and replaces onnxruntime's own operators.

Its Q and DQ become the standard's, which now have the same types. Its Gelu, which the preparation for QNN makes of
single steps, becomes these steps again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from detent.frontends.onnx.call import label
from detent.frontends.onnx.skeleton import reads
from detent.ir.protos import without_initializers

__all__ = ["use_standard_operators"]

_VENDOR = "com.microsoft"


def use_standard_operators(model: ModelProto) -> ModelProto:
    """The same network in standard operators, in order; `model` itself if it is that already."""
    given = list(model.graph.node)
    nodes = [one for node in _in_order(given) for one in _in_standard(node)]
    if len(nodes) == len(given) and all(one is other for one, other in zip(nodes, given, strict=True)):
        return model
    made = without_initializers(model)
    made.graph.initializer.extend(model.graph.initializer)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _in_standard(node: NodeProto) -> Iterator[NodeProto]:
    if node.domain == _VENDOR and node.op_type == "Gelu" and len(node.input) == len(node.output) == 1:
        yield from _gelu(node)
        return
    if node.domain != _VENDOR or node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        yield node
        return
    changed = NodeProto()
    changed.CopyFrom(node)
    changed.ClearField("domain")
    yield changed


def _gelu(node: NodeProto) -> Iterator[NodeProto]:
    """x (1 + erf(x / sqrt 2)) / 2"""
    (x,), stem = node.input, node.output[0]
    numbers = {"root": math.sqrt(2), "one": 1.0, "half": 0.5}
    for name, number in numbers.items():
        value = numpy_helper.from_array(np.array(number, np.float32), f"{stem}_{name}")
        yield helper.make_node("Constant", [], [f"{stem}_{name}"], name=f"{label(node)}_{name}", value=value)
    steps = [
        ("Div", [x, f"{stem}_root"], f"{stem}_divided"),
        ("Erf", [f"{stem}_divided"], f"{stem}_erf"),
        ("Add", [f"{stem}_erf", f"{stem}_one"], f"{stem}_sum"),
        ("Mul", [x, f"{stem}_sum"], f"{stem}_product"),
    ]
    for op_type, inputs, given in steps:
        yield helper.make_node(op_type, inputs, [given], name=f"{label(node)}_{op_type}")
    yield helper.make_node("Mul", [f"{stem}_product", f"{stem}_half"], [stem], name=label(node))


def _in_order(nodes: Sequence[NodeProto]) -> Sequence[NodeProto]:
    """Each behind those that it reads from, and else as they stand. Where that cannot be they are left as they are."""
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    before = [{makers[name] for name in reads(node) if name in makers} for node in nodes]
    if all(max(places, default=-1) < place for place, places in enumerate(before)):
        return nodes
    after: dict[int, list[int]] = {}
    for place, places in enumerate(before):
        for earlier in places:
            after.setdefault(earlier, []).append(place)
    waiting = [len(places) for places in before]
    ready = [place for place, count in enumerate(waiting) if not count]
    ordered: list[NodeProto] = []
    while ready:
        place = heapq.heappop(ready)
        ordered.append(nodes[place])
        for later in after.get(place, ()):
            waiting[later] -= 1
            if not waiting[later]:
                heapq.heappush(ready, later)
    return ordered if len(ordered) == len(nodes) else nodes
