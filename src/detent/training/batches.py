"""Batches of a data set in an order that depends only on seed and epoch.

A batch is the same whether one process takes all of it or several take a part each, and whether training starts at the
beginning or resumes: neither the order nor the augmentation uses a global random generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from detent.errors import DataError
from detent.graph.capture.running import map_tensors

__all__ = ["Augment", "Batches", "Samples"]

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""From the first input of a sample to another, drawing from the generator it is handed."""


class Samples(Protocol):
    """A data set: its length, and one sample by index, in a form that `detent.training.batch` describes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Batches:
    """Batches of `batch_size` samples over all ranks together; `rank` of `ranks` takes every `ranks`-th sample.

    A shuffled epoch drops the last incomplete batch; without shuffling the last batch is smaller, and a rank without a
    part of it skips it. `epoch` is the next one to run, and its first `skip` batches are left out.
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        augment: Augment | None = None,
        workers: int = 0,
        rank: int = 0,
        ranks: int = 1,
        limit: int | None = None,
        device: torch.device = torch.device("cpu"),
    ):
        if batch_size % ranks:
            raise DataError(
                f"batches of {batch_size} on {ranks} processes",
                "the processes would get parts of different sizes",
                f"choose a multiple of {ranks}",
            )
        if len(samples) < ranks:
            raise DataError(
                f"{len(samples)} samples on {ranks} processes", "some would get none", "start fewer processes"
            )
        self.samples, self.batch_size, self.shuffle, self.seed = samples, batch_size, shuffle, seed
        self.augment, self.workers, self.rank, self.ranks, self.limit = augment, workers, rank, ranks, limit
        self.epoch, self.skip, self.device = 0, 0, device
        if len(self) == 0:
            raise DataError(
                f"batches of {batch_size}", f"the data set has {len(samples)} samples", "choose smaller batches"
            )

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole = len(self.samples) // self.batch_size
        count = whole if self.shuffle else -(-len(self.samples) // self.batch_size)
        return count if self.limit is None else min(count, self.limit)

    def __iter__(self) -> Iterator[Any]:
        given = _Given(self.samples, self.augment, self.seed, self.epoch)
        loader: DataLoader[Any] = DataLoader(
            given,
            batch_sampler=[part for part in list(self._indices())[self.skip :] if part],
            num_workers=self.workers,
            generator=torch.Generator().manual_seed(self.seed),  # or the loader would draw from the global one
        )
        for batch in loader:
            yield map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=True))

    def _indices(self) -> Iterator[list[int]]:
        """The samples of each batch that belong to this rank."""
        count = len(self.samples)
        order = torch.arange(count)
        if self.shuffle:
            order = torch.randperm(count, generator=_generator(self.seed, self.epoch))
        for number in range(len(self)):
            batch = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield batch[self.rank :: self.ranks].tolist()


class _Given(Dataset[Any]):
    """The samples of one epoch, augmented."""

    def __init__(self, samples: Samples, augment: Augment | None, seed: int, epoch: int):
        self.samples, self.augment, self.seed, self.epoch = samples, augment, seed, epoch

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        sample = self.samples[index]
        if self.augment is None:
            return sample
        if isinstance(sample, Mapping):
            raise DataError("augment a sample", "it is a dict, and no input of it is the first", "augment it yourself")
        first, *rest = sample
        return (self.augment(first, _generator(self.seed, self.epoch, index)), *rest)


def _generator(*key: int) -> torch.Generator:
    """A separate generator for each key."""
    seed = 0
    for part in key:
        # The multiplier of Knuth's MMIX generator spreads neighboring keys over all 64 bits.
        seed = ((seed ^ part) * 6364136223846793005 + 1442695040888963407) % 2**63
    return torch.Generator().manual_seed(seed)
