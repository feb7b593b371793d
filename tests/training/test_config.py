"""Config files: what they may say, what they inherit, how mistakes are told; and the whole way they describe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils.data import Dataset

from detent.errors import ArtifactError, DataError, DetentError, RecipeError
from detent.training import checkpoint
from detent.training.build import float_model, prepared_model, samples_of
from detent.training.config_files import load_config
from detent.training.session import deploy_checkpoint, train

BASE: dict[str, Any] = {
    "name": "small",
    "model": {"name": "tests.training.jobs:Net"},
    "data": {
        "name": "made_up",
        "options": {"count": 16, "size": 8, "classes": 3},
        "batch_size": 8,
        "calibration_batches": 1,
    },
    "backend": "tensorrt",
    "recipe": "lsq",
    "train": {"loop": "lsq", "epochs": 1},
}


def write(path: Path, data: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(data))
    return path


def test_inheritance(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", BASE)
    (tmp_path / "sub").mkdir()
    top = {"_base_": "../base.yaml", "name": "top", "train": {"epochs": 3}, "data": {"folder": "here", "options": None}}
    config = load_config(write(tmp_path / "sub" / "top.yaml", top), allow_imports=True)
    assert (config.name, config.train.epochs, config.train.loop) == ("top", 3, "lsq")
    assert config.data.folder == str(tmp_path / "sub" / "here")
    assert dict(config.data.options) == {}
    assert config.recipe.weight.quantizer == "lsq"


def test_a_circle_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", {"_base_": "b.yaml"})
    write(tmp_path / "b.yaml", {"_base_": "a.yaml"})
    with pytest.raises(RecipeError, match="base of itself"):
        load_config(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("change", "asked", "to_do"),
    [
        ({"trian": {}}, "c.yaml: trian", "did you mean 'train'?"),
        ({"train": {"epoch": 3}}, "c.yaml: train.epoch = 3", "did you mean 'epochs'?"),
        ({"train": {"loop": "lqs"}}, "c.yaml: train.loop = 'lqs'", "did you mean 'lsq'?"),
        ({"train": {"epochs": 0}}, "c.yaml: train.epochs = 0", "choose an integer"),
        ({"optimizer": {"lr": "fast"}}, "c.yaml: optimizer.lr = 'fast'", ""),
        ({"optimizer": {"lr": -1}}, "c.yaml: optimizer.lr = -1", "choose a number"),
        ({"recipe": {"name": "r", "weight": {"obsrver": "kl"}}}, "c.yaml: recipe.weight.obsrver", "'observer'"),
        ({"recipe": "lsqq"}, "c.yaml: recipe = 'lsqq'", "did you mean 'lsq'?"),
        ({"recipe": "gone.yaml"}, "c.yaml: recipe = ", ""),
        ({"model": {"name": "resnet81"}}, "c.yaml: model.name = 'resnet81'", "did you mean 'resnet18'?"),
        ({"model": {"name": "resnet20", "options": {"clases": 3}}}, "c.yaml: model.options.clases = 3", "'classes'?"),
        ({"data": {"name": "made_up", "options": {"cont": 3}}}, "c.yaml: data.options.cont = 3", "'count'?"),
        ({"data": {"name": "mnist", "options": {"size": 3}}}, "c.yaml: data.options.size = 3", "remove it"),
        ({"data": {"name": "cifar"}}, "c.yaml: data.name = 'cifar'", "did you mean 'cifar10'?"),
        ({"backend": "openvnio"}, "c.yaml: backend = 'openvnio'", "did you mean 'openvino'?"),
        ({"train": {"precision": "half"}}, "c.yaml: train.precision = 'half'", ""),
        ({"train": {"dynamic_intervals": 3}}, "c.yaml: train.dynamic_intervals", "list"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_mistakes_name_file_key_and_nearest(tmp_path: Path, change: dict[str, Any], asked: str, to_do: str) -> None:
    with pytest.raises(DetentError) as error:
        load_config(write(tmp_path / "c.yaml", {**BASE, **change}), allow_imports=True)
    assert asked in error.value.asked
    assert to_do in error.value.to_do


@pytest.mark.parametrize("said", [32, "32"])
def test_a_precision_may_be_a_number(tmp_path: Path, said: Any) -> None:
    config = load_config(write(tmp_path / "c.yaml", {**BASE, "train": {"precision": said}}), allow_imports=True)
    assert config.train.precision == "32"
    assert config.train.to_dict() == {}


@pytest.mark.parametrize(
    ("change", "error", "found"),
    [
        ({"model": {"name": "no.such.module:Net"}}, RecipeError, "no module"),
        ({"model": {"name": "tests.training.jobs:Nett"}}, RecipeError, "has no 'Nett'"),
        ({"model": {"name": "tests.training.jobs:Net", "options": {"hight": 3}}}, RecipeError, "hight"),
        ({"data": {"name": "cifar10", "folder": "nowhere"}}, DataError, "data_batch_1"),
        ({"data": {"name": "mnist"}}, DataError, "no folder"),
        ({"model": {"name": "resnet20", "pretrained": "gone.pth"}}, DataError, "no such file"),
    ],
    ids=["module", "name in module", "option", "data", "folder", "weights"],
)
def test_what_cannot_be_found_is_refused(
    tmp_path: Path, change: dict[str, Any], error: type[DetentError], found: str
) -> None:
    config = load_config(write(tmp_path / "c.yaml", {**BASE, **change}), allow_imports=True)
    with pytest.raises(error, match=found):
        train(config, tmp_path / "out", allow_imports=True)


def test_nothing_in_a_file_is_evaluated(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"name: !!python/object/apply:os.mkdir ['{tmp_path}/trapped']")
    with pytest.raises(RecipeError, match="tag"):
        load_config(tmp_path / "c.yaml")
    with pytest.raises(RecipeError, match=r"model\.name"):
        load_config(write(tmp_path / "d.yaml", {**BASE, "model": {"name": "os:mkdir('x')"}}))
    assert not (tmp_path / "trapped").exists()


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """A data set of a user's own."""

    def __init__(self, folder: Path | None, split: str, *, count: int = 16):
        self.folder, self.split, self.count = folder, split, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]:
        label = index % 3
        return torch.full((3, 8, 8), float(label)) + 0.01 * index, torch.tensor(label)


class OwnNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def test_the_whole_way_and_back(tmp_path: Path) -> None:
    said = {
        **BASE,
        "model": {"name": f"{__name__}:OwnNet"},
        "data": {"name": f"{__name__}:Pairs", "options": {"count": 24}, "batch_size": 8, "calibration_batches": 1},
        "train": {"loop": "lsq", "epochs": 2, "ema": 0.9, "checkpoint_interval": 1},
        "loss": {"distillation": 0.5, "label_smoothing": 0.1},
        "backend": "onnxruntime",
    }
    config = load_config(write(tmp_path / "c.yaml", said), allow_imports=True)
    outcome = train(config, tmp_path / "run", allow_imports=True)
    assert outcome is not None
    assert outcome.verdict is not None
    assert outcome.verdict.holds, str(outcome.verdict)
    with pytest.raises(ArtifactError, match="--resume"):
        train(config, tmp_path / "run", allow_imports=True)

    again = deploy_checkpoint(
        load_config(tmp_path / "run" / "config.yaml", allow_imports=True),
        tmp_path / "run" / "last.safetensors",
        tmp_path / "again",
        allow_imports=True,
    )
    assert outcome.artifact is not None
    assert again.artifact is not None
    one, other = (a.manifest["tensors"] for a in (outcome.artifact, again.artifact))
    assert one == other

    longer = config.with_changes("train", epochs=3)
    resumed = train(longer, tmp_path / "run", resume=True, allow_imports=True)
    assert resumed is not None
    state = checkpoint.read(tmp_path / "run" / "last.safetensors")["state"]["training"]
    assert state["progress"]["epoch"] == 3


@pytest.mark.parametrize(("loop", "layer"), [("qat", "FoldedBatchNorm"), ("ptq", "ParametrizedConv2d")])
def test_a_loop_that_trains_keeps_batch_norms(loop: str, layer: str, tmp_path: Path) -> None:
    asked = {**BASE, "recipe": "ptq", "train": {"loop": loop}}
    config = load_config(write(tmp_path / "c.yaml", asked), allow_imports=True)
    samples = samples_of(config, "train")
    prepared = prepared_model(config, float_model(config, allow_imports=True), samples)
    assert type(prepared.conv1).__name__ == layer
