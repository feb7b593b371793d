"""Images as network inputs, with explicit preprocessing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from detent.errors import DataError, install_hint

__all__ = ["SUFFIXES", "Preprocessing"]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm")


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How an image becomes an array: resize the shorter side, cut out the middle, `(pixel / 255 - mean) / std`.

    `resize` is the length of the shorter side (None: the picture is resized to `crop` whatever its shape). `crop` is
    (height, width). The default is what torchvision's ImageNet classifiers take. As there, a picture of grays, of a
    palette or with transparency becomes RGB without the latter, and the orientation that a camera noted is not applied.
    """

    resize: int | None = 256
    crop: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    color: Literal["RGB", "BGR", "L"] = "RGB"
    layout: Literal["NCHW", "NHWC"] = "NCHW"

    def __post_init__(self) -> None:
        channels = 1 if self.color == "L" else 3
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, channels) or (name == "std" and 0 in numbers):
                raise DataError(
                    f"{name} {', '.join(map(str, numbers))} for images of {channels} channels",
                    f"{len(numbers)} numbers, or a division by zero",
                    f"give {channels}, or one for all",
                )
        if min(self.crop) < 1 or (self.resize is not None and self.resize < max(self.crop)):
            raise DataError(
                f"resize {self.resize} and crop {self.crop}",
                "the crop does not fit into an image of that size",
                "give a crop above zero that is not larger than resize",
            )

    def __call__(self, path: Path) -> npt.NDArray[np.float32]:
        """The picture as one sample with a batch axis."""
        try:
            from PIL import Image
        except ImportError:
            raise DataError(f"read the image {path}", "Pillow is not installed", install_hint("images")) from None
        try:
            with Image.open(path) as opened:
                if opened.mode.startswith(("I", "F")):
                    raise DataError(
                        f"read the image {path}", f"pixels of the mode {opened.mode}", "convert it to 8 bits first"
                    )
                picture: Any = opened.convert("L" if self.color == "L" else "RGB")
        except DataError:
            raise
        except Exception as error:  # of Pillow, whose readers raise anything at a damaged file
            raise DataError(f"read the image {path}", str(error), "remove it, or give images only") from None
        pixels = np.asarray(self._sized(picture), np.float32)
        pixels = pixels[..., np.newaxis] if pixels.ndim == 2 else pixels
        if self.color == "BGR":
            pixels = pixels[..., ::-1]
        scaled = (pixels / 255 - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        turned = scaled.transpose(2, 0, 1) if self.layout == "NCHW" else scaled
        return np.ascontiguousarray(turned[np.newaxis], np.float32)

    def _sized(self, picture: Any) -> Any:
        height, width = self.crop
        if self.resize is None:
            return picture.resize((width, height), resample=2)
        factor = self.resize / min(picture.size)
        picture = picture.resize([max(1, round(size * factor)) for size in picture.size], resample=2)
        left, top = (picture.size[0] - width) // 2, (picture.size[1] - height) // 2
        return picture.crop((left, top, left + width, top + height))
