"""The callbacks, in the real trainers, which are imported where they are used: each takes seconds."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detent.graph import FoldedBatchNorm, quantizers_of, ranges_of, sum_of_weights
from detent.recipes import Recipe, TensorRequest
from detent.training import Phases
from detent.training.integrations import hugging_face_callback, lightning_callback
from tests.training.jobs import Blobs, make_run

MOVING = Recipe(
    name="moving", weight=TensorRequest(quantizer="fixed"), activation=TensorRequest(quantizer="moving_range")
)


def phases_of(strategy: int) -> Phases:
    run = make_run(recipe=MOVING, strategy=strategy)
    return Phases(run.prepared, run.calibration, freeze_bn_begin=2, stop_observing_begin=2)


def moving_state(prepared: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in prepared.buffers() if value.is_floating_point()]


@pytest.mark.parametrize("strategy", [-1, 4])
def test_phases_hold_through_training_mode(strategy: int) -> None:
    phases = phases_of(strategy)
    phases.begin()
    inputs = torch.randn(8, 3, 8, 8)
    phases.begin_epoch(1)
    before = moving_state(phases.prepared)
    phases.prepared.train()(inputs)
    assert any(not torch.equal(a, b) for a, b in zip(before, moving_state(phases.prepared), strict=True))
    phases.begin_epoch(2)
    before = moving_state(phases.prepared)
    phases.prepared.train()(inputs)
    assert all(torch.equal(a, b) for a, b in zip(before, moving_state(phases.prepared), strict=True))
    assert all(m.frozen for m in phases.prepared.modules() if isinstance(m, FoldedBatchNorm))


def test_a_calibrated_model_is_not_calibrated_again() -> None:
    phases = phases_of(4)
    phases.begin()
    before = moving_state(phases.prepared)
    phases.batches = [torch.full((8, 3, 8, 8), 99.0)]
    phases.begin()
    assert all(torch.equal(a, b) for a, b in zip(before, moving_state(phases.prepared), strict=True))


def assert_phases(phases: Phases, states: list[list[torch.Tensor]]) -> None:
    """`states` are those before each of 2 steps in each of 3 epochs; from the second epoch on all stands still."""

    def same(a: int, b: int) -> bool:
        return all(torch.equal(*pair) for pair in zip(states[a], states[b], strict=True))

    assert len(states) == 6
    assert all(torch.isfinite(value).all() for value in states[0]), "it is calibrated before the first step"
    assert not same(0, 1)
    assert not same(1, 2)
    assert same(2, 3)
    assert same(3, 5)
    assert all(quantizer.calibrated for quantizer in quantizers_of(phases.prepared))
    assert all(m.frozen for m in phases.prepared.modules() if isinstance(m, FoldedBatchNorm))
    weights = sum_of_weights(phases.prepared)
    assert [one.is_of(weights) for one in ranges_of(phases.prepared)] == [True], "measured again at the end"


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path) -> None:
    import lightning.pytorch as pl

    phases = phases_of(4)
    states: list[list[torch.Tensor]] = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = phases.prepared

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            states.append(moving_state(self.net))
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.net.parameters(), lr=0.01)

    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[lightning_callback(phases)],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Blobs(16), batch_size=8))
    assert_phases(phases, states)


@pytest.mark.filterwarnings("ignore")
def test_hugging_face(tmp_path: Path) -> None:
    import transformers

    phases = phases_of(4)
    states: list[list[torch.Tensor]] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = phases.prepared

        def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            states.append(moving_state(self.net))
            logits = self.net(pixels)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    rows = [{"pixels": image, "labels": label} for image, label in (Blobs(16)[i] for i in range(16))]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=3,
        per_device_train_batch_size=8,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(Model(), arguments, train_dataset=rows, callbacks=[hugging_face_callback(phases)])
    trainer.train()
    assert_phases(phases, states)


def test_what_is_frozen_is_frozen_once_and_can_be_saved() -> None:
    phases = phases_of(-1)
    phases.begin()
    for epoch in (2, 3):
        phases.begin_epoch(epoch)
    norms = [m for m in phases.prepared.modules() if isinstance(m, nn.BatchNorm2d)]
    assert [len(norm._forward_pre_hooks) for norm in norms] == [1] * len(norms)
    pickle.dumps(norms)
