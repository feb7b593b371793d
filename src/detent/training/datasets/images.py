"""Images in memory with their labels, and how they become network inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from detent.errors import DataError

__all__ = ["Images", "Normalization", "crop_and_flip"]


@dataclass(frozen=True)
class Normalization:
    """`(pixel / 255 - mean) / std`, for each channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __call__(self, pixels: npt.NDArray[Any]) -> Tensor:
        """Height, width, channel in; channel, height, width out."""
        values = torch.from_numpy(np.array(pixels)).permute(2, 0, 1).float() / 255
        mean, std = (torch.tensor(numbers).reshape(-1, 1, 1) for numbers in (self.mean, self.std))
        return (values - mean) / std


class Images:
    """`pixels` uint8 (count, height, width, channels) and `labels` of as many integers; a data set for `Batches`."""

    def __init__(self, pixels: npt.NDArray[Any], labels: npt.NDArray[Any], normalize: Normalization):
        if pixels.ndim != 4 or labels.shape != pixels.shape[:1]:
            raise DataError(
                "images with labels",
                f"images of shape {pixels.shape} and labels of shape {labels.shape}",
                "give files that belong together",
            )
        self.pixels, self.labels, self.normalize = pixels, labels.astype(np.int64), normalize

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]:
        return self.normalize(self.pixels[index]), torch.tensor(self.labels[index])


def crop_and_flip(image: Tensor, draw: torch.Generator) -> Tensor:
    """The usual augmentation for small images: shifted by up to an eighth of the size, and flipped with probability
    1/2."""
    margin = max(1, image.shape[-1] // 8)
    top, left, mirrored = torch.randint(0, 2 * margin + 1, (3,), generator=draw).tolist()
    padded = F.pad(image, (margin, margin, margin, margin))
    cut = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
    return cut.flip(2) if mirrored % 2 else cut
