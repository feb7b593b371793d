"""Bounds the size of an imported network's tensors before any is computed: a file of a few bytes may request more
memory than any machine has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from detent.errors import OnnxError
from detent.graph import flat

__all__ = ["MOST_BYTES", "refuse_large_tensors"]

MOST_BYTES = 4 * 2**30
"""Of one tensor, unless told otherwise."""

_SMALL = 1024  # elements of integers that may be sizes, and are computed with


def refuse_large_tensors(
    network: fx.GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, most: int = MOST_BYTES
) -> None:
    """Refuse a network that makes a tensor of more than `most` bytes from these inputs.

    Sizes are worked out on torch's meta device, without numbers. What depends on numbers is left
    out, and all behind it.
    """
    named = dict(kwargs or {})
    places = [node for node in network.graph.nodes if node.op == "placeholder"]
    given = [*args, *(named.get(str(place.target)) for place in places[len(args) :])]
    with torch.no_grad():
        _Sizes(network, most).run(*map(_outline, given[: len(places)]))


class _Sizes(fx.Interpreter):
    def __init__(self, network: fx.GraphModule, most: int):
        super().__init__(network)
        self._most = most
        self._unknown: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        """None where a size depends on numbers."""
        value = None
        if n.op != "output" and self._unknown.isdisjoint(n.all_input_nodes):
            try:
                value = super().run_node(n)
            except Exception:  # whatever an operation does where there are no numbers
                value = None
        if value is None:
            self._unknown.add(n)
            return None
        for part in flat(value):
            if isinstance(part, Tensor) and part.numel() * part.element_size() > self._most:
                names = n.meta.get("names") or [n.name]
                raise OnnxError(
                    f"run {names[0]!r}",
                    f"it makes a tensor of {list(part.shape)}, {part.numel() * part.element_size():,} bytes",
                    f"check the file, or allow more than {self._most:,}: --max-tensor-bytes, max_tensor_bytes=...",
                )
        return value

    def fetch_attr(self, target: str) -> Any:
        return _outline(super().fetch_attr(target))

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.module.get_submodule(target)
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        outlines = {name: _outline(value) for name, value in held.items()}
        return torch.func.functional_call(module, outlines, args, kwargs)


def _outline(value: Any) -> Any:
    """A tensor without its numbers, but for a few integers."""
    if not isinstance(value, Tensor) or (not value.is_floating_point() and value.numel() <= _SMALL):
        return value
    return value.detach().to("meta")
