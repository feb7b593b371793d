"""`detent.quantize`: a model, data and a target in; a deployed model out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from onnx import ModelProto
from torch import nn

from detent.algorithms.against_float import POOR, FloatLoss, compare_with_float
from detent.artifact import Artifact
from detent.calibrating import calibrate
from detent.data import Folder
from detent.deployment import require_writable, write
from detent.errors import DataError, RangeError, SchemeError
from detent.files import reserved, temporary_folder
from detent.frontends.onnx import MOST_BYTES, is_imported, ports_of, types_of
from detent.graph import PreparedModel, flat
from detent.ir import Package
from detent.loading import load
from detent.planning import Backend
from detent.preparing import prepare
from detent.progress import AtMost, progress
from detent.recipes import Match, Recipe, Rule, find
from detent.targets import BACKENDS

__all__ = ["BATCH_SIZE", "STEPS", "Calibrated", "Preference", "as_tensors", "calibrated", "quantize"]

_NAMED = 5  # layers in one note

Preference = Literal["accuracy", "speed"]
"""What counts where both cannot be had."""

STEPS = 64
"""Batches that calibrate, if a recipe does not say."""

BATCH_SIZE = 8
"""Samples in a batch that is read from files."""


def quantize(
    model: str | os.PathLike[str] | ModelProto | nn.Module,
    batches: Iterable[Any] | Callable[[], Iterable[Any]] | str | os.PathLike[str],
    *,
    backend: str | Backend,
    recipe: str | Recipe = "ptq",
    folder: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    cpu: str | None = None,
    max_tensor_bytes: int = MOST_BYTES,
    inplace: bool = False,
    prefer: Preference = "accuracy",
) -> Artifact:
    """Load, prepare, calibrate and deploy.

    `model` is an ONNX file, or a model in memory. `batches` are as `detent.calibrate` takes them, or a function that
    gives them, or for an ONNX model the path of a `.npy`, a `.npz` or a folder of these; at most `steps` of them are
    used, by default what the recipe says or 64. The artifact goes into `folder`, by default named after the model and
    the backend. `cpu` and `max_tensor_bytes` are as `detent.prepare` takes them. With `inplace` the module itself is
    prepared instead of a copy: half the memory, and an error leaves it half changed. If integers are slower than floats
    on this CPU, `prefer="speed"` leaves layers float: those that the engine runs faster in float, each timed alone, if
    the whole network is then faster too.
    """
    if prefer not in get_args(Preference):
        raise SchemeError(
            f"quantize with prefer={prefer!r}", "no such preference", f"use one of {get_args(Preference)}"
        )
    target = BACKENDS[backend] if isinstance(backend, str) else backend
    place = Path(folder or f"{_name(model)}-{target.name}")
    require_writable(place, target)
    with reserved(place, f"quantize into {place}"):
        network = model if isinstance(model, nn.Module) else load(model)
        own = inplace or network is not model
        run = calibrated if prefer == "accuracy" else _for_speed
        found = run(
            network,
            _batches(batches, network),
            backend=target,
            recipe=find(recipe),
            steps=steps,
            cpu=cpu,
            max_tensor_bytes=max_tensor_bytes,
            inplace=own,
        )
        del network
        return found.write(place)


@dataclass(frozen=True)
class Calibrated:
    """A model that is ready to be deployed, how far it is from float, and notes for the user."""

    prepared: PreparedModel
    loss: FloatLoss
    notes: tuple[str, ...]

    def with_note(self, note: str) -> Calibrated:
        return replace(self, notes=(*self.notes, note))

    def write(self, folder: Path) -> Artifact:
        write(self.prepared, folder, sqnr=self.loss.sqnr, notes=list(self.notes))
        loaded = Package.load(folder)
        return Artifact(loaded.folder, loaded.manifest, self.prepared)


def calibrated(
    network: nn.Module,
    batches: Iterable[Any],
    *,
    backend: Backend,
    recipe: Recipe,
    steps: int | None = None,
    cpu: str | None = None,
    max_tensor_bytes: int = MOST_BYTES,
    inplace: bool = False,
) -> Calibrated:
    """The part of `quantize` before files are written."""
    limit = steps or recipe.calibration.batches or STEPS
    waiting = _by_position(as_tensors(batches), network)
    first = next(waiting, None)
    if first is None:
        raise RangeError("quantize without data", "the batches are empty", "give at least one batch")
    example, named = _example(first, network)
    prepared = prepare(
        network,
        example,
        backend=backend,
        recipe=recipe,
        example_kwargs=named,
        cpu=cpu,
        max_tensor_bytes=max_tensor_bytes,
        inplace=inplace,
    )
    del network
    seen = _Ranges()
    given: Iterable[Any] = AtMost(seen.watch(chain([first], waiting)), limit)
    if recipe.calibration.inputs == "quantized" or recipe.algorithms:
        given = list(given)  # they are gone through more than once
    calibrate(prepared, given)
    with progress("comparing with float"):
        loss = compare_with_float(prepared, first)
    return Calibrated(prepared, loss, (*seen.notes(), *_poor(loss)))


def _for_speed(
    network: nn.Module,
    batches: Iterable[Any],
    *,
    backend: Backend,
    recipe: Recipe,
    steps: int | None = None,
    inplace: bool = False,
    **options: Any,
) -> Calibrated:
    """Like `calibrated`, but layers that are faster in float stay float."""
    from detent.precision import faster_in_float, time_artifacts

    given = list(islice(as_tensors(batches), steps or recipe.calibration.batches or STEPS))
    whole = calibrated(network, given, backend=backend, recipe=recipe, steps=steps, **options)
    slower = faster_in_float(whole.prepared)
    if not slower:
        return whole.with_note("no layer is faster in float on this CPU, each timed alone")
    rules = tuple(Rule(match=Match(name=escape(name)), quantize=False) for name in slower)
    mixed = calibrated(
        network,
        given,
        backend=backend,
        recipe=recipe.replace(rules=(*rules, *recipe.rules)),
        steps=steps,
        inplace=inplace,
        **options,
    )
    with temporary_folder() as folder, progress("timing the network"):
        both = [one.write(Path(folder) / name) for one, name in ((whole, "whole"), (mixed, "mixed"))]
        before, after = time_artifacts(both, given[0])
    times = f"{after:.2f} ms in place of {before:.2f} ms on this CPU, one thread"
    if after >= before:
        return whole.with_note(
            f"all layers are quantized: with {len(slower)} of them in float the network took {times}"
        )
    gained = sorted(slower, key=lambda name: slower[name][1] - slower[name][0])
    gains = [f"{name} ({slower[name][1]:.2f} ms for {slower[name][0]:.2f})" for name in gained[:_NAMED]]
    if len(gained) > _NAMED:
        gains.append(f"{len(gained) - _NAMED} more")
    return mixed.with_note(f"float for speed, each timed alone: {', '.join(gains)}. The network takes {times}")


def _poor(loss: FloatLoss) -> Iterator[str]:
    found = [one for one in loss.sqnr if one is not None and not one >= POOR]
    if found:
        blame = f"; most of it costs {', '.join(loss.costliest)}" if loss.costliest else ""
        yield (
            f"the outputs are far from those of the float network ({min(found):.1f} dB){blame}: "
            "keep these float (`exclude`), or choose another recipe (`detent algorithms`)"
        )


class _Ranges:
    """Whether what calibrates says anything: the least and the greatest number of every input."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, float]] = {}

    def watch(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            named = batch.items() if isinstance(batch, Mapping) else enumerate(flat(batch))
            for name, value in named:
                if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 1:
                    low, high = self._found.get(str(name), (math.inf, -math.inf))
                    self._found[str(name)] = min(low, float(value.min())), max(high, float(value.max()))
            yield batch

    def notes(self) -> Iterator[str]:
        for name, (low, high) in self._found.items():
            if low == high:
                yield f"the calibration data of input {name} is {low:g} everywhere: give data as it will see"


def _batches(given: Any, network: nn.Module) -> Iterable[Any]:
    if isinstance(given, (str, os.PathLike)):
        return Folder(os.fspath(given), ports_of(network), batch_size=BATCH_SIZE, types=types_of(network))
    found = given() if callable(given) and not isinstance(given, Iterable) else given
    if not isinstance(found, Iterable):
        raise RangeError(
            "quantize with data",
            f"a {type(found).__name__}, which is not a list of batches",
            "give batches, or a function of them",
        )
    return found


def _name(model: str | os.PathLike[str] | ModelProto | nn.Module) -> str:
    return Path(model).stem if isinstance(model, (str, os.PathLike)) else "model"


def _example(batch: Any, network: nn.Module) -> tuple[Sequence[Any], Mapping[str, Any] | None]:
    """The arguments of the network in a batch, which may have labels behind them."""
    if isinstance(batch, Mapping):
        return (), batch
    parts = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
    graph = getattr(network, "graph", None)
    count = len(parts) if graph is None else sum(node.op == "placeholder" for node in graph.nodes)
    return parts[:count], None


def _by_position(batches: Iterable[Any], network: nn.Module) -> Iterator[Any]:
    """The batches; of a network from a file, dicts by the names in the file as tuples: forward has other names."""
    names = list(ports_of(network)) if is_imported(network) else []
    for batch in batches:
        if names and isinstance(batch, Mapping):
            if batch.keys() != set(names):
                raise DataError(
                    f"quantize with a batch of {', '.join(map(repr, batch)) or 'nothing'}",
                    f"the network takes {', '.join(map(repr, names))}",
                    "give a dict by exactly these names, or a tuple in that order",
                )
            yield tuple(batch[name] for name in names)
        else:
            yield batch


def as_tensors(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, with tensors in place of arrays."""
    return map(_as_tensors, map(_required, batches))


def _required(batch: Any) -> Any:
    if batch is None or isinstance(batch, (str, bytes)):
        raise DataError(
            f"quantize with a batch that is {batch!r}",
            "it contains no numbers",
            "give arrays or tensors, tuples of them in the order of the inputs, or dicts by their names",
        )
    return batch


def _as_tensors(batch: Any) -> Any:
    if isinstance(batch, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(batch))
    if isinstance(batch, Mapping):
        return {key: _as_tensors(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return tuple(_as_tensors(value) for value in batch)
    return batch
