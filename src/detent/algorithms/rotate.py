"""Rotations folded into the weights of a prepared model before calibration, which remove outliers from its residual
stream.

A residual stream consists of the tensors that RMS norms read and that embeddings and linear layers are added to. It is
rotated if every norm that reads it feeds only linear layers and nothing else reads it; otherwise it is left unchanged.
The values of attention are rotated too, each head by itself, if there is only data movement between the layer that
produces them, the product with the scores, and the layer after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from detent.algorithms.common.batches import as_list, held_back, outputs_of
from detent.algorithms.common.errors_core import Deviation
from detent.algorithms.common.floating import as_float, evaluating, refuse_changed
from detent.algorithms.common.layers import Layer, layers_of, modules_of, op_name, regions_of, stored_parameter
from detent.algorithms.common.passing import behind, producer_of, users_of
from detent.algorithms.common.report import Report, record
from detent.algorithms.common.trial import OutputTrial
from detent.algorithms.rotate_core import read_turned, rotation, write_turned
from detent.graph import PreparedModel, Region, kind_of
from detent.progress import progress

__all__ = ["rotate"]

_MOVES = ("reshape", "transpose", "expand", "slice")
_ROUNDING = 1e-8  # noise over signal; turned the wrong way it is near 1


@dataclass
class _Stream:
    """The tensors of a residual stream, and everything that writes to it or reads it."""

    values: set[fx.Node] = field(default_factory=set)
    tables: list[Any] = field(default_factory=list)
    writers: list[Layer] = field(default_factory=list)
    readers: list[tuple[Any, list[Layer]]] = field(default_factory=list)  # a norm, and the layers behind it

    @property
    def size(self) -> int:
        return int(self.readers[0][0].weight.numel())


class _NotTurnedError(Exception):
    """Why a stream cannot be rotated."""


@progress("rotate")
def rotate(prepared: PreparedModel, batches: Iterable[Any], *, seed: int = 0) -> Report:
    """Rotate each residual stream, and the values of each head, by Hadamard matrices with random signs folded into the
    weights.

    If the outputs of the network get worse, all changes are undone. To measure that, the model is calibrated on a few
    samples: calibrate it afterwards.
    """
    refuse_changed(prepared, "rotate")
    train, judge = held_back(as_list(batches))
    skipped: dict[str, str] = {}
    turned: list[str] = []
    with evaluating(prepared):
        trial = OutputTrial(prepared, train, judge)
        shared = Counter(id(one) for _, one in prepared.named_parameters(remove_duplicate=False))
        for path, region in regions_of(prepared).items():
            # The graphs of several modes share their weights: a rotation for one would be wrong for the others.
            if len(region.graphs) == 1:
                _turn_region(region, path, seed, shared, turned, skipped)
                with as_float(prepared):
                    same = partial(_is_same, prepared, trial.judge, trial.wanted)
                    _turn_heads(region, path, seed, shared, same, turned, skipped)
            else:
                skipped[path or "the model"] = "it has several forward modes"
        _, outputs = trial.judged([])
    changes = tuple(replace(outputs, place=place, note="noise of the outputs") for place in turned)
    report = Report(algorithm="rotate", metric="noise over signal", changes=changes, skipped=skipped, outputs=outputs)
    return record(prepared, report)


def _turn_region(
    region: Region, path: str, seed: int, shared: Counter[int], turned: list[str], skipped: dict[str, str]
) -> None:
    modules = modules_of(region)
    ((mode, graph),) = region.graphs.items()
    layers = {layer.node: layer for layer in layers_of(region, path, mode) if layer.kind == "linear"}
    seen: set[fx.Node] = set()
    for node in graph.nodes:
        if _kind(node, modules) != "rmsnorm" or node in seen:
            continue
        name = op_name(region, path, node)
        try:
            stream = _stream_of(node, modules, layers, seen)
            _check_shared(stream, shared)
        except _NotTurnedError as why:
            skipped[name] = str(why)
            continue
        _turn(stream, rotation(stream.size, seed=seed))
        turned.append(f"the stream of {name}, {stream.size} channels")


def _stream_of(
    norm: fx.Node, modules: dict[str, nn.Module], layers: dict[fx.Node, Layer], seen: set[fx.Node]
) -> _Stream:
    """The residual stream that a norm reads. Adds the norms that it finds to `seen`, even if the stream cannot be
    rotated."""
    stream, waiting = _Stream(), [producer_of(norm, modules)]
    seen.add(norm)
    reason: str | None = None
    while waiting:
        value = waiting.pop()
        if value is None or value in stream.values:
            continue
        stream.values.add(value)
        match _kind(value, modules):
            case "add" if all(isinstance(part, fx.Node) for part in value.args) and not value.kwargs:
                waiting += [behind(part, modules) for part in value.args if isinstance(part, fx.Node)]
            case "linear" if value in layers:
                stream.writers.append(layers[value])
            case "embedding" if value.op == "call_module":
                stream.tables.append(modules[str(value.target)])
            case "linear":
                reason = reason or f"{value.name} is called more than once"
            case kind:
                reason = reason or f"{value.name} ({kind or 'an input'}) is added to what it reads"
        for user in users_of(value, modules):
            kind = _kind(user, modules)
            if kind == "rmsnorm":
                seen.add(user)
                reason = reason or _read(stream, user, modules, layers)
            elif kind == "add":
                waiting.append(user)
            else:
                reason = reason or f"{user.name} ({kind or user.op}) reads it without a norm"
    if reason is not None:
        raise _NotTurnedError(reason)
    return stream


def _read(stream: _Stream, norm: fx.Node, modules: dict[str, nn.Module], layers: dict[fx.Node, Layer]) -> str | None:
    """Add a norm and the layers after it to the stream; return the reason if that is not possible."""
    module: Any = modules.get(str(norm.target)) if norm.op == "call_module" else None
    if getattr(module, "weight", None) is None or module.weight.ndim != 1:
        return f"{norm.name} has no gains that layers could take in"
    users = users_of(norm, modules)
    if not users <= layers.keys():
        other = next(user for user in users if user not in layers)
        found = "is called more than once" if _kind(other, modules) == "linear" else "is no linear layer"
        return f"{other.name}, which reads {norm.name}, {found}"
    stream.readers.append((module, [layers[user] for user in users]))
    return None


def _check_shared(stream: _Stream, shared: Counter[int]) -> None:
    readers = [layer for _, own in stream.readers for layer in own]
    places = [*(layer.op for layer in (*readers, *stream.writers)), *stream.tables, *(one for one, _ in stream.readers)]
    if any(layer.calls > 1 or layer.folded is not None for layer in (*readers, *stream.writers)):
        raise _NotTurnedError("one of its layers is called more than once")
    if len({id(place) for place in places}) < len(places):
        raise _NotTurnedError("a module reads it or writes it twice")
    if any(shared[id(stored_parameter(place, "weight"))] > 1 for place in places):
        raise _NotTurnedError("modules share a weight, as the table of words and the last layer may: give each its own")


@torch.no_grad()
def _turn(stream: _Stream, turn: Tensor) -> None:
    for norm, layers in stream.readers:
        for layer in layers:
            weight = layer.weight_parameter
            weight.copy_(read_turned(weight, norm.weight, turn))
        norm.weight.fill_(1)
    for layer in stream.writers:
        layer.weight_parameter.copy_(write_turned(layer.weight_parameter.t(), turn).t())
        if layer.bias_parameter is not None:
            layer.bias_parameter.copy_(write_turned(layer.bias_parameter, turn))
    for table in stream.tables:
        weight = stored_parameter(table, "weight")
        weight.copy_(write_turned(weight, turn))


def _turn_heads(
    region: Region,
    path: str,
    seed: int,
    shared: Counter[int],
    is_same: Callable[[], bool],
    turned: list[str],
    skipped: dict[str, str],
) -> None:
    ((mode, _),) = region.graphs.items()
    modules = modules_of(region)
    layers = {layer.node: layer for layer in layers_of(region, path, mode) if layer.kind == "linear"}
    for after in layers.values():
        found = _values_of(after, modules, layers)
        if found is None or any(shared[id(layer.weight_parameter)] > 1 for layer in (found[0], after)):
            continue
        values, size = found
        turn = rotation(size, seed=seed)
        kept = [one.detach().clone() for one in _parameters(values, after)]
        _turn_values(values, after, turn)
        if is_same():
            turned.append(f"the heads of {after.name}, {size} channels each")
            continue
        skipped[after.name] = "what it reads is not laid out head by head"
        with torch.no_grad():
            for one, before in zip(_parameters(values, after), kept, strict=True):
                one.copy_(before)


def _values_of(after: Layer, modules: dict[str, nn.Module], layers: dict[fx.Node, Layer]) -> tuple[Layer, int] | None:
    """The layer that computes the attention values that `after` reads, and the size of a head."""
    product = _before_moves(producer_of(after.node, modules), modules)
    if product is None or _kind(product, modules) != "matmul" or len(product.args) != 2:
        return None
    operand = product.args[1]
    if not isinstance(operand, fx.Node) or not isinstance(operand.meta.get("shape"), tuple):
        return None
    size, source = operand.meta["shape"][-1], _before_moves(behind(operand, modules), modules)
    values = None if source is None else layers.get(source)
    if values is None or values is after or size < 2:
        return None
    whole = values.weight_parameter.shape[0] % size == after.weight_parameter.shape[1] % size == 0
    alone = all(layer.calls == 1 and layer.folded is None for layer in (values, after))
    return (values, size) if whole and alone else None


def _before_moves(node: fx.Node | None, modules: dict[str, nn.Module]) -> fx.Node | None:
    """The node whose value is `node` after data movement only, if no other node reads it on the way.

    An operation without a kind may do more than move data; then the check of the outputs fails.
    """
    while node is not None and len(users_of(node, modules)) == 1:
        kind = _kind(node, modules)
        if kind not in _MOVES and not (kind is None and len(node.all_input_nodes) == 1):
            return node
        node = producer_of(node, modules)
    return None


def _parameters(values: Layer, after: Layer) -> list[Tensor]:
    found = [values.weight_parameter, values.bias_parameter, after.weight_parameter]
    return [one for one in found if one is not None]


@torch.no_grad()
def _turn_values(values: Layer, after: Layer, turn: Tensor) -> None:
    size = len(turn)
    for weight in _parameters(values, after)[:-1]:
        heads = weight.reshape(-1, size, weight[0].numel())
        weight.copy_(write_turned(heads.transpose(1, 2), turn).transpose(1, 2).reshape(weight.shape))
    read = after.weight_parameter
    read.copy_(write_turned(read.reshape(len(read), -1, size), turn).reshape(read.shape))


def _is_same(prepared: PreparedModel, batches: list[Any], wanted: list[list[Tensor]]) -> bool:
    """Whether the float network still computes the same up to rounding."""
    return Deviation.between(wanted, outputs_of(prepared, batches)).relative <= _ROUNDING


def _kind(node: fx.Node, modules: dict[str, nn.Module]) -> str | None:
    kind = kind_of(node, modules)
    return None if kind is None else kind.name
