"""Decisions that depend on sizes while a model is traced: `if h % 2:`, `assert c == 3`, `for part in x.chunk(2, 1)`.

The example inputs answer. An answer that depends on more than sizes, or that a batch twice as large would change, is
none: the module is a graph break then. A branch that was taken stays checked when the graph runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import Tensor, fx, nn

from detent.errors import CaptureError
from detent.graph.capture.running import Inputs, flat, fresh, map_tensors
from detent.traversal import dependencies_first, reachable

__all__ = ["Deciding", "as_traced", "doubled", "reversed_numbers"]

_SIZES = frozenset(("shape", "ndim", "dtype", "device", "size", "dim", "numel", "ndimension", "nelement", "stride"))
"""Attributes and methods of tensors that say nothing of their numbers."""


Answer = TypeVar("Answer", bound=int)

_CALL, _GETATTR = nn.Module.__call__, nn.Module.__getattr__


def as_traced(value: Any, expected: bool) -> None:
    """A node that refuses inputs whose sizes take another branch than the one in the graph."""
    if bool(value) is not expected:
        raise CaptureError(
            "run a captured model on these inputs",
            "their sizes take a branch of its Python code that the example inputs did not",
            "give inputs of the example's sizes, or prepare it with these",
        )


class Deciding:
    """The values of nodes for the example inputs and for a batch of twice the size."""

    def __init__(self, module: nn.Module, inputs: Inputs):
        self._runs = [_Values(module, inputs), _Values(module, doubled(inputs))]

    def truth(self, node: fx.Node) -> bool | None:
        """Whether a condition holds, if sizes alone decide it."""
        if not self._of_sizes(node):
            return None
        return _agreed([None if value is None else bool(value) for value in self.examples(node)])

    def count(self, node: fx.Node) -> int | None:
        """The number of iterations of a loop."""
        seen = self.examples(node)
        return _agreed([len(value) if isinstance(value, (tuple, list, Tensor)) else None for value in seen])

    def example(self, node: fx.Node) -> Any:
        """The output of a node for the example inputs."""
        return self._runs[0].of(node)

    def examples(self, node: fx.Node) -> list[Any]:
        """The output of a node; once, if the larger batch does not run."""
        found = [self.example(node)]
        try:
            found.append(self._runs[1].of(node))
        except Exception:  # the model's own: it has the batch size built in
            return found
        return found

    def _of_sizes(self, node: fx.Node) -> bool:
        deciding = reachable([node], lambda one: () if _is_size(one) else one.all_input_nodes)
        return not any(isinstance(self._runs[0].of(each), Tensor) for each in deciding if not _is_size(each))


class _Values:
    def __init__(self, module: nn.Module, inputs: Inputs):
        self._module = module
        given = fresh(inputs)
        self._given = inspect.signature(module.forward).bind_partial(*given.args, **given.kwargs).arguments
        self._found: dict[fx.Node, Any] = {}

    def of(self, node: fx.Node) -> Any:
        with torch.no_grad(), _without_tracing():  # once for all of them: it costs as much as computing a few
            for each in dependencies_first([node], self._missing):
                if each not in self._found:
                    self._found[each] = self._computed(each)
        return self._found[node]

    def _missing(self, node: fx.Node) -> list[fx.Node]:
        return [] if node in self._found else [each for each in node.all_input_nodes if each not in self._found]

    def _computed(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._given[str(node.target)]
        if node.op == "get_attr":
            return _attribute(self._module, str(node.target))
        args = fx.map_arg(node.args, self._found.__getitem__)
        kwargs = fx.map_arg(node.kwargs, self._found.__getitem__)
        if node.op == "call_module":
            return self._module.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _is_size(node: fx.Node) -> bool:
    return (node.args[1] if node.target is getattr else node.target) in _SIZES


@contextmanager
def _without_tracing() -> Iterator[None]:
    """A context without torch.fx's patches of modules, which turn calls and parameter accesses into nodes."""
    with mock.patch.object(nn.Module, "__call__", _CALL), mock.patch.object(nn.Module, "__getattr__", _GETATTR):
        yield


def _attribute(holder: Any, path: str) -> Any:
    for name in path.split("."):
        holder = getattr(holder, name)
    return holder


def _agreed(answers: list[Answer | None]) -> Answer | None:
    return answers[0] if all(answer == answers[0] for answer in answers) else None


def doubled(inputs: Inputs) -> Inputs:
    """Inputs with a batch of twice the size."""
    sizes = [value.shape[0] for value in flat(tuple(inputs)) if isinstance(value, Tensor) and value.ndim]
    return Inputs(*map_tensors(tuple(inputs), lambda tensor: _twice(tensor, sizes[0])))


def reversed_numbers(inputs: Inputs) -> Inputs:
    """Inputs of the same sizes with the values of each tensor in reverse order."""
    return Inputs(*map_tensors(tuple(inputs), lambda tensor: tensor.flip(tuple(range(tensor.ndim)))))


def _twice(tensor: Tensor, batch: int) -> Tensor:
    return torch.cat([tensor, tensor]) if tensor.ndim and tensor.shape[0] == batch else tensor
