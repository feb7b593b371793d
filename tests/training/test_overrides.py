"""`key=value` in place of a config's values, and the config that a run writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from detent.errors import DetentError, RecipeError
from detent.training.config_files import load_config
from detent.training.overrides import parse_override
from detent.training.session import train

BASE: dict[str, Any] = {
    "name": "small",
    "model": {"name": "resnet20", "options": {"width": 0.25}},
    "data": {"name": "made_up", "options": {"count": 8, "size": 16}, "batch_size": 4, "calibration_batches": 1},
    "backend": "tensorrt",
    "recipe": "lsq",
    "train": {"loop": "lsq"},
    "deploy": {"enabled": False},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(BASE))
    return path


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("optimizer.lr=0.01", {"optimizer": {"lr": 0.01}}),
        ("optimizer.lr=1e-5", {"optimizer": {"lr": 1e-5}}),
        ("optimizer.nesterov=true", {"optimizer": {"nesterov": True}}),
        ("name=run=2", {"name": "run=2"}),
        ("name='2'", {"name": "2"}),
        ("data.folder=", {"data": {"folder": None}}),
        ("train.dynamic_intervals=[[2, 1]]", {"train": {"dynamic_intervals": [[2, 1]]}}),
    ],
)
def test_values_are_read_as_yaml(text: str, data: dict[str, Any]) -> None:
    assert parse_override(text) == data


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("optimizer.lr", "it is not KEY=VALUE"),
        ("=3", "it is not KEY=VALUE"),
        ("optimizer..lr=3", "it is not KEY=VALUE"),
        ("name=[1", "its value is not YAML"),
        ("name=!!python/object/apply:os.getcwd []", "a tag, "),
        ("name=*a", "an alias, *a"),
    ],
)
def test_what_is_no_plain_value_is_refused(text: str, found: str) -> None:
    with pytest.raises(RecipeError) as raised:
        parse_override(text)
    assert raised.value.asked == f"the override {text!r}"
    assert raised.value.found.startswith(found)


@pytest.mark.parametrize(
    ("text", "found"), [(f"a{'.a' * 3000}=1", "3001 keys"), (f"a=0x{'f' * 5000}", "an integer of 20000 bits")]
)
def test_what_cannot_be_nested_or_printed_is_refused(text: str, found: str) -> None:
    with pytest.raises(RecipeError, match=found):
        parse_override(text)


def test_they_are_laid_over_the_file_in_their_order(file: Path) -> None:
    given = ("optimizer.lr=0.5", "optimizer.lr=0.25", "train.epochs=3", "model.options.width=0.5", "data.options=")
    config = load_config(file, overrides=given)
    assert (config.optimizer.lr, config.optimizer.momentum, config.train.epochs) == (0.25, 0.9, 3)
    assert (dict(config.model.options), dict(config.data.options)) == ({"width": 0.5}, {})


def test_a_key_inside_a_recipe_that_is_named(file: Path) -> None:
    config = load_config(file, overrides=("recipe.weight.bits=4", "recipe.seed=3"))
    assert (config.recipe.weight.quantizer, config.recipe.weight.bits) == ("lsq", 4)
    assert (config.recipe.activation.quantizer, config.recipe.seed) == ("lsq", 3)
    assert load_config(file, overrides=("recipe=tqt",)).recipe.weight.quantizer == "tqt"


def test_paths_are_those_of_the_current_folder(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    config = load_config(file, overrides=("data.folder=images",))
    assert config.data.folder == str(tmp_path / "here" / "images")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("optimizer.lrr=0.1", "did you mean 'lr'?"),
        ("optimiser.lr=0.1", "did you mean 'optimizer'?"),
        ("recipe.weigth.bits=4", "did you mean 'weight'?"),
        ("optimizer.lr=fast", "optimizer.lr = 'fast'"),
        ("model.name=os:system", "os:system"),
        ("imports.observers.mine=os:system", "os:system"),
        ("_base_=other.yaml", "no such key"),
    ],
)
def test_mistakes_are_those_of_a_file(file: Path, text: str, said: str) -> None:
    with pytest.raises(DetentError) as raised:
        load_config(file, overrides=(text,))
    assert said in str(raised.value)


def test_the_config_that_a_run_writes_is_complete(file: Path, tmp_path: Path) -> None:
    config = load_config(file, overrides=("optimizer.lr=0.5", "data.train_batches=1", "data.val_batches=1"))
    train(config, tmp_path / "run")
    written = tmp_path / "run" / "config.yaml"
    said = yaml.safe_load(written.read_text())
    assert said["optimizer"] == {"name": "sgd", "lr": 0.5, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False}
    assert said["schedule"] == {"name": "cosine", "warmup_epochs": 0, "warmup_steps": 0, "start": 0.0, "end": 0.0}
    assert said["recipe"]["weight"] == {"quantizer": "lsq"}
    assert (said["train"]["epochs"], said["loss"]["temperature"]) == (1, 1.0)
    again = load_config(written)
    assert again == config
    assert again.to_full_dict() == config.to_full_dict() == said


def test_a_value_that_is_left_out_is_a_default(file: Path) -> None:
    config = load_config(file, overrides=("recipe.exclude=[conv1]", "train.seed=0"))
    said = config.to_full_dict()
    assert said["recipe"]["exclude"] == ["conv1"]
    assert "metrics" not in said
    assert "rules" not in said["recipe"]
    assert said["train"]["seed"] == 0
    assert said["deploy"] == {"enabled": False, "verify_batches": 2}
