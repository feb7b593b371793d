"""The float weights that a config names: a file, or the address of one that was downloaded."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlparse

import torch
from torch import nn

from detent.errors import DataError, refusing
from detent.zoo.pretrained import read_weights

__all__ = ["load_float_checkpoint"]


def load_float_checkpoint(model: nn.Module, where: str | os.PathLike[str]) -> None:
    """Load a state dict, or the one in the `state_dict` of what OpenMMLab saves.

    Nothing is downloaded: the file of an address is looked for where torch and OpenMMLab keep such files.
    """
    path, address = Path(where), urlparse(str(where))
    to_do = "give the path of a checkpoint"
    if address.scheme in ("http", "https"):
        path = Path(torch.hub.get_dir()) / "checkpoints" / Path(address.path).name
        to_do = f"download {where} to {path}, or set float_checkpoint to where you have it"
    if not path.is_file():
        raise DataError(f"float_checkpoint {str(where)!r}", f"there is no file {path}; nothing is downloaded", to_do)
    with refusing(DataError, f"float_checkpoint {str(where)!r}", "give weights of this architecture"):
        model.load_state_dict(read_weights(path))
