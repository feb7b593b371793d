"""A config is data: nothing of it is executed or written elsewhere, and reading one ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import TensorDataset

import detent
from detent.compat.mqbench import solver
from detent.errors import DetentError, RecipeError
from detent.training.build import float_model, samples_of
from detent.training.config import Config
from detent.training.config_files import load_config
from detent.training.session import deploy_checkpoint, train

HERE = __name__
BASE: dict[str, Any] = {
    "name": "t",
    "model": {"name": "resnet20"},
    "data": {"name": "made_up"},
    "backend": "onnxruntime",
    "recipe": "lsq",
}
CALLED: list[str] = []


class Net(nn.Linear):
    def __init__(self) -> None:
        CALLED.append("Net")
        super().__init__(2, 2)


class NoNet:
    def __init__(self) -> None:
        CALLED.append("NoNet")


def make_net() -> Net:
    CALLED.append("make_net")
    return Net()


def photos(_: Path, split: str, *, count: int) -> TensorDataset:
    return TensorDataset(torch.full((count, 2), float(split == "train")))


def of_one(outputs: Any) -> Any:
    return outputs


def write(path: Path, data: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(data))
    return path


PATHS: list[dict[str, Any]] = [
    {"model": {"name": "os:system", "options": {"command": "touch PWNED"}}},
    {"model": {"name": "subprocess:run", "options": {"args": "touch PWNED", "shell": True}}},
    {"data": {"name": "evil:Data"}},
    {"backend": "evil:BACKEND"},
    {"loss": {"function": "evil:loss"}},
    {"metrics": {"m": "evil:metric"}},
    {"imports": {"observers": {"z": "evil:Observer"}}},
    {"imports": {"quantizers": {"z": "evil:Quantizer"}}},
    {"imports": {"algorithms": {"z": "evil:ALGORITHM"}}},
]
IDS = ["system", "run", "data", "backend", "loss", "metric", "observer", "quantizer", "algorithm"]


@pytest.mark.parametrize("change", PATHS, ids=IDS)
def test_without_leave_no_path_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("from pathlib import Path; Path('PWNED').touch()")
    with pytest.raises(RecipeError, match="--allow-imports"):
        load_config(write(tmp_path / "c.yaml", {**BASE, **change}))
    if "imports" not in change:  # which are there for a file to be read
        config = Config.from_dict({**BASE, **change})
        with pytest.raises(RecipeError, match="allow_imports=True"):
            train(config, tmp_path / "run")
        with pytest.raises(RecipeError, match="allow_imports=True"):
            deploy_checkpoint(config, tmp_path / "last.safetensors", tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "evil.py"]


OWN = """
import sys
from detent.errors import RecipeError
from detent.training.import_paths import import_object
for name in ("targets.openvino.ir_file:FORMAT", "training.sharding:nothing"):
    try:
        import_object(f"detent.{name}", "backend", allowed=True)
    except RecipeError as error:
        assert "has no 'nothing'" in str(error), error
"""


def test_a_path_inside_detent_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """It needs no leave, and what it imports may have the name of a file beside the config."""
    for name in (*sys.stdlib_module_names, "sympy", "onnxruntime", "transformers"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('PWNED')")
    environment = {**os.environ, "PYTHONPATH": str(Path(detent.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-P", "-c", OWN], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("name", ["train", "deploy", "mqbench"])
def test_no_command_follows_one(
    tmp_path: Path, name: str, command: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil.py").write_text("from pathlib import Path; Path('PWNED').touch()")
    said = {**BASE, "model": {"name": "evil:Net"}}
    if name == "mqbench":
        qparams = {"w_method": "lsq", "a_method": "lsq", "bit": 8}
        said = {key: value for key, value in said.items() if key not in ("name", "recipe")}
        said |= {"qparams": qparams, "backend": "academic", "bnfold": 4}
    write(tmp_path / "c.yaml", said)
    (tmp_path / "x").touch()
    if name == "mqbench":
        code, message = solver.main(["--config", "c.yaml", "--output", "run"]), capfd.readouterr().err
    else:
        options = {"train": ["c.yaml"], "deploy": ["--checkpoint", "x", "--config", "c.yaml"]}[name]
        done = command(name, *options, "-o", "run")
        code, message = done.returncode, done.stderr
    assert code == 2, message
    assert "--allow-imports" in message
    assert "Traceback" not in message
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(
    ("change", "found", "to_do"),
    [
        ({"model": {"name": "os:system", "options": {"command": "true"}}}, "it is a ", "subclass of torch.nn"),
        ({"model": {"name": f"{HERE}:NoNet"}}, "it is NoNet", "subclass of torch.nn"),
        ({"model": {"name": f"{HERE}:make_net"}}, "it is a function", "subclass of torch.nn"),
        ({"data": {"name": f"{HERE}:NoNet"}}, "it is NoNet", "subclass of torch.utils.data"),
        ({"data": {"name": "shutil:copytree", "folder": "a"}}, "does not say it returns a Dataset", "-> Dataset"),
        ({"backend": f"{HERE}:NoNet"}, "it is a type", "name a Backend"),
        ({"model": {"name": "raises_on_import:Net"}}, "importing it raised SystemExit: 3", "correct the module"),
    ],
    ids=["builtin", "another class", "factory", "data set", "data function", "backend", "module raises"],
)
def test_with_leave_nothing_of_another_kind_is_called(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuses: Callable[..., AbstractContextManager[None]],
    change: dict[str, Any],
    found: str,
    to_do: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raises_on_import.py").write_text("raise SystemExit(3)")
    CALLED.clear()
    config = Config.from_dict({**BASE, **change})
    with refuses(RecipeError, found=found, to_do=to_do):
        train(config, tmp_path / "run", allow_imports=True)
    assert CALLED == []


def test_a_function_that_says_it_returns_a_data_set_makes_one() -> None:
    config = Config.from_dict({**BASE, "data": {"name": f"{HERE}:photos", "options": {"count": 3}}})
    assert [sample[0].tolist() for sample in samples_of(config, "train", allow_imports=True)] == [[1, 1]] * 3


def test_a_function_must_take_outputs_and_batch(
    tmp_path: Path, refuses: Callable[..., AbstractContextManager[None]]
) -> None:
    for change in ({"loss": {"function": f"{HERE}:of_one"}}, {"metrics": {"m": f"{HERE}:of_one"}}):
        with refuses(RecipeError, found="too many positional arguments", to_do="(outputs, batch)"):
            train(Config.from_dict({**BASE, **change}), tmp_path / "run", allow_imports=True)


def test_with_leave_a_class_is_constructed() -> None:
    CALLED.clear()
    config = Config.from_dict({**BASE, "model": {"name": f"{HERE}:Net"}})
    assert isinstance(float_model(config, allow_imports=True), Net)
    assert CALLED == ["Net"]


# ---- paths ----


@pytest.mark.parametrize("name", ["../../x", "/elsewhere/x", "..", ".", "a/b", "a\\b", "a\0b", "n" * 201])
def test_the_name_of_a_run_is_one_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match="give a plain name"):
        load_config(write(tmp_path / "c.yaml", {**BASE, "name": name}))


@pytest.mark.parametrize("change", [{"recipe": "a\0.yaml"}, {"_base_": "a\0.yaml"}, {"_base_": "a" * 300 + ".yaml"}])
def test_a_path_that_cannot_exist_is_one_line(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(DetentError):
        load_config(write(tmp_path / "c.yaml", {**BASE, **change}))


# ---- size and time ----


def test_a_base_of_both_bases_is_read_under_both(tmp_path: Path) -> None:
    write(tmp_path / "root.yaml", BASE)
    for side in ("left", "right"):
        write(tmp_path / f"{side}.yaml", {"_base_": "root.yaml", "train": {"seed": 3}})
    config = load_config(write(tmp_path / "c.yaml", {"_base_": ["left.yaml", "right.yaml"]}))
    assert (config.name, config.train.seed) == ("t", 3)


def test_bases_that_double_at_each_level_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "e0.yaml", BASE)
    for level in range(1, 25):
        write(tmp_path / f"e{level}.yaml", {"_base_": [f"e{level - 1}.yaml"] * 2})
    with pytest.raises(RecipeError, match="more than 64 bases"):
        load_config(tmp_path / "e24.yaml")


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other.yaml"
    if kind == "fifo":
        os.mkfifo(other)
    else:
        other.symlink_to("/dev/zero")
    with pytest.raises(RecipeError, match="not a regular file"):
        load_config(other)
    with pytest.raises(RecipeError, match="not a regular file"):
        load_config(write(tmp_path / "c.yaml", {**BASE, "_base_": "other.yaml"}))


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("c.yaml", "name: [" + "1," * 10**6 + "]", "at most 262,144 are read"),
        ("c.toml", ".".join("a" * 20_000) + " = 1", "more than 1000 dots"),
        ("c.yaml", "name: 0x" + "f" * 5000, "an integer of 20000 bits"),
        ("c.json", '{"name": 1' + "0" * 100 + "}", "bits"),
        ("c.yaml", "name: 1" + ":59" * 2000, "bits"),
    ],
    ids=["a million items", "dots", "hexadecimal", "decimal", "sexagesimal"],
)
def test_what_would_take_minutes_or_gigabytes_is_refused(tmp_path: Path, name: str, text: str, found: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RecipeError, match=found):
        load_config(tmp_path / name)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"name": "resnet20", "options": {"classes": -1}}},
        {"model": {"name": "resnet20", "options": {"classes": 10**12}}},
        {"model": {"name": "resnet20", "options": {"depth": 10**9}}},
        {"data": {"name": "made_up", "options": {"count": 10**12}}},
        {"data": {"name": "made_up", "options": {"classes": 0}}},
        {"data": {"name": "made_up", "options": {"count": 0}}},
        {"backend": "detent.cli.__main__:main"},
    ],
    ids=["negative", "many classes", "many layers", "many images", "no class", "no image", "a program"],
)
def test_options_that_cannot_be_are_told(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(DetentError):
        train(load_config(write(tmp_path / "c.yaml", {**BASE, **change})), tmp_path / "run")
