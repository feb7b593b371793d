"""Models that are no classifiers of one input: several inputs, dicts, a loss and metrics of their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn
from torch.utils.data import Dataset

import detent
from detent.errors import DataError, RecipeError, TensorError
from detent.training import Batches, LSQEpochLoop, Objective, QATEpochLoop, Run, checkpoint, parameter_groups
from detent.training.batch import to_float32
from detent.training.config_files import load_config
from detent.training.session import train

HERE = __name__


class Sums(Dataset[Any]):
    """The sum of the first halves of two vectors; `form` says how a sample is handed over."""

    def __init__(self, folder: Path | None, split: str, *, count: int = 32, form: str = "tuple"):
        self.form = form
        draw = torch.Generator().manual_seed(len(split))
        self.left, self.right = torch.randn(2, count, 8, generator=draw)
        self.target = (self.left + self.right)[:, :4]

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, index: int, /) -> Any:
        left, right, target = self.left[index], self.right[index], self.target[index]
        match self.form:
            case "tuple":
                return left, right, target
            case "named":
                return {"left": left, "right": right}, target
        return {"left": left, "right": right, "labels": target}


class Adder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.other, self.out = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        out: Tensor = self.out(torch.relu(self.one(left) + self.other(right)))
        return out


class OwnLoss(Adder):
    def forward(self, left: Tensor, right: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        return F.mse_loss(super().forward(left, right), labels)


class NamedLoss(Adder):
    def forward(self, left: Tensor, right: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        out = super().forward(left, right)
        return {"loss": F.mse_loss(out, labels), "out": out}


def squared(outputs: Tensor, batch: Any) -> Tensor:
    return F.mse_loss(outputs, batch[-1])


def closeness(outputs: Tensor, batch: Any) -> float:
    return -float((outputs - batch[-1]).abs().mean())


def correlation(outputs: Tensor, batch: Any) -> Tensor:
    return torch.corrcoef(torch.stack([outputs.flatten(), batch[-1].flatten()]))[0, 1]


def run_of(model: nn.Module, form: str, folder: Path | None = None, **options: Any) -> Run:
    samples = Sums(None, "train", form=form)
    batch: Any = next(iter(Batches(samples, 1)))
    args, kwargs = ((), batch) if form == "dict" else ((), batch[0]) if form == "named" else (tuple(batch[:-1]), {})
    prepared = detent.prepare(model, args, example_kwargs=kwargs, backend="tensorrt", recipe="lsq")
    optimizer = torch.optim.SGD(parameter_groups(prepared, lr=0.1, scale_lr=0.001), momentum=0.9)
    val = Batches(Sums(None, "test", form=form), 8)
    return Run(
        prepared, optimizer, Batches(samples, 8, shuffle=True), val, Batches(samples, 8), folder=folder, **options
    )


@pytest.mark.by_default("two inputs", "loss in a dict")
@pytest.mark.parametrize(
    ("model", "form", "options"),
    [
        (Adder, "tuple", {"objective": squared, "metrics": {"closeness": closeness}}),
        (Adder, "named", {"objective": squared, "metrics": {"closeness": closeness}}),
        (OwnLoss, "dict", {}),
        (NamedLoss, "dict", {}),
    ],
    ids=["two inputs", "inputs by name", "loss returned", "loss in a dict"],
)
def test_it_learns(model: Callable[[], nn.Module], form: str, options: dict[str, Any], tmp_path: Path) -> None:
    run = run_of(model(), form, tmp_path, **options)
    LSQEpochLoop(run, max_epochs=1).run()
    before = run.validate()
    metrics = LSQEpochLoop(run, max_epochs=12).run()
    assert metrics["quantized.loss"] < 0.5 * before["quantized.loss"]
    assert metrics["quantized.loss"] != metrics["float.loss"]
    expected = {"quantized.loss", "float.loss"} | {f"{k}.closeness" for k in ("quantized", "float") if options}
    assert metrics.keys() == expected, "nothing is said of classes"
    state = checkpoint.read(tmp_path / "best.safetensors")["state"]["training"]
    best = state["progress"]["best"]
    assert best >= (metrics["quantized.closeness"] if options else -metrics["quantized.loss"])


def test_metrics_are_means_over_samples() -> None:
    """Batches of 8, 8 and 4 samples count as many times as they have samples."""
    run = run_of(Adder(), "tuple", objective=squared, metrics={"closeness": closeness})
    run.val = Batches(Sums(None, "test", count=20), 8)
    detent.calibrate(run.prepared, [tuple(batch[:-1]) for batch in run.calibration])
    found = run.validate()
    run.prepared.eval()
    outputs = [(run.prepared(left, right), target) for left, right, target in run.val]
    error = torch.cat([(out - target).detach() for out, target in outputs])
    assert found["quantized.loss"] == pytest.approx(error.square().mean().item(), rel=1e-6)
    assert found["quantized.closeness"] == pytest.approx(-error.abs().mean().item(), rel=1e-6)


def test_ranges_are_measured_again_with_several_inputs() -> None:
    samples = Sums(None, "train")
    example = (torch.zeros(1, 8), torch.zeros(1, 8))
    prepared = detent.prepare(Adder(), example, backend="tensorrt", recipe="ptq")
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.1)
    run = Run(prepared, optimizer, Batches(samples, 8, shuffle=True), Batches(samples, 8), Batches(samples, 8))
    run.objective = squared
    before = QATEpochLoop(run, max_epochs=1).run()
    after = QATEpochLoop(run, max_epochs=6).run()
    assert after["quantized.loss"] < 0.8 * before["quantized.loss"]


def test_a_config_names_loss_and_metrics(tmp_path: Path) -> None:
    said = {
        "name": "sums",
        "model": {"name": f"{HERE}:Adder"},
        "data": {"name": f"{HERE}:Sums", "options": {"count": 32}, "batch_size": 8, "calibration_batches": 2},
        "backend": "onnxruntime",
        "recipe": "lsq",
        "train": {"loop": "lsq", "epochs": 3},
        "optimizer": {"lr": 0.05},
        "loss": {"function": f"{HERE}:squared"},
        "metrics": {"correlation": f"{HERE}:correlation", "closeness": f"{HERE}:closeness"},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    outcome = train(load_config(tmp_path / "c.yaml", allow_imports=True), tmp_path / "run", allow_imports=True)
    assert outcome is not None
    assert outcome.verdict is not None
    assert outcome.verdict.holds, str(outcome.verdict)
    assert list(outcome.metrics)[:3] == ["quantized.correlation", "quantized.closeness", "quantized.loss"]
    assert outcome.metrics["quantized.correlation"] > 0.1
    again = load_config(tmp_path / "run" / "config.yaml", allow_imports=True)
    assert again.loss.function == f"{HERE}:squared"
    assert list(again.metrics) == ["correlation", "closeness"], "the first decides which checkpoint is the best"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"loss": {"function": f"{HERE}:squared", "label_smoothing": 0.1}}, "the whole loss"),
        ({"loss": {"function": f"{HERE}:HERE"}}, "it is a str"),
        ({"loss": {"function": f"{HERE}:squard"}}, "has no 'squard'"),
        ({"metrics": {"m": f"{HERE}:Adder"}}, "it is a type"),
        ({"metrics": {"m": "nowhere:f"}}, "no module nowhere"),
    ],
    ids=["both", "no function", "typo", "class", "module"],
)
def test_what_is_no_function_is_refused(tmp_path: Path, change: dict[str, Any], found: str) -> None:
    said = {
        "name": "sums",
        "model": {"name": f"{HERE}:Adder"},
        "data": {"name": f"{HERE}:Sums", "batch_size": 8},
        "backend": "onnxruntime",
        "recipe": "lsq",
        "train": {"loop": "lsq"},
        **change,
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    with pytest.raises(RecipeError, match=found):
        train(load_config(tmp_path / "c.yaml", allow_imports=True), tmp_path / "run", allow_imports=True)


def test_an_objective_says_what_it_lacks(refuses: Callable[..., AbstractContextManager[None]]) -> None:
    with refuses(TensorError, asked="outputs of type dict", found="gives no loss", to_do="(outputs, batch)"):
        Objective()({"out": torch.zeros(2, 3)}, (torch.zeros(2), torch.zeros(2)))
    with refuses(TensorError, found="computes its own loss"):
        Objective(label_smoothing=0.1)(torch.tensor(1.0), {"x": torch.zeros(2)})
    run = run_of(Adder(), "tuple", objective=lambda outputs, _: outputs.square())
    LSQEpochLoop(run, max_epochs=1).prepare_for_run_epoch()
    with refuses(TensorError, asked="of shape (8, 4)", to_do="take the mean"):
        run.step(run.prepared, next(iter(run.train)))


class Answer(NamedTuple):
    logits: Tensor
    note: str


def test_half_outputs_become_float32_and_keep_their_types() -> None:
    """What a loss function is handed must have the attributes the model gave it."""
    half = torch.ones(2, dtype=torch.bfloat16)
    named = OrderedDict(loss=half, ids=torch.tensor([1]))
    found = to_float32([Answer(half, "kept"), (named, 3)])
    assert isinstance(found[0], Answer)
    assert (found[0].logits.dtype, found[0].note) == (torch.float32, "kept")
    assert isinstance(found[1][0], OrderedDict)
    assert [value.dtype for value in found[1][0].values()] == [torch.float32, torch.int64]
    assert named["loss"].dtype == torch.bfloat16, "what it was given is as it was"


def test_a_batch_that_is_neither_is_refused(refuses: Callable[..., AbstractContextManager[None]]) -> None:
    class Alone(Sums):
        def __getitem__(self, index: int, /) -> Any:
            return self.left[index]

    batch = next(iter(Batches(Alone(None, "train"), 8)))
    with refuses(DataError, asked="of type Tensor", to_do="(input, label)"):
        run_of(Adder(), "tuple").step(nn.Identity(), batch)
