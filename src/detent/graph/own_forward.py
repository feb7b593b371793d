"""Subclasses of torch's layers that compute something else, as a convolution that standardizes its weight does.

Such a layer is no convolution with that weight. It is traced into, so that what it does is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from detent.graph.running import Inputs, run
from detent.graph.torch_ops import known_class

__all__ = ["modules_with_custom_forward", "overridden_class"]


def modules_with_custom_forward(root: nn.Module, inputs: Inputs) -> set[nn.Module]:
    """The layers in `root` whose forward is their own, and gives other numbers than that of the class they are known by
    when `root` runs. It is in eval mode."""
    suspects = {module: known for module in root.modules() if (known := overridden_class(module)) is not None}
    found: set[nn.Module] = set()
    if suspects:
        with ExitStack() as stack:
            for module, known in suspects.items():
                hook = module.register_forward_hook(_compare(known, found), with_kwargs=True)
                stack.callback(hook.remove)
            run(root, inputs)
    return found


def overridden_class(module: nn.Module) -> type[nn.Module] | None:
    """The class that a module is known by, if its forward is not that of the class."""
    known = known_class(module)
    return None if known is None or type(module).forward is known.forward else known


def _compare(known: type[nn.Module], found: set[nn.Module]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        try:
            with torch.no_grad():
                plain = known.forward(module, *args, **kwargs)
        except Exception:  # what it takes is not what the layer takes
            found.add(module)
            return
        if isinstance(output, Tensor) and not (plain.shape == output.shape and torch.allclose(plain, output)):
            found.add(module)

    return hook
