"""A module that runs captured graphs over the parts of the module it was captured from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import fx, nn

from detent.errors import CaptureError
from detent.graph.runner import Runner
from detent.quantizers import PASS_THROUGH, Quantizer, in_modes

__all__ = ["ACTIVATION_QUANTIZERS", "Region", "readable_weights"]

ACTIVATION_QUANTIZERS = "activation_quantizers"
"""Where a region keeps them."""


def readable_weights(root: nn.Module) -> AbstractContextManager[None]:
    """Lets torch make graph modules, which computes what graphs read of modules: the quantizer of a weight may not be
    calibrated yet."""
    return in_modes({part: PASS_THROUGH for part in root.modules() if isinstance(part, Quantizer)})


class Region(nn.Module):
    """The children, parameters and buffers of a module, under the same names, with forward run by fx graphs.

    There is a graph for each forward mode; they share the parts. The graph modules are kept beside the tree,
    not in it, so that state dicts, `.to`, `.train` and optimizers see every part once, under its float name.
    """

    def __init__(self, root: nn.Module, graphs: Mapping[str, fx.Graph], stands_for: str | None = None):
        """`stands_for` names the child in whose place the region is: code that reads an attribute finds that of it."""
        super().__init__()
        self._stands_for = stands_for
        # Not named_children and its kin: they leave out a module or tensor that stands under a second name.
        for name, child in root._modules.items():
            self.add_module(name, child)
        for name, parameter in root._parameters.items():
            self.register_parameter(name, parameter)
        for name, buffer in root._buffers.items():
            self.register_buffer(name, buffer, persistent=name not in root._non_persistent_buffers_set)
        # Plain attributes that a graph reads (constants) or that users expect to find again.
        for name, value in vars(root).items():
            is_constant = name.startswith("_tensor_constant")  # what tracing calls a tensor that forward makes
            is_taken = name in vars(self) or isinstance(getattr(type(self), name, None), property)
            if (is_constant or not name.startswith("_")) and not is_taken:
                object.__setattr__(self, name, value)
        self.training = root.training
        self._run_graphs(graphs)

    @property
    def runners(self) -> dict[str, fx.GraphModule]:
        """The graph module for each forward mode."""
        runners: dict[str, fx.GraphModule] = self.__dict__["_runners"]
        return runners

    @property
    def graphs(self) -> dict[str, fx.Graph]:
        """The graph of each forward mode; edit them, then call `recompile`."""
        return {mode: runner.graph for mode, runner in self.runners.items()}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            place = vars(self).get("_stands_for")
            # What torch gives a parametrized module is its own: __deepcopy__, parametrizations.
            if place is None or name in (place, "parametrizations") or name.startswith("__"):
                raise
            return getattr(super().__getattr__(place), name)

    def recompile(self) -> None:
        """Take up what was changed in the graphs or in the tree."""
        self._run_graphs(self.graphs)

    def _run_graphs(self, graphs: Mapping[str, fx.Graph]) -> None:
        with readable_weights(self):
            self.run_by({mode: Runner(self, graph) for mode, graph in graphs.items()})

    def run_by(self, runners: Mapping[str, fx.GraphModule]) -> None:
        """Have other graph modules run the forward modes."""
        object.__setattr__(self, "_runners", dict(runners))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        runners = self.runners
        mode = kwargs.pop("mode", None) if len(runners) > 1 else None
        mode = mode or next(iter(runners))
        if mode not in runners:
            raise CaptureError(f"forward mode {mode!r}", f"captured are {', '.join(runners)}", "use one of these")
        return runners[mode](*args, **kwargs)
