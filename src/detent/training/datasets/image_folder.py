"""A folder of images with one subfolder per class: `train/cat/1.jpg`, `val/dog/2.png`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from detent.data import Preprocessing
from detent.errors import DataError

__all__ = ["ImageFolder"]

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm")
_SPLITS = {"train": ("train",), "test": ("test", "val")}


class ImageFolder:
    """Images are read when they are indexed; classes are the subfolders in alphabetical order."""

    def __init__(self, folder: Path, split: str, preprocessing: Preprocessing):
        self.preprocessing = preprocessing
        root = next((folder / name for name in _SPLITS[split] if (folder / name).is_dir()), None)
        if root is None:
            raise DataError(
                f"the data set image_folder in {folder}",
                f"there is no folder {' or '.join(_SPLITS[split])} in it",
                f"put pictures there as {folder / _SPLITS[split][0] / 'some_class' / '1.jpg'}",
            )
        self.classes = sorted(path.name for path in root.iterdir() if path.is_dir())
        self.files = [
            (file, label)
            for label, name in enumerate(self.classes)
            for file in sorted((root / name).rglob("*"))
            if file.suffix.lower() in _SUFFIXES
        ]
        if not self.files:
            raise DataError(f"the data set {root}", "no pictures in folders of classes", f"put {_SUFFIXES} there")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]:
        file, label = self.files[index]
        return torch.from_numpy(self.preprocessing(file))[0], torch.tensor(label)
