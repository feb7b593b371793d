"""Everything that computes in half precision, in a process whose kernels run on any CPU; what it finds goes to a file.

ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 python -m tests.training.precision_job FOLDER CASE...
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from detent.graph import quantizers_of
from detent.recipes import Recipe, TensorRequest
from detent.training import LSQEpochLoop, Precision, QATEpochLoop
from detent.training.precision import PrecisionName
from tests.training.jobs import make_run, state_of

MOVING = Recipe(
    name="moving", weight=TensorRequest(quantizer="fixed"), activation=TensorRequest(quantizer="moving_range")
)
# The paper's steps are larger than those of whole ranges: what half precision does to them is small beside them.
LEARNED = Recipe(
    name="learned",
    weight=TensorRequest(quantizer="lsq", observer="lsq"),
    activation=TensorRequest(quantizer="lsq", observer="lsq"),
)
CASES: dict[str, tuple[str | Recipe, int, Any]] = {
    **{f"lsq, strategy {strategy}": (LEARNED, strategy, LSQEpochLoop) for strategy in (-1, 1, 2, 3, 4)},
    "moving ranges, strategy 4": (MOVING, 4, QATEpochLoop),
}
FEW = ["lsq, strategy 2", "moving ranges, strategy 4"]
HALVES: tuple[PrecisionName, ...] = ("bf16", "16")


def run_of(case: str, precision: PrecisionName, folder: Path | None = None) -> tuple[Any, Any]:
    recipe, strategy, loop = CASES[case]
    run = make_run(folder, recipe=recipe, strategy=strategy, lr=0.01, ema=0.9, precision=Precision(precision))
    return run, loop(run, max_epochs=3, freeze_bn_begin=3)


class Watch:
    """The dtypes that the convolutions and the linear layer give, in training and in eval, and of all gradients."""

    def __init__(self, run: Any):
        self.run, self.seen = run, defaultdict[str, set[str]](set)
        for module in run.prepared.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                module.register_forward_hook(self.note)
        for parameter in run.prepared.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: self.seen["gradients"].add(str(p.grad.dtype)))

    def note(self, _: nn.Module, __: Any, output: Tensor) -> None:
        self.seen["in training" if self.run.prepared.training else "in eval"].add(str(output.dtype))


def trained(case: str, precision: PrecisionName) -> dict[str, Any]:
    run, loop = run_of(case, precision)
    watch = Watch(run)
    losses: list[float] = []
    taken = run.step
    run.step = lambda model, batch: losses.append(taken(model, batch)) or losses[-1]
    metrics = loop.run()
    kept = {**run.prepared.state_dict(), **run.ema.state_dict()}
    return {
        "losses": losses,
        "metrics": metrics,
        "seen": {name: sorted(kinds) for name, kinds in watch.seen.items()},
        "kept": sorted({str(value.dtype) for value in (*kept.values(), *state_of(run).values())}),
        "scales": [quantizer.qparams().scale.flatten().tolist() for quantizer in quantizers_of(run.prepared)],
    }


class InterruptedHereError(Exception):
    pass


def resumed_like_whole(case: str, precision: PrecisionName, folder: Path) -> list[str]:
    """Train, stop inside the second epoch, resume: the names of what differs from a run that was never stopped."""
    whole, loop = run_of(case, precision)
    loop.run()
    run, loop = run_of(case, precision, folder)
    run.checkpoint_interval = 1
    step = run.step

    def stopping(model: Any, batch: Any) -> float:
        if run.progress.step == 8:
            raise InterruptedHereError
        return float(step(model, batch))

    run.step = stopping
    with suppress(InterruptedHereError):
        loop.run()
    again, loop = run_of(case, precision, folder)
    again.resume(again.last)
    assert again.progress.step == 8
    loop.run()
    one, other = state_of(again), state_of(whole)
    different = [name for name in other if not torch.equal(one[name], other[name])]
    if again.precision.state_dict() != whole.precision.state_dict():
        different.append("precision")
    return different


def overflow() -> dict[str, Any]:
    """A loss so great that its scaled gradients are Inf: the step is left out, and the next scale is half."""
    run, loop = run_of("lsq, strategy 4", "16")
    loop.prepare_for_run_epoch()
    scale = run.precision.state_dict()["scaler"]["scale"]
    plain = run.objective
    run.objective = lambda outputs, batch: plain(outputs, batch) * 1e36
    before = {name: value.detach().clone() for name, value in run.prepared.named_parameters()}
    run.step(run.prepared, next(iter(run.train)))
    moved = [name for name, value in run.prepared.named_parameters() if not torch.equal(value, before[name])]
    return {"moved": moved, "before": scale, "after": run.precision.state_dict()["scaler"]["scale"]}


def main() -> None:
    folder, cases = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    found: dict[str, Any] = {case: {p: trained(case, p) for p in ("32", *HALVES)} for case in cases}
    for precision in HALVES:
        for case in set(cases) & {"lsq, strategy 4", "moving ranges, strategy 4"}:
            where = folder / f"{precision} {case}"
            found[case][f"resumed in {precision}"] = resumed_like_whole(case, precision, where)
    found["overflow"] = overflow()
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
