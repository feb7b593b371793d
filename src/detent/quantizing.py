"""`detent.quantize`: a model, data and a target in; a deployed model out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import ModelProto
from torch import nn

from detent.artifact import Artifact, deploy, require_writable
from detent.data import Folder
from detent.errors import DataError, RangeError
from detent.frontends.onnx import ports_of, types_of
from detent.loading import load
from detent.planning import Backend
from detent.preparing import calibrate, prepare
from detent.recipes import Recipe, find
from detent.targets import BACKENDS

__all__ = ["BATCH_SIZE", "STEPS", "quantize"]

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
    inplace: bool = False,
) -> Artifact:
    """Load, prepare, calibrate and deploy.

    `model` is an ONNX file, or a model in memory. `batches` are as `detent.calibrate` takes them, or a function that
    gives them, or for an ONNX model the path of a `.npy`, a `.npz` or a folder of these; at most `steps` of them are
    used, by default what the recipe says or 64. The artifact goes into `folder`, by default named after the model and
    the backend. `cpu` is as `detent.prepare` takes it. With `inplace` a module is itself prepared instead of a copy:
    half the memory, and an error leaves it half done.
    """
    target = BACKENDS[backend] if isinstance(backend, str) else backend
    place = Path(folder or f"{_name(model)}-{target.name}")
    require_writable(place, target)
    network = model if isinstance(model, nn.Module) else load(model)
    own = inplace or network is not model
    request = find(recipe)
    limit = steps or request.calibration.batches or STEPS
    waiting = map(_as_tensors, map(_required, _batches(batches, network)))
    first = next(waiting, None)
    if first is None:
        raise RangeError("quantize without data", "the batches are empty", "give at least one batch")
    example, named = _example(first, network)
    prepared = prepare(network, example, backend=target, recipe=request, example_kwargs=named, cpu=cpu, inplace=own)
    del network
    given: Iterable[Any] = islice(chain([first], waiting), limit)
    if request.calibration.inputs == "quantized" or request.algorithms:
        given = list(given)  # they are gone through more than once
    calibrate(prepared, given)
    return deploy(prepared, place)


def _batches(given: Any, network: nn.Module) -> Iterable[Any]:
    if isinstance(given, (str, os.PathLike)):
        return Folder(os.fspath(given), ports_of(network), batch_size=BATCH_SIZE, types=types_of(network))
    found = given() if callable(given) and not isinstance(given, Iterable) else given
    if not isinstance(found, Iterable):
        raise RangeError(
            "quantize with data",
            f"a {type(found).__name__}, which is no batches",
            "give batches, or a function of them",
        )
    return found


def _name(model: Any) -> str:
    return Path(model).stem if isinstance(model, (str, os.PathLike)) else "model"


def _example(batch: Any, network: nn.Module) -> tuple[Sequence[Any], Mapping[str, Any] | None]:
    """The arguments of the network in a batch, which may have labels behind them."""
    if isinstance(batch, Mapping):
        return (), batch
    parts = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
    graph = getattr(network, "graph", None)
    count = len(parts) if graph is None else sum(node.op == "placeholder" for node in graph.nodes)
    return parts[:count], None


def _required(batch: Any) -> Any:
    if batch is None or isinstance(batch, (str, bytes)):
        raise DataError(
            f"quantize with a batch that is {batch!r}",
            "it holds no numbers",
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
