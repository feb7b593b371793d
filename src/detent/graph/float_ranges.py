"""Ranges of tensors that stay float, measured during calibration for targets that quantize them.

What a quantizer would start from is kept, and nothing computes with it: the graphs have no node for it but while they
are observed.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from detent.graph.plan import QuantizedTensor
from detent.graph.region import Region
from detent.graph.runner import Runner
from detent.numerics import QParams
from detent.quantizers import PASS_THROUGH, Mode

__all__ = ["HOLDER", "FloatRange", "keeping_ranges", "ranges_of", "sum_of_weights", "watched"]

HOLDER = "float_ranges"
"""Where a region keeps them."""

_SAMPLES = 4096
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # of a number of so many bytes


class FloatRange(nn.Module):
    """The scale that one float tensor would have, 0 if none was measured, and a sum over the weights it is for."""

    scale: Tensor
    zero_point: Tensor
    weights: Tensor

    def __init__(self, entry: QuantizedTensor, shape: tuple[int, ...]):
        super().__init__()
        self.name, self.node, self.scheme = entry.tensor, entry.node, entry.scheme
        self.observer = (entry.observer, dict(entry.observer_options))
        self.mode: Mode = PASS_THROUGH
        held = entry.scheme.granularity.scale_shape(shape)
        self.register_buffer("scale", torch.zeros(held))
        self.register_buffer("zero_point", torch.zeros(held, dtype=torch.int64))
        self.register_buffer("weights", torch.zeros((), dtype=torch.int64))

    @property
    def measured(self) -> bool:
        return bool((self.scale > 0).all())

    def is_of(self, weights: int) -> bool:
        """Whether it was measured with weights of that checksum."""
        return self.measured and int(self.weights) == weights

    def qparams(self) -> QParams:
        return QParams(self.scale.clone(), self.zero_point.clone())

    def keep(self, qparams: QParams, weights: int) -> None:
        """Hold what was measured with weights of that sum, or taken over for them."""
        self.scale.copy_(qparams.scale)
        self.zero_point.copy_(qparams.zero_point)
        self.weights.fill_(weights)

    def forward(self, x: Tensor) -> Tensor:
        if self.mode.watch is not None:
            self.mode.watch(x)
        return x

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """A state without ranges is valid, such as an average of parameters or a state of an earlier version: the
        checksum of the weights tells whether the present ranges apply."""
        if any(prefix + name in state for name in ("scale", "zero_point", "weights")):
            super()._load_from_state_dict(state, prefix, *rest)


def ranges_of(prepared: nn.Module) -> list[FloatRange]:
    """Every range of a prepared model, measured or not."""
    return [module for module in prepared.modules() if isinstance(module, FloatRange)]


def sum_of_weights(prepared: nn.Module) -> int:
    """Another number when training has changed the parameters: the sum of their bits, which no order changes.

    Of large ones some thousands of numbers, evenly spread: a step of an optimizer moves nearly all.
    """
    found = 0
    for parameter in prepared.parameters():
        held = parameter.detach().flatten()
        some = held[:: max(1, held.numel() // _SAMPLES)].contiguous()
        found += int(some.view(_BITS[some.element_size()]).sum(dtype=torch.int64))
    return (found + 2**63) % 2**64 - 2**63


@contextmanager
def keeping_ranges(prepared: nn.Module) -> Iterator[None]:
    """Inside the block weights may be rounded or corrected, which aims at the same outputs, without voiding ranges."""
    held = ranges_of(prepared)
    before = sum_of_weights(prepared) if held else 0
    current = [one for one in held if one.is_of(before)]
    yield
    after = sum_of_weights(prepared) if current else 0
    for one in current:
        one.weights.fill_(after)


@contextmanager
def watched(prepared: nn.Module, ranges: Collection[FloatRange]) -> Iterator[None]:
    """Inside the block the graphs call the modules of `ranges` with what their tensors hold."""
    regions = [module for module in prepared.modules() if isinstance(module, Region) and hasattr(module, HOLDER)]
    before = {
        region: region.runners for region in regions if set(region.get_submodule(HOLDER).children()) & set(ranges)
    }
    try:
        for region, runners in before.items():
            region.run_by({mode: _with_calls(region, runner.graph) for mode, runner in runners.items()})
        yield
    finally:
        for region, runners in before.items():
            region.run_by(runners)


def _with_calls(region: Region, graph: fx.Graph) -> fx.GraphModule:
    changed = copy.deepcopy(graph)
    held = {str(one.node): path for path, one in region.get_submodule(HOLDER).named_children()}
    for node in list(changed.nodes):
        called = {user.target for user in node.users}  # by a block outside this one
        if node.name in held and f"{HOLDER}.{held[node.name]}" not in called:
            with changed.inserting_after(node):
                changed.create_node("call_module", f"{HOLDER}.{held[node.name]}", (node,))
    return Runner(region, changed)
