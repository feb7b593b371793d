"""Layers that compute something else than torch's: a convolution that standardizes its weight, or one with a hook that
scales its output. They are not treated as convolutions but traced into, so that what they do becomes visible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from detent.graph.capture.running import Inputs, run
from detent.graph.torch_ops import known_class

__all__ = ["modules_with_custom_forward", "overridden_class"]


def modules_with_custom_forward(root: nn.Module, inputs: Inputs) -> set[nn.Module]:
    """The layers in `root` that have a forward of their own, or hooks, and give other numbers than the class they are
    known by when `root` runs. It is in eval mode."""
    layers = {module: known for module in root.modules() if (known := known_class(module)) is not None}
    suspects = {module: known for module, known in layers.items() if overridden_class(module) or _has_hooks(module)}
    found: set[nn.Module] = set()
    given: dict[nn.Module, Inputs] = {}  # before hooks

    def remember(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given[module] = Inputs(args, kwargs)

    if suspects:
        with ExitStack() as stack:
            for module, known in suspects.items():
                before = module.register_forward_pre_hook(remember, prepend=True, with_kwargs=True)
                stack.callback(before.remove)
                hook = module.register_forward_hook(_compare(known, given, found))
                stack.callback(hook.remove)
            run(root, inputs)
    return found


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def overridden_class(module: nn.Module) -> type[nn.Module] | None:
    """The class that a module is known by, if its forward is not that of the class."""
    known = known_class(module)
    return None if known is None or type(module).forward is known.forward else known


def _compare(
    known: type[nn.Module], given: Mapping[nn.Module, Inputs], found: set[nn.Module]
) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, _: Any, output: Any) -> None:
        inputs = given[module]
        try:
            with torch.no_grad():
                plain = known.forward(module, *inputs.args, **inputs.kwargs)
        except Exception:  # its inputs are not those of the layer
            found.add(module)
            return
        if isinstance(output, Tensor) and not (plain.shape == output.shape and torch.allclose(plain, output)):
            found.add(module)

    return hook
