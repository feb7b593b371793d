"""A batch, taken apart: what the model is called with, and the labels behind it.

- A tuple: inputs, and labels last, `(image, label)` or `(left, right, label)`.
- A tuple whose only input is a dict: the model takes it by keyword, `({"left": ..., "right": ...}, label)`.
- A dict: all of it goes to the model by keyword, for models that compute their own loss; its "labels" are the labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import default_collate

from detent.errors import DataError
from detent.graph import Inputs
from detent.graph.capture.running import map_tensors

__all__ = ["ModelInputs", "call", "example_of", "inputs_of", "labels_of", "size_of", "to_float32"]


def inputs_of(batch: Any) -> Inputs:
    """The inputs of the model."""
    if isinstance(batch, Mapping):
        return Inputs((), dict(batch))
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise DataError(
            f"train on a batch of type {type(batch).__name__}",
            "it is neither (inputs, labels) nor a dict",
            "let the data set give (input, label), (input, ..., label), or a dict",
        )
    *inputs, _ = batch
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return Inputs((), dict(inputs[0]))
    return Inputs(tuple(inputs), {})


def labels_of(batch: Any) -> Any:
    """The labels; None if a dict has none."""
    return batch.get("labels") if isinstance(batch, Mapping) else batch[-1]


def call(model: Callable[..., Any], batch: Any) -> Any:
    """The outputs of `model` for a batch."""
    inputs = inputs_of(batch)
    return model(*inputs.args, **inputs.kwargs)


def size_of(batch: Any) -> int:
    """The number of samples: the length of the first axis of its first tensor."""
    sizes: list[int] = []
    map_tensors(batch, lambda tensor: sizes.append(len(tensor)) if tensor.ndim else None)
    return sizes[0] if sizes else 1


def example_of(sample: Any) -> Inputs:
    """The inputs of a batch that consists of this sample alone."""
    return inputs_of(default_collate([sample]))


class ModelInputs:
    """Batches without their labels, as `detent.calibrate` takes them; can be iterated repeatedly."""

    def __init__(self, batches: Iterable[Any]):
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            inputs = inputs_of(batch)
            yield inputs.kwargs or inputs.args


def to_float32(outputs: Any) -> Any:
    """Converts half precision to float32, because losses and metrics are sums."""
    half = (torch.float16, torch.bfloat16)
    return map_tensors(outputs, lambda tensor: tensor.float() if tensor.dtype in half else tensor)
