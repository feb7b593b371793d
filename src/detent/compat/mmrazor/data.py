"""The data of a config or of a runner: what OpenMMLab calls dataloaders, as samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler

from detent.compat.mmrazor.registry import DATASETS
from detent.errors import DataError, UnknownNameError
from detent.training.datasets import cifar10

__all__ = ["CIFAR10", "Loader", "Samples", "loader_of"]


class Loader(NamedTuple):
    """A data set, and how it is gone through."""

    samples: Samples
    batch_size: int
    shuffle: bool


def loader_of(given: Any) -> Loader:
    """A torch `DataLoader`, or a dict with `dataset`, `batch_size` and perhaps `sampler=dict(shuffle=True)`.

    A data set is an object, or a dict whose `type` is registered in `DATASETS`; `CIFAR10` is built in.
    """
    if isinstance(given, DataLoader):
        return Loader(Samples(given.dataset), given.batch_size or 1, isinstance(given.sampler, RandomSampler))
    if not isinstance(given, Mapping):
        raise DataError(f"a dataloader of type {type(given).__name__}", "it is none", "give a DataLoader or a dict")
    shuffle = bool((given.get("sampler") or {}).get("shuffle", False))
    return Loader(Samples(_dataset(given["dataset"])), given["batch_size"], shuffle)


def _dataset(given: Any) -> Any:
    try:
        return DATASETS.build(given)
    except UnknownNameError:
        name = str(given.get("type", "")).rpartition(".")[2]
        raise DataError(
            f"the data set {name!r} of a config",
            "OpenMMLab reads it, with pipelines of its own",
            "give the data as objects, Runner.from_cfg(cfg, train_dataloader=..., val_dataloader=...), or register a "
            f"class {name} with @DATASETS.register_module()",
        ) from None


class Samples:
    """Samples as the loops take them: what `forward` takes, `inputs` and `data_samples`, and the latter as labels."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int, /) -> tuple[Any, ...]:
        sample = self.dataset[index]
        image, data_sample = (sample["inputs"], sample["data_samples"]) if isinstance(sample, Mapping) else sample
        return image, data_sample, data_sample

    def transform(self, image: Tensor, draw: torch.Generator) -> Tensor:
        """The image as the data set's own pipeline changes it, where it has one that draws at random."""
        if not hasattr(self.dataset, "transform"):
            return image
        changed: Tensor = self.dataset.transform(image, draw)
        return changed


class CIFAR10:
    """mmcls's data set of that name, from files that are there: pixels from 0 to 255, and the label.

    Its `pipeline` may crop (`RandomCrop` with `padding`), mirror (`RandomFlip`) and pack (`PackInputs`).
    """

    def __init__(
        self,
        data_root: str | None = None,
        data_prefix: str = "",
        split: str = "train",
        test_mode: bool = False,
        pipeline: Sequence[Mapping[str, Any]] = (),
    ):
        images = cifar10(Path(data_root or data_prefix), "test" if test_mode else split)
        self._pixels, self._labels = images.pixels, images.labels
        self._steps = [(str(step.get("type", "")).rpartition(".")[2], step) for step in pipeline]
        for name, step in self._steps:
            if name not in _TAKES or set(step) - {"type", *_TAKES[name]}:
                raise DataError(
                    f"the transform {dict(step)!r} of a pipeline",
                    f"not one of {', '.join(_TAKES)}",
                    "leave it out, or give the data as objects to Runner.from_cfg",
                )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]:
        image = torch.from_numpy(self._pixels[index].copy()).permute(2, 0, 1).float()
        return image, torch.tensor(self._labels[index])

    def transform(self, image: Tensor, draw: torch.Generator) -> Tensor:
        for name, step in self._steps:
            if name == "RandomCrop":
                padding, size = int(step.get("padding", 0)), int(step["crop_size"])
                image = F.pad(image, (padding,) * 4)
                highest = image.shape[-1] - size + 1
                top, left = torch.randint(0, highest, (2,), generator=draw).tolist()
                image = image[:, top : top + size, left : left + size]
            elif name == "RandomFlip" and float(torch.rand((), generator=draw)) < float(step.get("prob", 0.5)):
                image = image.flip(-2 if step.get("direction") == "vertical" else -1)
        return image


_TAKES: Mapping[str, tuple[str, ...]] = {
    "RandomCrop": ("crop_size", "padding"),
    "RandomFlip": ("prob", "direction"),
    "PackInputs": (),
    "PackClsInputs": (),
}

DATASETS.offer(CIFAR10)
