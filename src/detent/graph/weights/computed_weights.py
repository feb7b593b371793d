"""Layers whose forward computes their weight from parameters alone, as weight-standardized convolutions do, become
plain layers of that weight.

This is what `plain_parameters` does with parametrizations, and with the same consequence for training. The layer's own
state then has an entry that the float model lacks (`weight_is_computed`), so that a float checkpoint, which has the
parameters of the computation, is refused instead of misread: load it before preparing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from detent.graph.capture.running import Inputs, run
from detent.graph.kinds import KINDS
from detent.graph.torch_ops import torch_op
from detent.graph.weights.own_forward import overridden_class

__all__ = ["MARK", "materialize_computed_weights"]

MARK = "weight_is_computed"
"""The entry of the state that a float checkpoint lacks."""


def materialize_computed_weights(
    root: nn.Module, inputs: Inputs, *, leaves: Sequence[str | type[nn.Module]] = ()
) -> None:
    """Replace computed weights, in place, except in `leaves`, names and classes of modules. `root` is in eval mode."""
    kept = tuple(leaf for leaf in leaves if isinstance(leaf, type))
    suspects = {
        module: known
        for path, module in root.named_modules()
        if (known := _weighted_class(module)) is not None and path not in leaves and not isinstance(module, kept)
    }
    if not suspects:
        return
    found: dict[nn.Module, Tensor] = {}
    with ExitStack() as stack:
        for module, known in suspects.items():
            hook = module.register_forward_hook(_look(known, found), with_kwargs=True)
            stack.callback(hook.remove)
        run(root, inputs)
    for module, weight in found.items():
        _make_plain(module, suspects[module], weight)


def _weighted_class(module: nn.Module) -> type[nn.Module] | None:
    known = overridden_class(module)
    op = None if known is None else torch_op(known)
    weighted = op is not None and bool(KINDS[op.kind].weight) and "weight" in module._parameters
    return known if weighted and not list(module.children()) else None


def _look(known: type[nn.Module], found: dict[nn.Module, Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor) or not args[0].is_floating_point():
            return
        other = torch.zeros_like(args[0])
        with torch.no_grad():
            weights = [_computed_weight(module, x) for x in (args[0], other)]
            if weights[0] is None or weights[1] is None or not torch.equal(weights[0], weights[1]):
                return  # it depends on what the layer is given
            plain = _plain_output(module, known, weights[0], args[0])
        if plain.shape == output.shape and torch.allclose(plain, output, rtol=1e-4, atol=1e-5):
            found[module] = weights[0]

    return hook


def _computed_weight(module: Any, x: Tensor) -> Tensor | None:
    """The computed weight that the layer's forward uses, if it is no parameter of the layer but has the shape of its
    weight."""
    calls = _Calls(x)
    with calls:
        module.forward(x)
    weight = calls.weights[0] if len(calls.weights) == 1 else None
    if weight is None or weight is module.weight or weight.shape != module.weight.shape:
        return None
    return weight.detach().clone()


class _Calls(TorchFunctionMode):
    """Records the weights that functions of weighted kinds get with `x`."""

    def __init__(self, x: Tensor):
        self._x = x
        self.weights: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        op = torch_op(func)
        if op is not None and KINDS[op.kind].weight and args and args[0] is self._x:
            weight = args[1] if len(args) > 1 else (kwargs or {}).get("weight")
            if isinstance(weight, Tensor):
                self.weights.append(weight)
        return func(*args, **(kwargs or {}))


def _plain_output(module: Any, known: Any, weight: Tensor, x: Tensor) -> Tensor:
    """The output of the layer with that weight."""
    held = module.weight.data
    try:
        module.weight.data = weight
        plain: Tensor = known.forward(module, x)
    finally:
        module.weight.data = held
    return plain


def _make_plain(module: Any, known: type[nn.Module], weight: Tensor) -> None:
    needed = module.weight.requires_grad
    for name in [name for name in module._parameters if name not in ("weight", "bias")]:
        delattr(module, name)
    module.__class__ = known
    module.weight = nn.Parameter(weight, requires_grad=needed)
    module.register_buffer(MARK, torch.tensor(True))
