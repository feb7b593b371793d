"""Networks for one size of inputs, and how nodes of an exported program are put together for ExecuTorch's delegate."""

from __future__ import annotations

import numpy as np
import torch
from torch import fx

from detent.ir import Network, Op, Operand, Output, Port
from detent.ir.fixed_sizes import with_fixed_sizes
from detent.ir.torch_module import FloatGrids, TorchGraph
from detent.targets.executorch.partition import _regroup


def test_what_is_computed_from_shapes_is_constant() -> None:
    """(batch, 2, 3) to (batch, 6) by way of Shape, Slice and Concat."""
    ops = (
        Op("Shape", "shape", (Operand("x"),), ("shape",)),
        Op("Slice", "first", (Operand("shape"), Operand("zero"), Operand("one")), ("first",)),
        Op("Concat", "sizes", (Operand("first"), Operand("rest")), ("sizes",), {"axis": 0}),
        Op("Reshape", "y", (Operand("x"), Operand("sizes")), ("y",)),
    )
    constants = {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([6])}
    port = Port("float32", ("batch", 2, 3))
    graph = Network({"x": port}, (Output("y", Operand("y")),), ops, constants, frozenset(), {}, 21)
    fixed = with_fixed_sizes(graph, (torch.zeros(4, 2, 3),))
    assert [op.name for op in fixed.ops] == ["y"]
    assert fixed.constants["sizes"].tolist() == [4, 6]
    x = torch.arange(24.0).reshape(4, 2, 3)
    (found,) = TorchGraph(fixed, FloatGrids())(x)
    assert found.tolist() == x.reshape(4, 6).tolist()


def test_a_network_without_such_operations_stays_as_it_is() -> None:
    ops = (Op("Relu", "y", (Operand("x"),), ("y",)),)
    graph = Network({"x": Port("float32", (1,))}, (Output("y", Operand("y")),), ops, {}, frozenset(), {}, 21)
    assert with_fixed_sizes(graph, (torch.zeros(1),)) is graph


def groups(taken: str, edges: dict[str, str]) -> dict[str, str]:
    """The groups of a graph whose nodes read others (by letter); `taken` are those that go to the delegate."""
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    for name, reads in edges.items():
        nodes[name] = (
            graph.call_function(torch.add, tuple(nodes[read] for read in reads)) if reads else graph.placeholder(name)
        )
        if name in taken:
            nodes[name].meta["delegation_tag"] = f"tag_{name}"
    tags = _regroup(graph.nodes)
    found = {name: node.meta["delegation_tag"] for name, node in nodes.items() if name in taken}
    assert set(found.values()) == set(tags)
    return found


def test_a_residual_block_is_one_group() -> None:
    found = groups("abcd", {"x": "", "a": "x", "b": "a", "c": "b", "d": "ac"})
    assert len(set(found.values())) == 1


def test_what_waits_for_an_operation_outside_is_a_group_of_its_own() -> None:
    """a -> (outside) o -> c, and a -> b -> c: a and b can run before o, c cannot."""
    found = groups("abc", {"x": "", "a": "x", "o": "a", "b": "a", "c": "bo"})
    assert found["a"] == found["b"] != found["c"]


def test_constants_go_with_whoever_reads_them() -> None:
    found = groups("wvac", {"x": "", "w": "", "v": "", "a": "xw", "o": "a", "c": "ov"})
    assert found["w"] == found["a"] != found["c"] == found["v"]
