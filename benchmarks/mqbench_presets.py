"""The presets of MQBench after calibration: how near the scores of ResNet-20 are to the float ones, in dB.

    python benchmarks/mqbench_presets.py    [--presets Tensorrt SNPE] [--images 1000]

Calibrated on 512 training images as MQBench's users do (`enable_calibration`, batches, `enable_quantization`), measured
on the first test images, with each preset's own observers and with those of LSQ's paper, `LSQObserver`, for both.
Where data and weights come from: ptq_data.py.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch

from detent.compat.mqbench import BackendType, enable_calibration, enable_quantization, prepare_by_platform
from ptq_data import Task, load, missing

PRESETS = ("Tensorrt", "SNPE", "OPENVINO", "QDQ")
LSQ = {"w_observer": "LSQObserver", "a_observer": "LSQObserver"}


@torch.no_grad()
def sqnr(task: Task, preset: str, qconfig: dict[str, Any]) -> float:
    custom = {"extra_qconfig_dict": qconfig} if qconfig else None
    model = prepare_by_platform(task.net, BackendType[preset], custom, example_inputs=(task.images[:2],)).eval()
    enable_calibration(model)
    for batch in task.calibration:
        model(batch)
    enable_quantization(model)
    exact = task.scores(task.net)
    return float(10 * torch.log10(exact.square().sum() / (task.scores(model) - exact).square().sum()))


def main() -> int:
    parser = argparse.ArgumentParser(description="MQBench's presets after calibration")
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=PRESETS)
    parser.add_argument("--images", type=int, default=1000)
    given = parser.parse_args()
    reason = missing("resnet20")
    if reason:
        print(f"skipped, {reason}", file=sys.stderr)
        return 0
    task = load("resnet20", calibration=512, images=given.images)
    for preset in given.presets:
        print(
            f"{preset:<10}{sqnr(task, preset, {}):6.1f} dB   with LSQObserver {sqnr(task, preset, LSQ):6.1f} dB",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
