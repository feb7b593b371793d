"""Example inputs for a model that comes without: MQBench prepares before it has seen a batch."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call

from detent.graph import eval_mode

__all__ = ["find_example_inputs"]

_SIZES = (224, 32, 28, 64, 96, 128, 160, 192, 256, 288, 299, 227, 320, 384, 416, 448, 512, 640, *range(1, 32))
"""Of images, the usual ones first. A network that ends in a linear layer takes one of them only."""
_BATCH, _LENGTH = 2, 16  # one sample alone would be squeezed away with other axes of size 1


def find_example_inputs(model: nn.Module, given: Collection[str] = ()) -> tuple[Tensor, ...] | None:
    """Tensors that forward takes, one for each argument without a default that is not `given`; None if none was found.

    The first layer with weights says what it takes in, and the model is asked, on tensors without numbers, for which
    size it runs.
    """
    needed = [
        one
        for name, one in inspect.signature(model.forward).parameters.items()
        if one.default is one.empty
        and name not in given
        and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with eval_mode(model), torch.no_grad():
        for shape, dtype in _candidates(model) if needed else ():
            if _runs(model, shape, dtype, len(needed)):
                return tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in needed)
    return None


def _candidates(model: nn.Module) -> Iterator[tuple[tuple[int, ...], torch.dtype]]:
    seen: set[type] = set()
    for module in model.modules():
        if type(module) in seen:
            continue
        seen.add(type(module))
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            axes = module.weight.ndim - 2
            yield from (((_BATCH, module.in_channels, *[size] * axes), torch.float32) for size in _SIZES)
        elif isinstance(module, nn.Linear):
            yield (_BATCH, module.in_features), torch.float32
            yield (_BATCH, _LENGTH, module.in_features), torch.float32
        elif isinstance(module, nn.Embedding):
            yield (_BATCH, _LENGTH), torch.int64
        elif isinstance(module, (nn.LSTM, nn.GRU)):
            yield (_BATCH, _LENGTH, module.input_size), torch.float32


def _runs(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, count: int) -> bool:
    state = {name: value.to("meta") for name, value in (*model.named_parameters(), *model.named_buffers())}
    inputs = tuple(torch.zeros(shape, dtype=dtype, device="meta") for _ in range(count))
    try:
        functional_call(model, state, inputs)
    except Exception:  # the model's own: these are not its sizes
        return False
    return True
