"""`wrap`: replaces functional operators and tensor methods of a model by modules that compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx, nn

from detent.graph.capture.capture import capture
from detent.graph.kinds import Kind
from detent.graph.region import Region
from detent.graph.torch_ops import kind_of

__all__ = ["Functional", "wrap"]


class Functional(nn.Module):
    """A module that calls one function (`torch.cat`, `operator.add`) or tensor method (`mean`)."""

    def __init__(self, target: Callable[..., Any] | str, kind: str):
        super().__init__()
        self.target, self.kind = target, kind

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.target, str):
            return getattr(args[0], self.target)(*args[1:], **kwargs)
        return self.target(*args, **kwargs)

    def extra_repr(self) -> str:
        return self.target if isinstance(self.target, str) else getattr(self.target, "__name__", str(self.target))


def wrap(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """`model` with every `+`, `*=`, `torch.cat`, `x.mean`, ... as a module of its own; `model` is left as it was.

    Each call is one module, named `wrapped_<operation>_<n>`; parameters keep their names. The arguments are example
    inputs. Operations on shapes and types, and comparisons, stay as they are.
    """
    captured = capture(model, args, example_kwargs=kwargs)
    for region in captured.regions.values():
        _wrap_region(region)
    return captured.module


def _wrap_region(region: Region) -> None:
    modules: dict[tuple[str, str], str] = {}
    counts: dict[str, int] = {}
    for graph in region.graphs.values():
        for node in list(graph.nodes):
            kind = kind_of(node, dict(region.named_modules()))
            if node.op not in ("call_function", "call_method") or kind is None or not kind.carries_activations:
                continue
            key = (node.name, str(node.target))  # the same call in two forward modes is one module
            if key not in modules:
                counts[kind.name] = counts.get(kind.name, 0) + 1
                modules[key] = f"wrapped_{kind.name}_{counts[kind.name]}"
                region.add_module(modules[key], _functional(node, kind))
            with graph.inserting_after(node):
                module = graph.create_node("call_module", modules[key], node.args, node.kwargs)
            module.meta = dict(node.meta)
            node.replace_all_uses_with(module)
            graph.erase_node(node)
    region.recompile()


def _functional(node: fx.Node, kind: Kind) -> Functional:
    return Functional(node.target, kind.name)
