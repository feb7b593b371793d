"""A grid on a file of weights that is no network: for workers that do not train."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from detent.bench import Grid, load_grid

GRID = {
    "name": "small",
    "networks": {"resnet20": "weights.safetensors"},
    "data": {"name": "made_up", "batch_size": 8, "calibration_batches": 1},
    "algorithms": ["lsq"],
    "targets": ["academic"],
    "bits": ["W4A4"],
    "seeds": [0, 1, 2, 3],
}


@pytest.fixture
def grid_file(tmp_path) -> Path:
    folder = tmp_path / "grid"
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes(b"first")
    (folder / "grid.yaml").write_text(yaml.safe_dump(GRID))
    return folder / "grid.yaml"


@pytest.fixture
def grid(grid_file) -> Grid:
    return load_grid(grid_file)
