"""Grids: what they may say, the cells they make, and the names of cells."""

from __future__ import annotations

import shutil

import pytest
import yaml

from detent.bench import Hashes, Results, load_grid, todo_of
from detent.bench.any_width import setting_of
from detent.errors import DataError, RecipeError, UnknownNameError
from detent.targets import BACKENDS
from tests.bench.conftest import GRID


def written(grid_file, **changes):
    grid_file.write_text(yaml.safe_dump({**GRID, **changes}))
    return load_grid(grid_file)


def keys(grid):
    hashes = Hashes()
    return [cell.key(hashes.of(cell)) for cell in grid.cells()]


def test_cells_are_the_product_with_seeds_outermost(grid_file):
    grid = written(grid_file, algorithms=["lsq", "ptq"], targets=["academic", "openvino"], seeds=[5, 6])
    assert [str(cell) for cell in grid.cells()] == [
        "resnet20 lsq W4A4 academic, seed 5",
        "resnet20 ptq W4A4 academic, seed 5",
        "resnet20 lsq W4A4 openvino, seed 5",
        "resnet20 ptq W4A4 openvino, seed 5",
        "resnet20 lsq W4A4 academic, seed 6",
        "resnet20 ptq W4A4 academic, seed 6",
        "resnet20 lsq W4A4 openvino, seed 6",
        "resnet20 ptq W4A4 openvino, seed 6",
    ]
    assert [cell.config["train"]["loop"] for cell in grid.cells()[:2]] == ["qat", "ptq"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algoritms": ["lsq"]}, "algorithms"),
        ({"train": {"epoch": 2}}, "epochs"),
        ({"algorithms": ["lsk"]}, "lsq"),
        ({"targets": ["openvin"]}, "openvino"),
        ({"networks": {"resnet21": None}}, "resnet20"),
        ({"data": {"name": "cifar11"}}, "cifar10"),
        ({"bits": ["4/4"]}, "W4A8"),
        ({"seeds": [1, 1]}, "each once"),
        ({"targets": []}, "at least one"),
        ({"batch_norm": [5]}, "allowed are"),
        ({"initialization": ["minmx"]}, "minmax"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_mistakes_name_what_is_meant(grid_file, changes, said):
    with pytest.raises((RecipeError, UnknownNameError)) as error:
        written(grid_file, **changes)
    assert said in str(error.value)


def test_code_is_named_only_with_leave(grid_file):
    grid_file.write_text(yaml.safe_dump({**GRID, "networks": {"tests.models:Small": None}}))
    with pytest.raises(RecipeError, match="importing executes code"):
        load_grid(grid_file)
    assert load_grid(grid_file, allow_imports=True).networks[0].name == "tests.models:Small"


def test_a_key_is_of_the_content(grid_file, tmp_path):
    first = keys(load_grid(grid_file))
    assert len(set(first)) == 4
    moved = tmp_path / "elsewhere"
    shutil.copytree(grid_file.parent, moved)
    assert keys(load_grid(moved / "grid.yaml")) == first, "where the files are says nothing"
    assert keys(written(grid_file, name="another")) == first
    assert not set(keys(written(grid_file, train={"epochs": 2}))) & set(first)
    assert not set(keys(written(grid_file, evaluate={"verified": 3}))) & set(first)
    assert keys(written(grid_file, seeds=[3, 4]))[0] == first[3]
    (moved / "weights.safetensors").write_bytes(b"second")
    assert not set(keys(load_grid(moved / "grid.yaml"))) & set(first)


def test_training_settings_are_no_part_of_what_is_not_trained(grid_file):
    first = keys(written(grid_file, algorithms=["ptq"]))
    assert keys(written(grid_file, algorithms=["ptq"], train={"epochs": 2}, optimizer={"lr": 0.5})) == first


def test_missing_weights_are_found_before_anything_runs(grid_file):
    (grid_file.parent / "weights.safetensors").unlink()
    with pytest.raises(DataError, match="no such file"):
        todo_of(load_grid(grid_file), Results(grid_file.parent / "results"))


def test_overrides(grid_file):
    grid = load_grid(grid_file, overrides=["train.epochs=3", "seeds=[7]"])
    assert (grid.train.epochs, grid.seeds) == (3, (7,))


@pytest.mark.parametrize("name", ["academic", "tensorrt", "openvino", "snpe", "vitis", "tvm"])
def test_a_target_is_itself_at_its_own_widths(name):
    assert setting_of(name, 8, 8) == name
    expected = name if name == "academic" else f"detent.bench.any_width:ANY_WIDTH.{name}"
    assert setting_of(name, 4, 4) == expected


def test_at_any_width_only_the_width_is_another():
    from detent.bench import ANY_WIDTH

    wide, own = ANY_WIDTH.tensorrt, BACKENDS["tensorrt"]
    assert (wide.rules, wide.fusions, wide.unquantized_edges) == (own.rules, own.fusions, own.unquantized_edges)
    assert wide.weight.granularities == own.weight.granularities
    assert wide.weight.symmetric == own.weight.symmetric == (True,)
    assert ANY_WIDTH.snpe.weight.symmetric == (False, True), "a symmetric grid is an affine one"
    assert ANY_WIDTH.vitis.activation.scales == BACKENDS["vitis"].activation.scales == ("power_of_two",)
    assert (wide.first_last_bits, wide.engine) == (8, None)
