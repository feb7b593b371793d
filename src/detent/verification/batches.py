"""What a user hands over as data, taken apart: inputs by the names of the deployed network, and labels if there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.errors import TensorError
from detent.graph import flat

__all__ = ["Batch", "taken_apart"]


@dataclass(frozen=True, eq=False)
class Batch:
    """`inputs` by ONNX name, `arguments` as the torch model is called, `labels` where they were given."""

    inputs: dict[str, npt.NDArray[Any]]
    arguments: Any
    labels: npt.NDArray[Any] | None


def taken_apart(batches: Iterable[Any], names: Sequence[str], positions: int) -> Iterator[Batch]:
    """Each batch is a tensor, a tuple of inputs with perhaps labels behind them, or a dict by input name.

    `positions` is how many arguments the model takes, which may hold several tensors each.
    """
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
        yield Batch(given, arguments, None if labels is None else _array(labels))


def _array(value: Any) -> npt.NDArray[Any]:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
