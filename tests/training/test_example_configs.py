"""Each example config trains a few batches, deploys, and what is deployed is what was simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from detent.compat.vitis import VitisConfig
from detent.compat.vitis.translation import recipe_of
from detent.training.config import Config
from detent.training.config_files import load_config
from detent.training.session import train

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "examples" / "configs").glob("*.yaml"))
RUN = ("lsq_openvino",)
"""The others are run by `make test-full`."""


def small(config: Config) -> Config:
    """The same on a narrow network, 16 made-up images and two epochs of two batches."""
    data = config.data.replace(
        name="made_up", folder=None, options={"count": 16, "size": 16}, batch_size=8, calibration_batches=1
    )
    model = config.model.replace(options={**config.model.options, "width": 0.125})
    schedule = config.schedule.replace(warmup_epochs=0)
    begin = {key: 2 for key in ("freeze_bn_begin", "stop_observing_begin") if getattr(config.train, key) is not None}
    loop = config.train.replace(epochs=2, checkpoint_interval=1, **begin)
    return config.replace(data=data, model=model, train=loop, schedule=schedule)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[] if path.stem in RUN else pytest.mark.full) for path in CONFIGS],
)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    outcome = train(small(load_config(path, allow_imports=True)), tmp_path, allow_imports=True)
    assert outcome is not None
    assert 0 <= outcome.metrics["quantized.top1"] <= 1
    assert outcome.artifact is not None
    assert (outcome.artifact.folder / "model.onnx").is_file()
    assert outcome.verdict is not None
    assert outcome.verdict.holds, str(outcome.verdict)


def test_std_of_powers_of_two_is_what_the_json_of_the_document_says() -> None:
    ours = load_config(next(path for path in CONFIGS if path.stem == "vitis_pof2_std"), allow_imports=True)
    theirs = VitisConfig.load(ROOT / "examples" / "vitis" / "configs" / "int_pof2_std.json")
    assert ours.recipe.replace(name="vitis") == recipe_of(theirs, [])
    assert ours.backend == "detent.compat.vitis.translation:VITIS_CPU"
    assert theirs.target_device == "CPU"


def test_all_of_them_are_here() -> None:
    assert len(CONFIGS) == 8
