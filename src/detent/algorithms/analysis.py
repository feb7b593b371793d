"""`analyze`: where a quantized model loses its accuracy, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from detent.algorithms.common.batches import as_list, outputs_of, run
from detent.algorithms.common.errors_core import Deviation
from detent.algorithms.common.floating import as_float, evaluating, only_quantizing
from detent.algorithms.common.layers import modules_of, regions_of
from detent.algorithms.common.recording import interpreting
from detent.algorithms.common.refusals import needs_calibration
from detent.graph import PreparedModel, called_module, quantizers_of
from detent.markup import notebook, table
from detent.progress import progress
from detent.quantizers import Mode, Quantizer, in_modes

__all__ = ["Analysis", "TensorLoss", "analyze", "own_losses"]

_HEAD = ("tensor", "role", "as", "SQNR dB#", "cosine#", "cost#", "accumulated dB#", "cosine#")


@dataclass(frozen=True, kw_only=True)
class TensorLoss:
    """One quantized tensor.

    `sqnr` (decibels) and `cosine` compare it with its own float values. `cost` is the noise over signal at the outputs
    of the network if only this tensor is quantized. `accumulated` and `accumulated_cosine` compare its value in the
    quantized network, including all errors from before, with the float network; None for weights.
    """

    tensor: str
    role: str
    scheme: str
    sqnr: float
    cosine: float
    cost: float
    accumulated: float | None = None
    accumulated_cosine: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "tensor": self.tensor,
            "role": self.role,
            "scheme": self.scheme,
            "sqnr": _plain(self.sqnr),
            "cosine": _plain(self.cosine),
            "cost": _plain(self.cost),
            "accumulated": _plain(self.accumulated),
            "accumulated cosine": _plain(self.accumulated_cosine),
        }


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The cost of each tensor, in the order of computation. Prints as a table with the costliest tensors listed
    below."""

    tensors: tuple[TensorLoss, ...]
    output_sqnr: float
    output_cosine: float

    @property
    def costliest(self) -> tuple[TensorLoss, ...]:
        """The tensors sorted by their cost at the outputs, highest first."""
        return tuple(sorted(self.tensors, key=lambda loss: -loss.cost))

    def __str__(self) -> str:
        rows = [tuple(title.rstrip("#") for title in _HEAD), *map(_cells, self.tensors)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.append(self._outputs)
        worst = self.costliest[:3]
        if worst:
            lines.append(f"costliest: {', '.join(f'{loss.tensor} ({loss.cost:.1e})' for loss in worst)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return notebook(f"{self._outputs}; the costliest tensors first", table(_HEAD, map(_cells, self.costliest)))

    @property
    def _outputs(self) -> str:
        return f"outputs: {self.output_sqnr:.1f} dB, cosine {self.output_cosine:.5f}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types only; values that are not finite become None."""
        return {
            "tensors": [loss.to_dict() for loss in self.tensors],
            "output sqnr": _plain(self.output_sqnr),
            "output cosine": _plain(self.output_cosine),
            "costliest": [loss.tensor for loss in self.costliest],
        }


def _cells(loss: TensorLoss) -> tuple[str, ...]:
    numbers = (f"{loss.sqnr:.1f}", f"{loss.cosine:.5f}", f"{loss.cost:.2e}")
    behind = ("", "")
    if loss.accumulated is not None and loss.accumulated_cosine is not None:
        behind = (f"{loss.accumulated:.1f}", f"{loss.accumulated_cosine:.5f}")
    return (loss.tensor, loss.role, loss.scheme, *numbers, *behind)


def _plain(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def analyze(prepared: PreparedModel, batches: Iterable[Any]) -> Analysis:
    """Compare a calibrated model with its float model on some batches: with each quantizer alone, and with all of
    them."""
    needs_calibration(prepared, "analyze")
    data = as_list(batches)
    with evaluating(prepared), progress("analyzing", len(_in_order(prepared))) as bar:
        with as_float(prepared):
            wanted = outputs_of(prepared, data)
        own = own_losses(prepared, data)
        behind = _accumulated(prepared, data)
        losses = []
        for quantizer in _in_order(prepared):
            bar.advance()
            if quantizer not in own:
                continue  # no batch reaches it
            alone = own[quantizer]
            so_far = behind.get(quantizer)
            losses.append(
                TensorLoss(
                    tensor=quantizer.name,
                    role=quantizer.role,
                    scheme=str(quantizer.scheme),
                    sqnr=alone.sqnr,
                    cosine=alone.cosine,
                    cost=_cost(prepared, quantizer, data, wanted),
                    accumulated=so_far.sqnr if so_far is not None else None,
                    accumulated_cosine=so_far.cosine if so_far is not None else None,
                )
            )
        whole = Deviation.between(wanted, outputs_of(prepared, data))
    return Analysis(tensors=tuple(losses), output_sqnr=whole.sqnr, output_cosine=whole.cosine)


def _in_order(prepared: PreparedModel) -> list[Quantizer]:
    """Every quantizer in the order of the graphs: the inputs of a layer, then its weight."""
    found: dict[Quantizer, None] = {}
    for region in regions_of(prepared).values():
        modules = modules_of(region)
        for graph in region.graphs.values():
            for node in graph.nodes:
                if node.op == "call_module":
                    part = modules[str(node.target)]
                    found.update(dict.fromkeys(m for m in part.modules() if isinstance(m, Quantizer)))
    found.update(dict.fromkeys(quantizers_of(prepared)))
    return list(found)


def own_losses(prepared: PreparedModel, data: Sequence[Any]) -> dict[Quantizer, Deviation]:
    """The error of each quantizer on float values."""
    found: dict[Quantizer, Deviation] = {}

    def compare(quantizer: Quantizer, x: Tensor) -> None:
        found.setdefault(quantizer, Deviation()).add(x, quantizer.quantize(x))

    watching = {one: Mode(watch=partial(compare, one), quantizes=False) for one in quantizers_of(prepared)}
    with as_float(prepared), in_modes(watching):
        for batch in data:
            run(prepared, batch)
    return found


def _accumulated(prepared: PreparedModel, data: Sequence[Any]) -> dict[Quantizer, Deviation]:
    """The quantized network compared with the float one at each activation quantizer, one batch in memory at a time."""
    found: dict[Quantizer, Deviation] = {}
    for batch in data:
        with as_float(prepared):
            wanted = _values(prepared, batch)
        for quantizer, got in _values(prepared, batch).items():
            # Another number of values means that a graph break went another way.
            for ours, theirs in zip(got, wanted.get(quantizer, ()), strict=False):
                found.setdefault(quantizer, Deviation()).add(theirs, ours)
    return found


def _values(prepared: PreparedModel, batch: Any) -> dict[Quantizer, list[Tensor]]:
    found: dict[Quantizer, list[Tensor]] = {}
    with ExitStack() as stack:
        for region in regions_of(prepared).values():
            modules = modules_of(region)

            def see(node: fx.Node, value: Any, modules: dict[str, nn.Module] = modules) -> None:
                part = called_module(node, modules)
                if isinstance(part, Quantizer):
                    found.setdefault(part, []).append(value.detach().clone())

            for mode in region.graphs:
                stack.enter_context(interpreting(region, mode, see))
        with torch.no_grad():
            run(prepared, batch)
    return found


def _cost(
    prepared: PreparedModel, quantizer: Quantizer, data: Sequence[Any], wanted: Sequence[Sequence[Tensor]]
) -> float:
    with only_quantizing(prepared, [quantizer]):
        return Deviation.between(wanted, outputs_of(prepared, data)).relative
