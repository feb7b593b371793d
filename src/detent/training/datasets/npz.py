"""Samples of any kind in `.npz` files: an array of inputs, and labels."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from detent.data.arrays import labeled_in
from detent.errors import DataError

__all__ = ["Npz"]


class Npz:
    """`train.npz`, and `test.npz` or `val.npz`, in a folder: inputs as the network takes them, and `labels`."""

    def __init__(self, folder: Path, split: str):
        names = ("train",) if split == "train" else ("test", "val")
        files = [folder / f"{name}.npz" for name in names]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            found = f"there is no {' or '.join(file.name for file in files)}"
            raise DataError(f"the data set npz in {folder}", found, "numpy.savez(file, x=x, labels=labels) writes one")
        self.inputs, self.labels = labeled_in(file)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]:
        return torch.as_tensor(self.inputs[index]), torch.tensor(self.labels[index])
