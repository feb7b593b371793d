"""Moves weights that forward passes to a function, `F.conv2d(x, self.w, self.b)` or `x @ self.w`, into modules.

The module replaces the parameter and holds it (`w` becomes `w.weight`, its bias `w.bias`), so that everything that
quantizes, folds, trains or deploys modules applies to it. The weight of `x @ w` is stored transposed, as in a linear
layer. A parameter with any other use stays where it is, and the node says why. A bias that forward computes is added
after a linear layer without one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from detent.graph.capture.capture import Captured
from detent.graph.kinds import KINDS
from detent.graph.region import Region
from detent.graph.torch_ops import kind_of, torch_op
from detent.graph.wrap import Functional

__all__ = ["WHY_FLOAT", "functional_weight", "is_inside_graph_break", "lift_functional_weights"]

WHY_FLOAT = "why its weight stays float"
"""Of a node that keeps its functional weight: where the reason is in its `meta`."""

_PRODUCT = ("input", "weight")


@dataclass(frozen=True)
class _Wanted:
    """The module that a call asks for. Paths are those of the parameters, in the region."""

    make: type[nn.Module]
    weight: str
    bias: str | None
    transposed: bool
    options: tuple[tuple[str, Any], ...]


def lift_functional_weights(captured: Captured) -> set[int]:
    """Replace the calls, in place. Gives the ids of the parameters that are transposed now."""
    transposed: set[int] = set()
    for path, region in captured.regions.items():
        if is_inside_graph_break(path, captured):
            continue  # its Python code may read them too
        wanted = {node: found for node in _nodes(region) if (found := _wanted(node, region)) is not None}
        modules: dict[_Wanted, list[fx.Node]] = {}
        for node, asked in wanted.items():
            other = _other_reader(asked, region, wanted, captured)
            if other is None:
                modules.setdefault(asked, []).append(node)
            else:
                node.meta[WHY_FLOAT] = f"{asked.weight} is used by {other} too"
        for asked, nodes in modules.items():
            if asked.transposed:
                transposed.add(id(_tensor(region, asked.weight)))
            _replace(region, asked, nodes)
        if modules:
            region.recompile()
    return transposed


def is_inside_graph_break(path: str, captured: Captured) -> bool:
    """Whether the parts of a region stand in a module that stays Python."""
    return any(path != each and path.startswith(f"{each}." if each else "") for each in captured.graph_breaks)


def _nodes(region: Region) -> Iterator[fx.Node]:
    for graph in region.graphs.values():
        yield from graph.nodes


# ---- the module for a call ----


def _wanted(node: fx.Node, region: Region) -> _Wanted | None:
    make, names = _function(node, region)
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    data, weight, bias = (given.pop(name, None) for name in ("input", "weight", "bias"))
    path, transposed = _parameter(weight, region)
    bias_path, _ = _parameter(bias, region)
    if make is None or path is None or not isinstance(data, fx.Node):
        return None
    if bias is not None and bias_path is None and _computed_bias(node, region) is None:
        return None
    if (transposed and make is not nn.Linear) or not all(map(_is_constant, given.values())):
        return None
    is_product = names is _PRODUCT
    if is_product and _tensor(region, path).ndim != 2:
        return None
    options = tuple((name, _size(value)) for name, value in sorted(given.items()))
    # A product has its weight the other way round than a linear layer.
    return _Wanted(make, path, bias_path, transposed is not is_product, options)


def _function(node: fx.Node, region: Region) -> tuple[type[nn.Module] | None, tuple[str, ...]]:
    """The module that computes what a call of a function does, and the names of the call's arguments."""
    called = region.get_submodule(str(node.target)) if node.op == "call_module" else None
    if node.op not in ("call_function", "call_method") and not isinstance(called, Functional):
        return None, ()
    target = called.target if isinstance(called, Functional) else node.target
    op = torch_op(target)
    if op is not None and KINDS[op.kind].weight:
        return op.module_for(target), ("input", *op.parameters, *op.attributes)
    kind = kind_of(node, {str(node.target): called} if called is not None else {})
    return (nn.Linear, _PRODUCT) if kind is not None and kind.name == "matmul" else (None, ())


def functional_weight(node: fx.Node, region: Region) -> Any:
    """What a call hands to a function as its weight, if that is no parameter; None if it calls none that takes one."""
    make, names = _function(node, region)
    weight = None if make is None else {**dict(zip(names, node.args, strict=False)), **node.kwargs}.get("weight")
    return None if _parameter(weight, region)[0] is not None else weight


def _computed_bias(node: fx.Node, region: Region) -> fx.Node | None:
    """The bias of a linear call, if it is not a parameter."""
    make, names = _function(node, region)
    bias = {**dict(zip(names, node.args, strict=False)), **node.kwargs}.get("bias")
    if make is not nn.Linear or not isinstance(bias, fx.Node) or _parameter(bias, region)[0] is not None:
        return None
    return bias


def _is_constant(value: Any) -> bool:
    parts = value if isinstance(value, (list, tuple)) else [value]
    return all(part is None or isinstance(part, (int, float, str)) for part in parts)


def _size(value: Any) -> Any:
    """As modules take it: one number, or one per dimension."""
    if isinstance(value, (list, tuple)):
        return value[0] if len(value) == 1 else tuple(value)
    return value


def _parameter(argument: Any, region: Region) -> tuple[str | None, bool]:
    """The path of the parameter or buffer that an argument is, and whether it is a matrix that is transposed first."""
    transposed = isinstance(argument, fx.Node) and _transposes(argument)
    read = argument.all_input_nodes[0] if transposed else argument
    if not isinstance(read, fx.Node) or read.op != "get_attr":
        return None, False
    owner, _, name = str(read.target).rpartition(".")
    holder = region.get_submodule(owner)
    held = holder._parameters.get(name, holder._buffers.get(name))
    if held is None or not held.is_floating_point() or (transposed and held.ndim != 2):
        return None, False
    return str(read.target), transposed


def _transposes(node: fx.Node) -> bool:
    """Whether a node transposes a matrix: `w.t()`, `w.T`, `w.mT`, `w.transpose(0, 1)`."""
    if node.target is getattr:
        return node.args[1] in ("T", "mT")
    if node.target == "t":
        return True
    swaps = node.target == "transpose" or node.target is torch.transpose
    return swaps and set(node.args[1:]) in ({0, 1}, {-1, -2}, {0, -1}, {1, -2})


def _tensor(region: Region, path: str) -> Tensor:
    owner, _, name = path.rpartition(".")
    found: Tensor = getattr(region.get_submodule(owner), name)
    return found


# ---- who else uses it ----


def _other_reader(asked: _Wanted, region: Region, wanted: dict[fx.Node, _Wanted], captured: Captured) -> str | None:
    """A reader that uses the parameters of a call in another way; calls that need the same module share it."""
    held = {id(_tensor(region, path)) for path in (asked.weight, asked.bias) if path is not None}
    for other in captured.regions.values():
        for node in _nodes(other):
            if node.op == "get_attr" and id(_value(other, str(node.target))) in held:
                for reader in _readers(node):
                    if wanted.get(reader) != asked:
                        return reader.name
            if node.op == "call_module" and held & _ids(other.get_submodule(str(node.target))):
                return str(node.target)
    return None


def _readers(node: fx.Node) -> list[fx.Node]:
    return [reader for user in node.users for reader in (list(user.users) if _transposes(user) else [user])]


def _value(region: Region, path: str) -> Any:
    value: Any = region
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _ids(module: nn.Module) -> set[int]:
    owners = [module, *vars(module).get("_owner", ())]  # a method that stays one node has its module beside it
    return {id(tensor) for owner in owners for tensor in (*owner.parameters(), *owner.buffers())}


# ---- the module ----


def _replace(region: Region, asked: _Wanted, nodes: list[fx.Node]) -> None:
    weight = _tensor(region, asked.weight)
    if asked.transposed:
        weight.data = weight.data.t().contiguous()
    module = _MAKERS.get(asked.make, _convolution)(asked, weight).train(region.training)
    _move(region, asked.weight, module, "weight")
    if asked.bias is not None:
        _move(region, asked.bias, module, "bias")
    owner, _, name = asked.weight.rpartition(".")
    region.get_submodule(owner).add_module(name, module)
    for node in nodes:
        data = node.args[0] if node.args else node.kwargs["input"]
        before = node.all_input_nodes
        added = _computed_bias(node, region) if asked.bias is None else None
        node.op, node.target, node.args, node.kwargs = "call_module", asked.weight, (data,), {}
        if added is not None:
            _add_behind(node, added)
        for source in before:
            _erase_unused(source)


def _add_behind(node: fx.Node, added: fx.Node) -> None:
    readers = list(node.users)
    with node.graph.inserting_after(node):
        total = node.graph.call_function(operator.add, (node, added))
    total.meta.update(node.meta)
    for reader in readers:
        reader.replace_input_with(node, total)


def _move(region: Region, path: str, module: Any, which: str) -> None:
    owner_path, _, name = path.rpartition(".")
    owner = region.get_submodule(owner_path)
    tensor = _tensor(region, path)
    persistent = name not in owner._non_persistent_buffers_set
    delattr(owner, name)
    delattr(module, which)
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(which, tensor)
    else:
        module.register_buffer(which, tensor, persistent=persistent)


def _erase_unused(node: fx.Node) -> None:
    left = [node]
    while left:
        node = left.pop()
        if not node.users and (node.op == "get_attr" or _transposes(node)):
            left += node.all_input_nodes
            node.graph.erase_node(node)


def _convolution(asked: _Wanted, weight: Tensor) -> nn.Module:
    options = dict(asked.options)
    groups = options.get("groups", 1)
    first, second = int(weight.shape[0]), int(weight.shape[1])
    transposed = issubclass(asked.make, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))
    inputs, outputs = (first, second * groups) if transposed else (second * groups, first)
    # On no device, so that nothing is drawn or stored: its parameters are put in after.
    return asked.make(inputs, outputs, tuple(weight.shape[2:]), bias=False, device="meta", **options)


def _linear(asked: _Wanted, weight: Tensor) -> nn.Module:
    del asked
    return nn.Linear(int(weight.shape[1]), int(weight.shape[0]), bias=False, device="meta")


def _embedding(asked: _Wanted, weight: Tensor) -> nn.Module:
    return nn.Embedding(int(weight.shape[0]), int(weight.shape[1]), device="meta", **dict(asked.options))


_MAKERS: dict[type[nn.Module], Callable[[_Wanted, Tensor], nn.Module]] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
}
