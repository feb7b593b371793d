"""The accuracy loop on real engines: what is tried, what is kept, where it stops."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import detent
from detent.errors import ArtifactError, DataError, DetentError, RangeError, RecipeError, TensorError
from detent.recipes import TensorRequest
from detent.tuning import Tuned, accuracy, search
from detent.tuning.changes import RecipeChange, changes
from tests.algorithms.test_restoring import Spoiled

PER_TENSOR = detent.Recipe.named("ptq").replace(weight=TensorRequest(quantizer="fixed", granularity="per_tensor"))


class Unequal(nn.Module):
    """Channels whose sizes differ by four orders of magnitude, which a per-tensor grid cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.depthwise = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.point, self.head = nn.Conv2d(16, 16, 1), nn.Linear(16, 10)
        sizes = torch.logspace(-2, 2, 16)
        with torch.no_grad():
            self.first.weight *= sizes.reshape(-1, 1, 1, 1)
            self.first.bias *= sizes  # type: ignore[operator]
            self.depthwise.weight /= sizes.reshape(-1, 1, 1, 1)
            self.head.bias -= self(torch.cat(images(3, 2))).mean(0)  # so that samples are of several classes

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.relu(self.depthwise(torch.relu(self.first(x))))
        return self.head(torch.relu(self.point(x)).mean((2, 3)))


def images(seed: int, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(16, 3, 16, 16, generator=generator) for _ in range(count)]


def labeled(network: nn.Module, batches: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What the float network says is right."""
    with torch.no_grad():
        return [(x, network(x).argmax(1)) for x in batches]


def tuned(folder: Path, **options: Any) -> Tuned:
    network = Unequal().eval()
    asked: dict[str, Any] = {
        "backend": "onnxruntime",
        "metric": accuracy(labeled(network, images(1, 8))),
        "recipe": PER_TENSOR,
        **options,
    }
    return detent.tune(network, images(0, 2), folder=folder, **asked)


def test_it_stops_when_the_target_is_met(tmp_path: Path) -> None:
    seen: list[Any] = []
    found = tuned(tmp_path / "out", drop=20.0, report=seen.append)
    assert found.float_score == 100.0
    assert found.met
    assert found.score >= found.target == 80.0
    assert list(found.trials) == seen
    assert found.trials[0].change == "ptq"
    assert found.trials[0].score is not None
    assert found.trials[0].score < 80.0, "so that there is something to tune"
    scores = [trial.score for trial in found.trials if trial.kept]
    assert scores == sorted(scores, key=lambda score: score or 0.0), "only what gains is kept"
    assert found.trials[-1].kept
    assert found.measured_on == "onnxruntime"
    assert str(found).splitlines()[0] == "float 100.00, target 80.00 or more, measured on onnxruntime"
    assert str(found).splitlines()[-1].startswith("met: ")
    assert found.artifact.verify(images(2, 1)).holds
    # The recipe that was found makes the same file.
    again = detent.quantize(
        Unequal().eval(), images(0, 2), backend="onnxruntime", recipe=found.recipe, folder=tmp_path / "again"
    )
    model = "model.onnx"
    assert (again.folder / model).read_bytes() == (found.artifact.folder / model).read_bytes()


def test_without_a_loss_nothing_is_changed(tmp_path: Path) -> None:
    found = tuned(tmp_path / "out", drop=100.0)
    assert [trial.change for trial in found.trials] == ["ptq"]
    assert found.recipe == PER_TENSOR


def nothing(_: str) -> list[RecipeChange]:
    return []


def test_the_side_that_is_worse_is_mended_first() -> None:
    observers = [f"activations observed by {name}" for name in ("mse", "percentile", "kl")]
    weights = ["weights observed by mse", "equalization"]
    last = ["bias correction", "AdaRound"]
    assert [change.name for change in changes("activations")] == observers + weights + last
    assert [change.name for change in changes("weights")] == weights + observers + last


def test_a_notebook_shows_the_trials(tmp_path: Path) -> None:
    found = tuned(tmp_path / "out", drop=100.0)
    shown = found._repr_html_()
    assert f"<b>met: {found.score:.2f}, {100 - found.score:.2f} below float</b>" in shown
    assert "<td>ptq</td>" in shown


@pytest.fixture
def only_by_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """No recipe as a whole helps."""
    monkeypatch.setattr(search, "changes", nothing)


def spoiled(folder: Path, backend: str, drop: float) -> Tuned:
    """By signal to noise in decibels, of which there are no more than 100."""
    network, x = Spoiled().eval(), torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = network(x)

    def sqnr(model: Callable[..., torch.Tensor]) -> float:
        noise = float((model(x) - wanted).square().sum() / wanted.square().sum())
        return float(-10 * torch.tensor(max(noise, 1e-10)).log10())

    return detent.tune(network, [x], backend=backend, metric=sqnr, drop=drop, folder=folder, recipe=PER_TENSOR)


def test_what_cannot_help_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all of the error is that of one weight, and it is larger with fewer bits."""
    asked = [
        RecipeChange("fewer bits", lambda recipe: recipe.replace(weight=TensorRequest(bits=4).over(recipe.weight))),
        RecipeChange(
            "other ranges", lambda recipe: recipe.replace(activation=TensorRequest(observer="mse")), "activations"
        ),
        RecipeChange("the same", lambda recipe: recipe),
    ]
    monkeypatch.setattr(search, "changes", lambda _: asked)
    found = spoiled(tmp_path / "out", "academic", drop=70.0)
    first, fewer, other, treated = found.trials
    assert [trial.change for trial in found.trials] == ["ptq", "fewer bits", "other ranges", "more bits for second"]
    assert first.kept
    assert fewer.score is other.score is None
    assert re.fullmatch(r"not measured: \d+\.\d dB more error in simulation", fewer.note)
    assert re.fullmatch(r"not tried: activations make \d% of the error", other.note)
    assert treated.kept


def test_arrays_are_batches_too(tmp_path: Path, only_by_operations: None) -> None:
    del only_by_operations
    network = Spoiled().eval()
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    found = detent.tune(
        network,
        [x.numpy()],
        backend="onnxruntime",
        metric=lambda model: -float((model(x) - network(x)).detach().abs().max()),
        drop=0.0,
        folder=tmp_path / "out",
        recipe=PER_TENSOR,
    )
    assert not found.met
    assert any(trial.change.startswith("float: ") for trial in found.trials)


def test_more_bits_for_the_operation_that_needs_them(tmp_path: Path, only_by_operations: None) -> None:
    del only_by_operations
    found = spoiled(tmp_path / "out", "academic", drop=70.0)
    assert found.measured_on == "the twin of academic"
    assert found.met
    assert [trial.change for trial in found.trials] == ["ptq", "more bits for second"]
    assert [rule.match.name for rule in found.recipe.rules] == ["second"]
    assert found.recipe.rules[0].weight.bits == found.recipe.rules[0].activation.bits == 16


def test_float_for_as_few_as_are_enough(tmp_path: Path, only_by_operations: None) -> None:
    """Vitis AI's DPU has 8 bits only."""
    del only_by_operations
    found = spoiled(tmp_path / "out", "vitis", drop=75.0)
    assert found.met
    refused = [trial for trial in found.trials if trial.score is None]
    assert refused
    assert all(trial.note.startswith("not possible: ") for trial in refused)
    assert found.recipe.exclude == ("second",)
    assert found.artifact.manifest["backend"] == "vitis"


def test_what_cannot_be_met_gives_the_best(tmp_path: Path, only_by_operations: None) -> None:
    del only_by_operations
    found = spoiled(tmp_path / "out", "onnxruntime", drop=0.0)
    assert not found.met
    best = max(trial.score for trial in found.trials if trial.score is not None)
    assert found.score == best
    assert str(found).splitlines()[-1].startswith("NOT met: this is the best result: ")
    assert found.to_dict()["met"] is False
    assert len(found.to_dict()["trials"]) == len(found.trials)


def test_mistakes(tmp_path: Path, refuses: Callable[..., AbstractContextManager[None]]) -> None:
    with refuses(RecipeError, "tune with drop=-1", "nothing is that much better than float", "give 0 or more"):
        tuned(tmp_path / "out", drop=-1)
    with refuses(DataError, "the metric", "it gave nan", "give a finite number"):
        tuned(tmp_path / "out", drop=1, metric=lambda _: float("nan"))
    with refuses(DataError, "the metric", "it gave 'good'", "give one number, greater if better"):
        tuned(tmp_path / "out", drop=1, metric=lambda _: "good")
    (tmp_path / "file").write_text("")
    with refuses(ArtifactError, found="it is a file"):
        tuned(tmp_path / "file", drop=1)
    assert not (tmp_path / "out").exists()


def test_accuracy_literally(refuses: Callable[..., AbstractContextManager[None]]) -> None:
    x = torch.tensor([[1.0, 2.0], [4.0, 3.0], [5.0, 6.0], [7.0, 9.0]])
    measure = accuracy([(x[:3], torch.tensor([1, 0, 0])), (x[3:].double().numpy(), [1])])
    assert measure(lambda inputs: inputs) == 75.0
    assert measure(lambda inputs: (inputs, inputs.flip(1))) == 75.0, "of the first output"
    with refuses(DataError, found="a batch has no labels"):
        accuracy([x])
    with refuses(DataError, found="there are no batches"):
        accuracy([])


@pytest.mark.parametrize(
    ("labels", "error", "asked"),
    [
        (torch.tensor([0.0, float("nan")]), RangeError, "the label nan"),
        ([0, 2], RangeError, "the label 2"),
        (["a", "b"], RangeError, "the label a"),
        ([0], TensorError, "labels of shape (1,) for 2 samples"),
    ],
    ids=["nan", "no-class", "text", "too-few"],
)
def test_labels_of_no_class_meet_no_goal(
    labels: Any, error: type[DetentError], asked: str, refuses: Callable[..., AbstractContextManager[None]]
) -> None:
    """Float and quantized model would be wrong alike: nothing lost."""
    measure = accuracy([(torch.tensor([[1.0, 2.0], [4.0, 3.0]]), labels)])
    with refuses(error, asked=asked):
        measure(lambda inputs: inputs)


def test_a_folder_that_somebody_else_writes_is_left_to_them(
    tmp_path: Path, refuses: Callable[..., AbstractContextManager[None]]
) -> None:
    """Before anything is computed."""
    program = "import sys\nfrom detent.files import reserved\nwith reserved(sys.argv[1], ''):\n"
    program += "    print('held', flush=True)\n    sys.stdin.read()"
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with refuses(ArtifactError, asked="tune into", found=f"in use by process {holder.pid} since 2"):
            tuned(tmp_path / "out", drop=20.0, report=pytest.fail)
        holder.communicate(timeout=60)
