"""Synthetic images for first steps and tests: noise with a bright patch whose position is the class."""

from __future__ import annotations

import numpy as np

from detent.training.datasets.images import Images, Normalization

__all__ = ["made_up"]


def made_up(split: str, *, count: int, size: int, channels: int, classes: int) -> Images:
    """`count` images of `size` by `size`; the two splits have different noise."""
    draw = np.random.default_rng(split == "train")
    labels = np.arange(count) % classes
    pixels = draw.integers(0, 128, (count, size, size, channels), dtype=np.uint8)
    side = max(1, size // classes)
    for image, label in zip(pixels, labels, strict=True):
        image[label * side : (label + 1) * side, :, label % channels] += 120
    return Images(pixels, labels, Normalization((0.3,) * channels, (0.2,) * channels))
