"""Networks and data of a user's own: named by import paths, in folders of pictures, in arrays, by functions."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from detent.bench import Results, load_grid, run_tasks, todo_of
from detent.bench.worker import MEASURE, compute
from detent.errors import RecipeError

NETS = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=4):
        layers = [nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers, nn.Linear(width, 2))
"""
DATA = """
import torch
from torch.utils.data import Dataset, TensorDataset

def photos(folder, split, count=8) -> Dataset:
    images = torch.linspace(-1, 1, count * 3 * 8 * 8).reshape(count, 3, 8, 8)
    return TensorDataset(images, torch.arange(count) % 2)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with modules that only the current folder makes importable."""
    (tmp_path / "own_nets.py").write_text(NETS)
    (tmp_path / "own_data.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("own_nets", "own_data"):
        sys.modules.pop(name, None)


def grid_of(folder, data):
    told = {
        "name": "own",
        "networks": {"own_nets:Net": {"options": {"width": 2}}},
        "data": {"batch_size": 4, "calibration_batches": 1, "train_batches": 1, **data},
        "algorithms": ["ptq", "lsq"],
        "targets": ["academic"],
        "evaluate": {"verified": 1, "latency": False},
    }
    (folder / "grid.yaml").write_text(yaml.safe_dump(told))
    return load_grid(folder / "grid.yaml", allow_imports=True)


def pictures(folder):
    for split in ("train", "val"):
        for label, name in enumerate(("cat", "dog")):
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(4):
                pixels = np.full((10, 12, 3), 40 * number + 100 * label, np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")


def arrays(folder):
    folder.mkdir()
    for split in ("train", "test"):
        x = np.linspace(-1, 1, 8 * 192, dtype=np.float32).reshape(8, 3, 8, 8)
        np.savez(folder / f"{split}.npz", x=x, labels=np.arange(8) % 2)


@pytest.mark.parametrize(
    ("write", "data"),
    [
        (pictures, {"name": "image_folder", "folder": "here", "options": {"size": 8, "resize": 8}}),
        (arrays, {"name": "npz", "folder": "here"}),
        (None, {"name": "own_data:photos", "options": {"count": 8}}),
    ],
    ids=["folder", "npz", "function"],
)
def test_cells_of_own_networks_and_data(own, write, data):
    if write is not None:
        write(own / "here")
    grid, results = grid_of(own, data), Results(own / "results")

    def engine(tasks, results, done):
        for task in tasks:
            result = compute(task, MEASURE, allow_imports=True)
            results.write(result)
            done(result)

    found = run_tasks(todo_of(grid, results), results, engine)
    assert [(result.task.cell.axes["algorithm"], result.error) for result in found] == [("ptq", None), ("lsq", None)]
    for result in found:
        assert result.figures["deployed"]["holds"]
        assert result.figures["deployed"]["samples"] == 4
        assert 0 <= result.figures["accuracy"]["simulated"] <= 100
        assert len(result.task.hashes["network"]) == 64
    assert not todo_of(grid, results).left
    (own / "own_nets.py").write_text(NETS + "# another\n")
    assert len(todo_of(grid, results).left) == 2, "another network is another cell"


def test_a_module_that_is_not_there(own):
    grid = grid_of(own, {"name": "own_data:photos"})
    (own / "own_nets.py").unlink()
    with pytest.raises(RecipeError, match="there is no module own_nets"):
        todo_of(grid, Results(own / "results"))


def test_seeds_share_the_float_accuracy(own, monkeypatch):
    """The float network is judged once by a worker, whatever is done to it."""
    from detent.bench import measuring

    judged = []
    plain = measuring._accuracy
    monkeypatch.setattr(measuring, "_accuracy", lambda model, batches: judged.append(model) or plain(model, batches))
    measuring._float_accuracy.cache_clear()
    torch.manual_seed(0)
    for cell in grid_of(own, {"name": "own_data:photos"}).cells():
        measuring.measure_cell(cell.to_dict(), allow_imports=True)
    assert sum(type(model).__name__ == "Net" for model in judged) == 1
    assert len(judged) == 3
