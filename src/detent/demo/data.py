"""The weights and images that ship with the package: trained by tools/train_demo.py on Fashion-MNIST."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

from detent.demo.network import DemoNet

__all__ = ["Images", "images", "normalized", "trained"]

_MEAN, _DEVIATION = 0.2860, 0.3530  # of all training pixels, divided by 255


class Images(NamedTuple):
    """Normalized images with their labels."""

    calibration: Tensor
    calibration_labels: Tensor
    test: Tensor
    test_labels: Tensor


def normalized(pixels: npt.NDArray[np.uint8]) -> Tensor:
    """Bytes to what the network takes: one channel, mean 0, deviation 1."""
    scaled = (torch.from_numpy(pixels.astype(np.float32)) / 255 - _MEAN) / _DEVIATION
    return scaled.unsqueeze(1) if scaled.ndim == 3 else scaled


def trained() -> DemoNet:
    """The network as it was trained, in eval mode."""
    net = DemoNet()
    net.load_state_dict(load_tensors((files("detent.demo") / "weights.safetensors").read_bytes()))
    return net.eval()


def images() -> Images:
    """256 training images to calibrate with, 1,000 test images."""
    with as_file(files("detent.demo") / "images.npz") as path, np.load(path, allow_pickle=False) as held:
        arrays: dict[str, npt.NDArray[Any]] = {name: held[name] for name in held.files}
    labels = {name: torch.from_numpy(arrays[name].astype(np.int64)) for name in arrays if name.endswith("labels")}
    return Images(
        normalized(arrays["calibration"]),
        labels["calibration_labels"],
        normalized(arrays["test"]),
        labels["test_labels"],
    )
