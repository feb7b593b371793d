"""User-defined tracing: a subclass decides what stays one node, and may edit the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from detent.errors import CaptureError

__all__ = ["CustomTracer"]


class CustomTracer:
    """Hand one to `detent.prepare`, which traces each module that it can trace by `trace`.

    `is_leaf_module` says which modules stay one node, beside those whose operations have a meaning for quantization.
    A `torch.fx.Tracer` of your own will do too.

        class Whole(CustomTracer):
            def is_leaf_module(self, m, module_qualified_name):
                return isinstance(m, Head) or super().is_leaf_module(m, module_qualified_name)
    """

    usual: fx.Tracer | None = None
    """What traces where nothing is overridden; set while a model is captured."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """`module_qualified_name` is its path from the module that is traced."""
        return fx.Tracer().is_leaf_module(m, module_qualified_name)

    def trace(self, root: nn.Module, concrete_args: Mapping[str, Any] | None = None) -> fx.Graph:
        """The graph of `root`, whose parts its nodes call by their names."""
        if self.usual is None:
            raise CaptureError(
                f"{type(self).__name__}.trace", "it traces while a model is prepared", "hand the tracer to prepare"
            )
        return self.usual.trace(root, concrete_args=dict(concrete_args or {}))
