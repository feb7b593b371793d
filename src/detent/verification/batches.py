"""Splits a user's batch into inputs, by the names of the deployed network, and labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.errors import RangeError, TensorError
from detent.graph import flat
from detent.graph.capture.running import map_tensors
from detent.ir import Port

__all__ = ["Batch", "labels_of", "require_batches", "require_classes", "unpack_batches"]


@dataclass(frozen=True, eq=False)
class Batch:
    """`inputs` by ONNX name, `arguments` for the torch model, and `labels` if there are any."""

    inputs: dict[str, npt.NDArray[Any]]
    arguments: Any
    labels: npt.NDArray[Any] | None


def require_batches(batches: Iterable[Any] | object) -> None:
    if not isinstance(batches, Iterable):
        kind = type(batches).__name__
        raise TensorError(f"verify on a {kind}", "it contains no batches", "give a list, or a loader, of batches")


def unpack_batches(batches: Iterable[Any] | object, ports: Mapping[str, Port], positions: int) -> Iterator[Batch]:
    """Each batch is a tensor, a tuple of inputs with perhaps labels behind them, or a dict by input name.

    `positions` is how many arguments the model takes, which may hold several tensors each.
    """
    require_batches(batches)
    assert isinstance(batches, Iterable)
    names = list(ports)
    single = all(port.dtype == "float32" for port in ports.values() if port.dtype.startswith("float"))
    for batch in batches:
        arguments: Any
        labels: Any = None
        if isinstance(batch, Mapping):
            arguments = {key: _single(value) if single else value for key, value in batch.items()}
            given = {name: _array(value) for name, value in _named(arguments, names) if name in names}
            if positions == len(names) and arguments.keys() == set(names):
                arguments = tuple(arguments[name] for name in names)  # a file's names are none that forward has
        else:
            parts = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
            arguments = tuple(_single(part) if single else part for part in parts[:positions])
            labels = parts[positions] if len(parts) > positions else None
            tensors = [part for part in flat(arguments) if isinstance(part, (Tensor, np.ndarray))]
            given = dict(zip(names, map(_array, tensors), strict=False))
        if set(given) != set(names):
            by_name = not isinstance(batch, Mapping) and len(given) < len(names) and len(parts) > positions
            raise TensorError(
                f"a batch with {len(given)} inputs ({', '.join(given) or 'none known'})",
                f"the network takes {', '.join(names)}{', some of them by name' if by_name else ''}",
                f"give {'' if by_name else 'a tuple of the inputs in that order, or '}a dict by these names",
            )
        for name, array in given.items():
            _require_fit(name, array, ports[name])
        yield Batch(given, arguments, None if labels is None else labels_of(labels, len(given[names[0]])))


def _named(batch: Mapping[Any, Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """What is in a dict, by the names of the network's inputs: `{"batch": {"x": ...}}`, and `{"x": ...}` where the
    network takes nothing but `batch`, are both `batch.x`."""
    only, dot, _ = names[0].partition(".")
    alone = bool(dot) and only not in batch and names[0] not in batch
    known = {only: batch} if alone and all(name.startswith(f"{only}.") for name in names) else batch
    waiting = [(str(key), value) for key, value in known.items()]
    while waiting:
        name, value = waiting.pop(0)
        if isinstance(value, Mapping):
            waiting += [(f"{name}.{key}", part) for key, part in value.items()]
        elif isinstance(value, (list, tuple)) and name not in names:
            waiting += [(f"{name}.{index}", part) for index, part in enumerate(value)]
        else:
            yield name, value


def _single(value: Any) -> Any:
    """Floats as float32, because numpy creates float64 by default."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float32) if value.dtype.kind == "f" else value
    return map_tensors(value, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor)


def _require_fit(name: str, array: npt.NDArray[Any], port: Port) -> None:
    """A named size accepts any size; a file may not give a shape at all."""
    shape, wanted = array.shape, port.shape
    fits = len(shape) == len(wanted) and all(isinstance(w, str) or w == s for s, w in zip(shape, wanted, strict=True))
    if wanted and not fits:
        raise TensorError(
            f"a batch with {name!r} of shape {shape}", f"the network takes {wanted}", "give that shape; names are free"
        )
    if (array.dtype.kind == "f") != port.dtype.startswith("float"):
        raise TensorError(
            f"a batch with {name!r} of dtype {array.dtype}", f"the network takes {port.dtype}", "give that dtype"
        )
    if not array.size:
        raise TensorError(f"a batch with {name!r} of shape {shape}", "it holds nothing", "give at least one sample")
    if array.dtype.kind == "f" and np.isnan(array).any():
        at = ", ".join(str(index) for index in np.argwhere(np.isnan(array))[0])
        raise RangeError(
            f"a batch with {name!r} that is NaN at [{at}]",
            "no grid has a code for it, and each engine makes another of it",
            "leave that sample out, or repair it",
        )


def labels_of(value: Any, samples: int) -> npt.NDArray[Any]:
    labels = _array(value)
    if labels.size != samples:
        raise TensorError(
            f"labels of shape {labels.shape} for {samples} samples",
            "what follows the inputs in a batch are its labels, one for each sample",
            "give the number of the right class of each sample, or no labels",
        )
    return labels


def require_classes(labels: npt.NDArray[Any], classes: int) -> None:
    """Refuse a label that is not the index of a class, because it would count as a wrong answer."""
    strange = labels[~np.isin(labels, np.arange(classes))]
    if strange.size:
        raise RangeError(
            f"the label {strange.flat[0]} among those of a batch",
            f"the first output of the network has {classes} numbers for each sample, classes 0 to {classes - 1}",
            "give the number of the right class of each sample, leave out samples of no class, or give no labels",
        )


def _array(value: Any) -> npt.NDArray[Any]:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
