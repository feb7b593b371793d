"""MMRazor's tracer: what stays whole when a model is traced. It may be derived from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from detent import graph
from detent.compat.mmrazor.registry import TASK_UTILS
from detent.graph import Captured, Inputs, Region, capture

__all__ = ["CustomTracer", "TracedModel"]


@dataclass(frozen=True)
class TracedModel:
    """The graphs of a model, and the inputs it was traced with: what a quantizer's `prepare` gets."""

    captured: Captured
    example: Inputs

    @property
    def graphs(self) -> Mapping[str, fx.Graph]:
        """The graphs by forward mode; none where the model's own code could not be traced."""
        module = self.captured.module
        return module.graphs if isinstance(module, Region) else {}

    @property
    def graph(self) -> fx.Graph:
        """The graph of the first mode."""
        return next(iter(self.graphs.values()))


class CustomTracer(graph.CustomTracer):
    """Methods that stay one node, by their dotted names, and modules that do, by name or class.

    Derive from it and override `is_leaf_module` or `trace`: they are called for each forward mode.
    """

    def __init__(
        self,
        skipped_methods: str | Sequence[str] = (),
        skipped_module_names: Sequence[str] = (),
        skipped_module_classes: Sequence[type[nn.Module]] = (),
    ):
        self.skipped_methods = (skipped_methods,) if isinstance(skipped_methods, str) else tuple(skipped_methods)
        self.leaf_modules: list[str | type[nn.Module]] = [*skipped_module_names, *skipped_module_classes]

    def trace_modes(self, model: nn.Module, example_inputs: Sequence[Any], **options: Any) -> TracedModel:
        """A copy of `model`, traced; `options` are `modes` or `concrete_args` of `detent.graph.capture.capture`."""
        captured = capture(
            model,
            example_inputs,
            skip_methods=self.skipped_methods,
            leaf_modules=self.leaf_modules,
            tracer=self,
            **options,
        )
        return TracedModel(captured, Inputs(tuple(example_inputs), {}))


TASK_UTILS.offer(CustomTracer)
