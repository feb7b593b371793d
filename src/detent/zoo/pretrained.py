"""Weights from a file, in torchvision's, timm's or our own names, without running code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from detent.errors import DataError
from detent.zoo.timm_names import from_timm, refuse_another_form

__all__ = ["load_pretrained", "read_weights"]

_WRAPPERS = ("state_dict", "model", "model_state", "net")
_PREFIX = "module."  # of models that were saved inside DistributedDataParallel
_SHOWN = 6


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file, or of a `.pth` or `.pt` file that holds nothing else."""
    where = Path(path)
    asked = f"read the weights {where}"
    if "\0" in str(where) or not where.is_file():
        raise DataError(asked, "there is no such file", "give the path of a .safetensors, .pth or .pt file")
    try:
        found: Any = (
            load_file(where)
            if where.suffix == ".safetensors"
            else torch.load(where, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # a pickle that is cut off raises anything
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise DataError(asked, f"it contains no plain tensors: {reason}", "save a state dict of tensors") from None
    for key in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise DataError(asked, "it is not a mapping of names to tensors", "save a state dict")
    return {str(name).removeprefix(_PREFIX): value for name, value in found.items()}


def load_pretrained(model: nn.Module, path: str | Path) -> None:
    """Load weights into `model`; every tensor must be there, of the right shape, and none left over."""
    given = read_weights(path)
    renamed = from_timm(model, given)
    if renamed:
        refuse_another_form(model)
    given = {renamed.get(name, name): value for name, value in given.items()}
    own = model.state_dict()
    # Old files lack the counters of batch norms, which only training with momentum=None reads.
    given = {**{n: v for n, v in own.items() if n.endswith("num_batches_tracked")}, **given}
    faults = [f"{name} is missing" for name in own if name not in given]
    faults += [f"{name} is unknown" for name in given if name not in own]
    faults += [
        f"{name} is {list(given[name].shape)}, not {list(own[name].shape)}"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    if faults:
        more = f", and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise DataError(
            f"load {path} into {type(model).__name__}",
            f"{'; '.join(faults[:_SHOWN])}{more}",
            "give weights of this architecture, with as many classes",
        )
    model.load_state_dict(given)
