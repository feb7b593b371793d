"""Images in a folder with a list file, one line `name label` per image, as ImageNet is often distributed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from detent.data import Preprocessing
from detent.errors import DataError, refusing
from detent.files import read_bytes

__all__ = ["ListedImages"]


class ListedImages:
    """Images are read when they are indexed. `train_*` and `test_*` are `root_dir` and `meta_file` of a split."""

    def __init__(
        self,
        _: Path | None,
        split: str,
        *,
        train_root: str,
        train_list: str,
        test_root: str,
        test_list: str,
        size: int = 224,
        resize: int = 256,
    ):
        root, listed = (train_root, train_list) if split == "train" else (test_root, test_list)
        self._preprocessing = Preprocessing(resize=resize, crop=(size, size))
        for path in (Path(root), Path(listed)):
            if not path.exists():
                raise DataError(
                    f"data.{split}: {path}",
                    "there is no such file or folder",
                    "put ImageNet there, or pass --data FOLDER",
                )
        with refusing(DataError, f"read the list {listed}", "write a line `name label` for each picture"):
            text = read_bytes(listed).decode()
            lines = [line.rsplit(maxsplit=1) for line in text.splitlines() if line.strip()]
            self._files = [(Path(root) / name, int(label)) for name, label in lines]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]:
        file, label = self._files[index]
        return torch.from_numpy(self._preprocessing(file))[0], torch.tensor(label)
