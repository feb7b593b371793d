"""Ranks the operations of a quantized model by how much running them in float would gain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from detent.algorithms.common.batches import as_list, few, noise_of, outputs_of
from detent.algorithms.common.errors_core import Deviation
from detent.algorithms.common.floating import as_float, evaluating, only_quantizing, with_originals
from detent.algorithms.common.layers import modules_of, op_name, regions_of
from detent.algorithms.common.refusals import needs_calibration
from detent.graph import PreparedModel, called_module, kind_of, quantizers_of
from detent.quantizers import Quantizer

__all__ = ["RestoredOp", "noise_of_weights", "rank_restored", "restoring"]

_ROWS = 16  # samples that judge


@dataclass(frozen=True)
class RestoredOp:
    """An operation and its kind; `gain` is the share of the output noise that disappears if it and its inputs are
    float."""

    op: str
    kind: str
    gain: float


def rank_restored(prepared: PreparedModel, batches: Iterable[Any]) -> list[RestoredOp]:
    """Every quantized operation, highest gain first, simulated on a few samples."""
    needs_calibration(prepared, "rank_restored")
    data = few(as_list(batches), _ROWS)
    parts = _parts_by_op(prepared)
    with evaluating(prepared):
        with as_float(prepared):
            wanted = outputs_of(prepared, data)
        whole = _noise(prepared, (), data, wanted)
        found = [
            RestoredOp(*op, 1 - _noise(prepared, (part,), data, wanted) / whole if whole else 0.0)
            for op, part in parts.items()
        ]
    return sorted(found, key=lambda one: -one.gain)


def noise_of_weights(prepared: PreparedModel, batches: Iterable[Any]) -> float:
    """The share of the output noise that weights alone cause; the rest is that of activations alone.

    1/2 if it cannot be measured: no output is floating point, or the output shapes depend on the values.
    """
    needs_calibration(prepared, "noise_of_weights")
    data = few(as_list(batches), _ROWS)
    noise: dict[str, float] = {}
    with evaluating(prepared):
        with as_float(prepared):
            wanted = outputs_of(prepared, data)
        for side in ("weight", "activation"):
            others = {quantizer for quantizer in quantizers_of(prepared) if quantizer.role != side}
            changed = set(prepared.float_originals) if side == "activation" else set()
            with _without(prepared, [_Parts(others, changed)]):
                noise[side] = noise_of(wanted, outputs_of(prepared, data), torch.device("cpu"))
    total = sum(noise.values())
    return noise["weight"] / total if 0 < total < math.inf else 0.5


@contextmanager
def restoring(prepared: PreparedModel, ops: Iterable[RestoredOp]) -> Iterator[None]:
    """Inside the block, these operations and their inputs are float.

    Biases with derived scales are float everywhere: they are exact to a fraction of a step.
    """
    parts = _parts_by_op(prepared)
    with evaluating(prepared), _without(prepared, [parts[one.op, one.kind] for one in ops]):
        yield


class _Parts(NamedTuple):
    """What makes an operation differ from the float one: the quantizers of its inputs and parameters, and its
    parameters, which algorithms change. A shared quantizer counts for each operation that shares it."""

    quantizers: set[Quantizer]
    parameters: set[Tensor]


def _parts_by_op(prepared: PreparedModel) -> dict[tuple[str, str], _Parts]:
    found: dict[tuple[str, str], _Parts] = {}
    for path, region in regions_of(prepared).items():
        modules = modules_of(region)
        for graph in region.graphs.values():
            for node in graph.nodes:
                kind = kind_of(node, modules)
                own = called_module(node, modules)
                read = [modules.get(str(one.target)) for one in node.all_input_nodes if one.op == "call_module"]
                held = [*read, *(() if own is None else own.modules())]
                using = {one for one in held if isinstance(one, Quantizer)}
                if using and kind is not None:
                    parts = found.setdefault((op_name(region, path, node), kind.name), _Parts(set(), set()))
                    parts.quantizers.update(using)
                    parts.parameters.update(() if own is None else own.parameters())
    return found


@contextmanager
def _without(prepared: PreparedModel, parts: Iterable[_Parts]) -> Iterator[None]:
    gone = _Parts(set(), set())
    for part in parts:
        gone.quantizers.update(part.quantizers)
        gone.parameters.update(part.parameters)
    left = set(quantizers_of(prepared)) - gone.quantizers
    with only_quantizing(prepared, left), with_originals(prepared, gone.parameters):
        yield


def _noise(
    prepared: PreparedModel, restored: Iterable[_Parts], data: Sequence[Any], wanted: Sequence[Sequence[Tensor]]
) -> float:
    with _without(prepared, restored):
        return Deviation.between(wanted, outputs_of(prepared, data)).relative
