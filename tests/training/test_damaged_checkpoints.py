"""Checkpoints of another form than training writes: refused in one line, and the model is as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from detent.errors import ArtifactError
from detent.training import LSQEpochLoop, Run
from tests.training.jobs import make_run

Header = dict[str, Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run = make_run(folder, ema=0.9)
    run.train.limit = 1
    LSQEpochLoop(run, max_epochs=1).run()
    return folder / "last.safetensors"


def without(*path: str) -> Callable[[Header], None]:
    def change(header: Header) -> None:
        held = header
        for part in path[:-1]:
            held = held[part]
        del held[path[-1]]

    return change


def with_value(value: Any, *path: str) -> Callable[[Header], None]:
    def change(header: Header) -> None:
        held = header
        for part in path[:-1]:
            held = held[part]
        held[path[-1]] = value

    return change


KEPT = ("state", "training")
CHANGES: dict[str, Callable[[Header], None]] = {
    "state a list": with_value([1, 2], "state"),
    "state a number": with_value(3, "state"),
    "no state": without("state"),
    "no model": without("state", "model"),
    "model a list": with_value([], "state", "model"),
    "a number for a tensor": lambda header: header["state"]["model"].update({next(iter(header["state"]["model"])): 4}),
    "no training": without(*KEPT),
    "training text": with_value("x", *KEPT),
    "no optimizer": without(*KEPT, "optimizer"),
    "optimizer a number": with_value(5, *KEPT, "optimizer"),
    "optimizer without groups": with_value({"state": {}}, *KEPT, "optimizer"),
    "no progress": without(*KEPT, "progress"),
    "progress with another key": with_value(1, *KEPT, "progress", "epochs"),
    "negative epoch": with_value(-1, *KEPT, "progress", "epoch"),
    "step that is text": with_value("3", *KEPT, "progress", "step"),
    "best that is text": with_value("good", *KEPT, "progress", "best"),
    "no random": without(*KEPT, "random"),
    "random a list": with_value([], *KEPT, "random"),
    "random without torch": without(*KEPT, "random", "torch"),
    "precision a list": with_value([1], *KEPT, "precision"),
    "averages a number": with_value(1, *KEPT, "ema"),
    "averages of nothing": with_value({}, *KEPT, "ema updates"),
    "a tensor that is not there": with_value({"$tensor": "gone"}, *KEPT, "random", "torch"),
}


def rewritten(source: Path, target: Path, change: Callable[[Header], None]) -> Path:
    with safe_open(source, "pt") as file:
        header = json.loads(file.metadata()["detent"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header)
    save_file(tensors, target, metadata={"detent": json.dumps(header)})
    return target


@pytest.fixture(scope="module")
def run() -> Run:
    made = make_run(ema=0.9)
    LSQEpochLoop(made, max_epochs=1).prepare_for_run_epoch()
    return made


@pytest.mark.parametrize("name", CHANGES)
def test_another_form_is_refused(name: str, written: Path, tmp_path: Path, run: Run) -> None:
    path = rewritten(written, tmp_path / "c.safetensors", CHANGES[name])
    with pytest.raises(ArtifactError):
        run.resume(path)


def test_a_header_nested_without_end_is_refused(written: Path, tmp_path: Path, run: Run) -> None:
    with safe_open(written, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, tmp_path / "c.safetensors", metadata={"detent": "[" * 100_000})
    with pytest.raises(ArtifactError, match="header is damaged"):
        run.resume(tmp_path / "c.safetensors")


def test_a_state_of_another_shape_is_refused_before_the_first_step(written: Path, tmp_path: Path, run: Run) -> None:
    with safe_open(written, "pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    held = next(name for name in tensors if "momentum_buffer" in name and tensors[name].ndim > 1)
    tensors[held] = torch.zeros(3, 3)
    save_file(tensors, tmp_path / "c.safetensors", metadata=header)
    with pytest.raises(ArtifactError, match="momentum_buffer is"):
        run.resume(tmp_path / "c.safetensors")


def test_unchanged_it_is_taken(written: Path, tmp_path: Path, run: Run) -> None:
    run.resume(rewritten(written, tmp_path / "c.safetensors", lambda _: None))
    assert (run.progress.epoch, run.progress.log_rows) == (1, 0)
