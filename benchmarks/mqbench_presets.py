"""The presets of MQBench after calibration: how near the scores of a network are to the float ones, in dB.

    python benchmarks/mqbench_presets.py    [--network resnet20] [--presets Tensorrt SNPE] [--calibration 512]
                                            [--images 1000]

Calibrated as MQBench's users do (`enable_calibration`, batches, `enable_quantization`), measured on the first test
images, with each preset's own observers and with those of LSQ's paper, `LSQObserver`, for both; beside them what the
recipes `ptq` and `lsq` have on the same target after `detent.calibrate`, and `lsq` with corrected biases.
Where data and weights come from: ptq_data.py.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch import nn

import detent
from detent.compat.mqbench import BackendType, enable_calibration, enable_quantization, prepare_by_platform
from detent.recipes import Recipe
from ptq_data import WEIGHTS, Task, load, missing

PRESETS = ("Tensorrt", "SNPE", "OPENVINO", "QDQ")
LSQ = {"w_observer": "LSQObserver", "a_observer": "LSQObserver"}


CORRECTED = Recipe.from_dict(
    {**Recipe.named("lsq").to_dict(), "calibration": {"choose_ranges": True, "correct_biases": True}}
)
RECIPES: dict[str, str | Recipe] = {"ptq": "ptq", "lsq": "lsq", "lsq, biases corrected": CORRECTED}


@torch.no_grad()
def by_preset(task: Task, preset: str, qconfig: dict[str, Any]) -> nn.Module:
    custom = {"extra_qconfig_dict": qconfig} if qconfig else None
    model = prepare_by_platform(task.net, BackendType[preset], custom, example_inputs=(task.images[:2],)).eval()
    enable_calibration(model)
    for batch in task.calibration:
        model(batch)
    enable_quantization(model)
    return model


def by_recipe(task: Task, preset: str, recipe: str | Recipe) -> nn.Module:
    model = detent.prepare(task.net, (task.images[:2],), backend=BackendType[preset].value, recipe=recipe)
    detent.calibrate(model, task.calibration)
    return model.eval()


def sqnr(task: Task, model: nn.Module) -> float:
    exact = task.scores(task.net)
    return float(10 * torch.log10(exact.square().sum() / (task.scores(model) - exact).square().sum()))


def main() -> int:
    parser = argparse.ArgumentParser(description="MQBench's presets after calibration")
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=PRESETS)
    parser.add_argument("--network", choices=("resnet20", "resnet56", *WEIGHTS), default="resnet20")
    parser.add_argument("--calibration", type=int, default=512, help="images to calibrate on")
    parser.add_argument("--images", type=int, default=1000)
    given = parser.parse_args()
    reason = missing(given.network)
    if reason:
        print(f"skipped, {reason}", file=sys.stderr)
        return 0
    task = load(given.network, calibration=given.calibration, images=given.images)
    for preset in given.presets:
        found = {"its observers": by_preset(task, preset, {}), "LSQObserver": by_preset(task, preset, LSQ)}
        found |= {name: by_recipe(task, preset, recipe) for name, recipe in RECIPES.items()}
        print(
            f"{preset:<10}" + "   ".join(f"{name} {sqnr(task, one):.1f} dB" for name, one in found.items()), flush=True
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
