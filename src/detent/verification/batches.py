"""What a user hands over as data, taken apart: inputs by the names of the deployed network, and labels if there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.deploy import Port
from detent.errors import TensorError
from detent.graph import flat

__all__ = ["Batch", "taken_apart"]


@dataclass(frozen=True, eq=False)
class Batch:
    """`inputs` by ONNX name, `arguments` as the torch model is called, `labels` where they were given."""

    inputs: dict[str, npt.NDArray[Any]]
    arguments: Any
    labels: npt.NDArray[Any] | None


def taken_apart(batches: Iterable[Any], ports: Mapping[str, Port], positions: int) -> Iterator[Batch]:
    """Each batch is a tensor, a tuple of inputs with perhaps labels behind them, or a dict by input name.

    `positions` is how many arguments the model takes, which may hold several tensors each.
    """
    names = list(ports)
    for batch in batches:
        arguments: Any
        labels: Any = None
        if isinstance(batch, Mapping):
            arguments = batch
            given = {str(key): _array(value) for key, value in batch.items() if key in names}
        else:
            parts = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
            arguments = parts[:positions]
            labels = parts[positions] if len(parts) > positions else None
            tensors = [part for part in flat(arguments) if isinstance(part, (Tensor, np.ndarray))]
            given = dict(zip(names, map(_array, tensors), strict=False))
        if set(given) != set(names):
            raise TensorError(
                f"a batch with {len(given)} inputs ({', '.join(given) or 'none known'})",
                f"the network takes {', '.join(names)}",
                "give a tuple of the inputs in that order, or a dict by these names",
            )
        for name, array in given.items():
            _require_shape(name, array.shape, ports[name].shape)
        yield Batch(given, arguments, None if labels is None else _labels(labels, given[names[0]]))


def _require_shape(name: str, shape: tuple[int, ...], wanted: tuple[int | str, ...]) -> None:
    """A size with a name takes any; a file may not tell the shape at all."""
    fits = len(shape) == len(wanted) and all(isinstance(w, str) or w == s for s, w in zip(shape, wanted, strict=True))
    if wanted and not fits:
        raise TensorError(
            f"a batch with {name!r} of shape {shape}", f"the network takes {wanted}", "give that shape; names are free"
        )


def _labels(value: Any, first: npt.NDArray[Any]) -> npt.NDArray[Any]:
    labels, samples = _array(value), len(first)
    if labels.size != samples:
        raise TensorError(
            f"labels of shape {labels.shape} for {samples} samples",
            "what stands behind the inputs of a batch are its labels, one for each sample",
            "give the number of the right class of each sample, or no labels",
        )
    return labels


def _array(value: Any) -> npt.NDArray[Any]:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
