"""The planner's view of one captured graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, fx, nn

from detent.graph import KINDS, Captured, FoldedBatchNorm, Kind, Region, called_module, fuse, kind_of
from detent.numerics import Pairs

__all__ = ["GraphView", "views"]


class GraphView:
    """For each node of a graph: its kind, its name, its inputs, and what it is fused with."""

    def __init__(
        self,
        path: str,
        region: Region,
        graph: fx.Graph,
        fusions: tuple[tuple[str, ...], ...],
        graph_breaks: Iterable[str] = (),
        own_operations: Sequence[Any] = (),
    ):
        self.path, self.region, self.graph = path, region, graph
        self.modules: dict[str, nn.Module] = dict(region.named_modules())
        self.kinds: dict[fx.Node, Kind] = {
            node: kind for node in graph.nodes if (kind := kind_of(node, self.modules)) is not None
        }
        own = tuple(one for one in own_operations if isinstance(one, type))
        for node in graph.nodes:
            called = called_module(node, self.modules)
            if isinstance(called, own) or (node.op == "call_function" and node.target in own_operations):
                self.kinds[node] = KINDS["opaque"]
        self.graph_breaks = frozenset(graph_breaks)
        self._chains = fuse(graph, self.modules, fusions)
        # A single operation inside a graph break is captured as the part "op" of a region in its place.
        inside = any(path.startswith(f"{each}." if each else "") for each in self.graph_breaks)
        self._is_one_op = inside and [name for name, _ in region.named_children()] == ["op"]

    # ---- kinds of nodes ----

    def kind(self, node: fx.Node) -> str:
        """The kind of a node, or what it is instead. A member of a dict or tuple has the kind of that: an input, an
        lstm."""
        while self.is_kind(node, "slice") and node.all_input_nodes and not self.data_inputs(node):
            node = node.all_input_nodes[0]
        kind = self.kinds.get(node)
        return kind.name if kind else "input" if node.op == "placeholder" else self.described(node)

    def is_kind(self, node: fx.Node, *names: str) -> bool:
        return node in self.kinds and self.kinds[node].name in names

    def described(self, node: fx.Node) -> str:
        """The operation as in the user's code, for nodes without a kind."""
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            return str(getattr(module, "operator", "")) or type(module).__name__  # of a file, its operator there
        target: Any = node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        return f"{node.op.removeprefix('call_')} {name}"

    def is_tensor(self, node: fx.Node) -> bool:
        """Whether the output is one floating-point tensor."""
        return bool(node.meta.get("is_real")) and "parts" not in node.meta

    def chain(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """The operations it is fused with, first to last; only itself if it is not fused."""
        return self._chains.get(node, (node,))

    def break_chain(self, node: fx.Node) -> None:
        """Undo the fusion of `node`: each operation stands alone."""
        for one in self.chain(node):
            self._chains.pop(one, None)

    def is_inside(self, node: fx.Node) -> bool:
        """Whether it is fused into the operation after it, so that its output is never stored."""
        return node is not self.chain(node)[-1]

    def data_inputs(self, node: fx.Node) -> list[fx.Node]:
        """The nodes whose floating-point values the operation computes with, in order, each once."""
        kind = self.kinds.get(node)
        if kind is None or kind.inputs == 0:
            return []
        if kind.inputs is None:
            return [source for source in node.all_input_nodes if source.meta.get("is_real")]
        named = dict(node.kwargs)
        given = [*node.args, *([named.pop("input")] if "input" in named else []), *named.values()]
        nodes = [value for value in given if isinstance(value, fx.Node) and value.meta.get("is_real")]
        return list(dict.fromkeys(nodes[: kind.inputs]))

    def holds_weight(self, node: fx.Node) -> bool:
        """Whether a weighted operation is a module with its own weight, and not a function."""
        module = called_module(node, self.modules)
        names = self.kinds[node].weight or {}
        return all(isinstance(getattr(module, name, None), Tensor) for name in names)

    def conv_axes(self, node: fx.Node) -> int | None:
        """The number of spatial axes of a convolution; None for another operation or a function."""
        if not self.is_kind(node, "conv", "conv_transpose") or node.op != "call_module":
            return None
        weight = getattr(self.modules[str(node.target)], "weight", None)
        return weight.ndim - 2 if isinstance(weight, Tensor) else None

    def is_depthwise(self, node: fx.Node) -> bool:
        """Whether a convolution is depthwise, with one or more filters per channel."""
        if self.conv_axes(node) is None:
            return False
        module = self.modules[str(node.target)]
        op: Any = module.op if isinstance(module, FoldedBatchNorm) else module
        return bool(op.groups > 1 and op.weight.shape[1] == 1)

    def pairs(self, node: fx.Node) -> Pairs | None:
        """Which weights of an operation engines multiply and add in pairs; None if they do not."""
        if not self.is_kind(node, "conv", "conv_transpose", "linear"):
            return None
        module = self.modules[str(node.target)]
        op: Any = module.op if isinstance(module, FoldedBatchNorm) else module
        if self.is_kind(node, "linear"):
            return Pairs.of_matrix(op.weight.shape, inputs=1)
        of = Pairs.of_convolution if self.is_kind(node, "conv") else Pairs.of_transposed
        return of(op.weight.shape, op.groups)

    def takers(self, node: fx.Node) -> list[fx.Node]:
        """The users of a node's output that use more than its shape."""
        return [user for user in node.users if not self.is_kind(user, "shape", "constant")]

    def constant(self, node: fx.Node) -> Tensor | None:
        """The tensor that a `get_attr` node reads."""
        value: Any = self.region
        for part in str(node.target).split("."):
            value = getattr(value, part, None)
        return value if node.op == "get_attr" and isinstance(value, Tensor) else None

    def first_calls(self) -> dict[fx.Node, int]:
        """The first node that calls each module, with the number of calls."""
        found: dict[str, list[fx.Node]] = {}
        for node in self.graph.nodes:
            if node.op == "call_module":
                found.setdefault(str(node.target), []).append(node)
        return {nodes[0]: len(nodes) for nodes in found.values()}

    # ---- names ----

    def tensor(self, node: fx.Node) -> str:
        """The name of the output of a node."""
        return self._named(node.name)

    def layer(self, node: fx.Node) -> str:
        """The name of an operation in recipes: that of its module, or its own."""
        if node.op != "call_module":
            return self._named(node.name)
        return self.path if self._is_one_op else self._named(str(node.target))

    def _named(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def views(captured: Captured, fusions: tuple[tuple[str, ...], ...]) -> list[GraphView]:
    """A view of each graph of each region, outer regions first."""
    found = []
    for path in sorted(captured.regions, key=lambda path: path.count(".") if path else -1):
        region = captured.regions[path]
        found += [
            GraphView(path, region, graph, fusions, captured.graph_breaks, captured.own_operations)
            for graph in region.graphs.values()
        ]
    return found
