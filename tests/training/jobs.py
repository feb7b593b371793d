"""A small network, made-up images that can be learned, and runs of both: what the tests of this room share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import detent
from detent.recipes import Recipe
from detent.training import Batches, Ema, Processes, Run, Schedule, parameter_groups, seed_everything

# Some virtual machines name AMX among their features and stop a process that uses it; these kernels run everywhere.
STEADY_KERNELS = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}


class Blobs:
    """Images of three classes; each is noise with a bright patch where its class has it."""

    def __init__(self, count: int = 48, *, seed: int = 0, channels: int = 3):
        draw = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(count) % 3
        self.images = torch.randn(count, channels, 8, 8, generator=draw)
        for image, label in zip(self.images, self.labels.tolist(), strict=True):
            image[:, 2 * label : 2 * label + 3, 2 * label : 2 * label + 3] += 2.0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]


class Net(nn.Module):
    """Two convolutions with batch norms, of which one has a bias, dropout, and a linear layer."""

    def __init__(self, *, dropout: float = 0.2):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.fc(self.drop(x.mean(dim=(2, 3))))


def noisy(image: Tensor, draw: torch.Generator) -> Tensor:
    return image + 0.1 * torch.randn(image.shape, generator=draw)


def make_run(
    folder: Path | None = None,
    *,
    recipe: str | Recipe = "lsq",
    backend: str = "tensorrt",
    strategy: int | None = 4,
    dropout: float = 0.2,
    lr: float = 0.05,
    checkpoint_interval: int | None = None,
    ema: float | None = None,
    processes: Processes = Processes(),
    **options: Any,
) -> Run:
    """A run of `Net` on `Blobs` in batches of 8."""
    torch.set_num_threads(1)
    seed_everything(7)
    request = detent.recipes.find(recipe)
    request = request.replace(batch_norm={"strategy": strategy})
    prepared = detent.prepare(Net(dropout=dropout), (torch.zeros(2, 3, 8, 8),), backend=backend, recipe=request)
    groups = parameter_groups(prepared, lr=lr, weight_decay=1e-4, scale_lr=lr / 10)
    share: dict[str, Any] = {"rank": processes.rank, "ranks": processes.count}
    train = Batches(Blobs(), 8, shuffle=True, seed=3, augment=noisy, **share)
    return Run(
        prepared,
        torch.optim.SGD(groups, momentum=0.9),
        train,
        Batches(Blobs(24, seed=1), 8, **share),
        Batches(Blobs(), 8, shuffle=True, seed=5, limit=2, **share),
        schedule=Schedule("cosine", steps=40, warmup=2),
        ema=None if ema is None else Ema(prepared, ema),
        folder=folder,
        checkpoint_interval=checkpoint_interval,
        processes=processes,
        **options,
    )


def state_of(run: Run) -> dict[str, Tensor]:
    """Every tensor of the model and of the optimizer's state."""
    state = {f"model.{name}": value for name, value in run.prepared.state_dict().items()}
    for index, held in run.optimizer.state_dict()["state"].items():
        state |= {f"optimizer.{index}.{name}": value for name, value in held.items() if isinstance(value, Tensor)}
    return state
