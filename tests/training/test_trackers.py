"""TensorBoard, Weights & Biases and MLflow: what they are given, offline; and where they are not installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from detent.errors import RecipeError
from detent.training import Log, trackers
from detent.training.config_files import load_config
from detent.training.session import train
from detent.training.trackers import Tracker, Tracking

CONFIG: dict[str, Any] = {
    "name": "small",
    "model": {"name": "resnet20", "options": {"width": 0.25, "depth": 1}},
    "data": {"name": "made_up", "options": {"count": 8, "size": 8}, "batch_size": 4, "calibration_batches": 1},
    "backend": "tensorrt",
    "recipe": "lsq",
    "train": {"loop": "lsq"},
    "deploy": {"enabled": False},
}


def config(folder: Path, **changes: Any) -> Any:
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, **changes}))
    return load_config(path)


class Fake(Tracker):
    """Keeps what it is given; one that is not new has the number of the first."""

    made: list[Fake]

    def __init__(self, folder: Path, *, project: str, name: str, config: Mapping[str, Any], id: str | None):  # noqa: A002
        self.asked = {"folder": folder, "project": project, "name": name, "config": config, "id": id}
        self.id = id or f"run-{len(self.made)}"
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.closed = False
        self.made.append(self)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.rows.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    """In place of W&B, which seems to be installed."""
    Fake.made = []
    monkeypatch.setattr(trackers, "TRACKERS", {**trackers.TRACKERS, "wandb": Fake})
    monkeypatch.setattr(trackers, "find_spec", lambda name: name)
    return Fake.made


def test_a_run_is_followed_and_a_resumed_one_goes_on_there(fakes: list[Fake], tmp_path: Path) -> None:
    asked = config(tmp_path, log={"to": ["wandb"], "project": "mine"})
    train(asked, tmp_path / "run")
    (first,) = fakes
    assert {**first.asked, "config": None} == {
        "folder": tmp_path / "run",
        "project": "mine",
        "name": "small",
        "config": None,
        "id": None,
    }
    assert first.asked["config"]["optimizer"]["momentum"] == 0.9
    (row,) = first.rows
    assert row[0] == 2
    assert {"train.loss", "train.top1", "lr", "quantized.top1", "float.loss"} <= set(row[1])
    assert first.closed
    assert not (tmp_path / "run" / "events").exists()
    train(asked.with_changes("train", epochs=2), tmp_path / "run", resume=True)
    assert (fakes[1].asked["id"], fakes[1].rows[0][0]) == ("run-0", 4)
    train(asked, tmp_path / "other")
    assert (fakes[2].asked["id"], fakes[2].id) == (None, "run-2")


@pytest.mark.parametrize("held", ["", "[1]", '{"wandb": 3}', "\x00"], ids=["empty", "list", "number", "junk"])
def test_a_damaged_file_of_ids_begins_a_new_run(held: str, fakes: list[Fake], tmp_path: Path) -> None:
    (tmp_path / "trackers.json").write_text(held)
    Log(tmp_path, resume_step=0, tracking=Tracking(("wandb",)))
    assert fakes[0].asked["id"] is None
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "run-0"}


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_one_that_is_not_installed_is_refused_before_training(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    with pytest.raises(RecipeError, match=rf"pip install 'detent\[{name}\]'"):
        train(config(tmp_path, log={"to": [name]}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'wandb'"):
        config(tmp_path, log={"to": ["wanbd"]})


def test_nothing_but_the_file_where_none_is_asked_for(tmp_path: Path) -> None:
    log = Log(tmp_path, tracking=Tracking(()))
    log.write(1, 1, {"loss": 0.5})
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]
    assert log.note is None


@pytest.mark.filterwarnings("ignore")  # theirs
def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="pip install 'detent[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    asked = config(tmp_path, log={"to": ["wandb"], "project": "mine"})
    train(asked, tmp_path / "run")
    wandb.teardown()  # its process writes the end of the file after `finish` has returned
    (id_,) = json.loads((tmp_path / "run" / "trackers.json").read_text()).values()
    (written,) = (tmp_path / "run" / "wandb").glob(f"offline-run-*/run-{id_}.wandb")
    content = written.read_bytes()
    for text in (b"train.loss", b"quantized.top1", b"momentum", b"mine", b"small"):
        assert text in content
    train(asked.with_changes("train", epochs=2), tmp_path / "run", resume=True)
    assert len(list((tmp_path / "run" / "wandb").glob(f"offline-run-*/run-{id_}.wandb"))) == 2


@pytest.mark.filterwarnings("ignore")  # theirs
def test_mlflow_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'detent[mlflow]'")
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny writes to a server only")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'runs.db'}")
    monkeypatch.chdir(tmp_path)
    asked = config(tmp_path, log={"to": ["mlflow"], "project": "mine"})
    train(asked, tmp_path / "run")
    train(asked.with_changes("train", epochs=2), tmp_path / "run", resume=True)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("mine")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("small", "FINISHED")
    assert (run.data.params["optimizer.momentum"], run.data.params["model.name"]) == ("0.9", "resnet20")
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "train.loss")] == [2, 4]


def test_a_broken_package_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError):
        Log(tmp_path, tracking=Tracking(("wandb",)))
