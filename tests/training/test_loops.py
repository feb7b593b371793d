"""The loops: when they validate, freeze, measure and stop; what they write; what they do about NaN."""

from __future__ import annotations

import csv
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent
from detent.errors import DataError, RangeError, RecipeError, SchemeError
from detent.graph import FoldedBatchNorm, quantizers_of
from detent.quantizers import MovingRange
from detent.recipes import Recipe, TensorRequest
from detent.retargeting import retargeted
from detent.training import (
    Ema,
    Log,
    LSQEpochLoop,
    Objective,
    PTQLoop,
    QATEpochLoop,
    Run,
    Schedule,
    checkpoint,
    parameter_groups,
    reestimate_batch_norms,
    validate,
)
from detent.training.batch import ModelInputs
from tests.training.jobs import Net, make_run

MOVING = Recipe(
    name="moving", weight=TensorRequest(quantizer="fixed"), activation=TensorRequest(quantizer="moving_range")
)


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"val_interval": 3}, [1, 4, 7, 9]),
        ({"val_begin": 5, "val_interval": 2}, [5, 7, 9]),
        ({"val_interval": 4, "dynamic_intervals": [(6, 1)]}, [1, 5, 6, 7, 8, 9]),
    ],
)
def test_when_it_validates(options: dict[str, Any], epochs: list[int]) -> None:
    loop = QATEpochLoop(make_run(recipe="ptq"), max_epochs=9, **options)
    assert [epoch for epoch in range(1, 10) if loop.validates(epoch)] == epochs


def test_epochs_are_counted_from_one() -> None:
    with pytest.raises(RecipeError, match="val_begin 0"):
        QATEpochLoop(make_run(), max_epochs=1, val_begin=0)


def test_hooks_are_called_in_order() -> None:
    said: list[str] = []

    class Spoken(LSQEpochLoop):
        def prepare_for_run_epoch(self) -> None:
            said.append("prepare")
            super().prepare_for_run_epoch()

        def run_epoch(self) -> None:
            said.append("run")
            super().run_epoch()

        def prepare_for_val(self) -> None:
            said.append("val")
            super().prepare_for_val()

    Spoken(make_run(), max_epochs=2, val_begin=2).run()
    assert said == ["prepare", "run", "prepare", "run", "val", "val"]


class Written(QATEpochLoop):
    """An epoch of one's own, and nothing else: not even a calibration."""

    def prepare_for_run_epoch(self) -> None:
        pass

    def run_epoch(self) -> None:
        self.seen: list[int] = [index for index, batch in enumerate(self.dataloader) if self.run_iter(index, batch)]


def test_an_epoch_of_one_s_own_is_trained_and_calibrated_by_its_first_batch() -> None:
    run = make_run()
    bias = run.prepared.get_parameter("fc.bias")
    before = bias.detach().clone()
    loop = Written(run, max_epochs=1)
    loop.run()
    assert loop.seen == list(range(len(run.train)))
    assert loop.calibrated()
    assert not torch.equal(bias.detach(), before)


def test_an_epoch_without_a_step_names_the_line() -> None:
    class Empty(Written):
        def run_epoch(self) -> None:
            pass

    line = Empty.run_epoch.__code__.co_firstlineno
    with pytest.raises(DataError, match=rf"epoch 1 of Empty\nfound: its run_epoch, line {line} of .*test_loops.py"):
        Empty(make_run(), max_epochs=1).run()


def test_lsq_learns_its_scales() -> None:
    run = make_run()
    loop = LSQEpochLoop(run, max_epochs=2)
    loop.prepare_for_run_epoch()
    before = [q.qparams().scale.clone() for q in quantizers_of(run.prepared)]
    loop.run()
    after = [q.qparams().scale for q in quantizers_of(run.prepared)]
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_lsq_refuses_what_learns_nothing() -> None:
    with pytest.raises(SchemeError, match="QATEpochLoop"):
        LSQEpochLoop(make_run(recipe="ptq"), max_epochs=1).run()


def test_measured_ranges_follow_the_weights_until_they_are_stopped() -> None:
    scales: list[list[Tensor]] = []

    class Watching(QATEpochLoop):
        def run_epoch(self) -> None:
            scales.append([q.qparams().scale.clone() for q in quantizers_of(self.work.prepared)])
            super().run_epoch()

    Watching(make_run(recipe="ptq"), max_epochs=4, stop_observing_begin=3).run()
    assert any(not torch.equal(a, b) for a, b in zip(scales[0], scales[1], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(scales[2], scales[3], strict=True))


def test_moving_ranges_are_not_measured_again_and_stop() -> None:
    seen: dict[int, Tensor] = {}

    class Watching(QATEpochLoop):
        def run_epoch(self) -> None:
            first = next(q for q in quantizers_of(self.work.prepared) if isinstance(q, MovingRange))
            seen[self.epoch] = first.high.clone()
            super().run_epoch()
            seen[-self.epoch] = first.high.clone()

    Watching(make_run(recipe=MOVING), max_epochs=3, stop_observing_begin=3).run()
    assert not torch.equal(seen[1], seen[-1])
    assert torch.equal(seen[2], seen[-1])
    assert torch.equal(seen[3], seen[-3])


@pytest.mark.parametrize("strategy", [-1, 2, 3, 4])
def test_batch_norms_freeze(strategy: int) -> None:
    run = make_run(strategy=strategy)
    loop = LSQEpochLoop(run, max_epochs=2, freeze_bn_begin=2)
    statistics: list[list[Tensor]] = []

    def note() -> None:
        statistics.append([b.clone() for n, b in run.prepared.named_buffers() if n.endswith("running_mean")])

    for _ in range(2):
        loop.prepare_for_run_epoch()
        note()
        loop.run_epoch()
        note()
        run.progress.epoch, run.progress.batch = 1, 0
    assert len(statistics[0]) == 2
    assert not torch.equal(statistics[0][0], statistics[1][0])
    assert all(torch.equal(a, b) for a, b in zip(statistics[2], statistics[3], strict=True))
    assert all(m.frozen for m in run.prepared.modules() if isinstance(m, FoldedBatchNorm))


def test_ptq_calibrates_and_writes(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe="ptq")
    metrics = PTQLoop(run).run()
    other = make_run(recipe="ptq")
    checkpoint.load(tmp_path / "last.safetensors", other.prepared)
    assert PTQLoop(other).run() == metrics


def test_validation_has_both_models() -> None:
    run = make_run(recipe="ptq")
    detent.calibrate(run.prepared, run.calibration)
    metrics = validate(run.prepared, run.val)
    run.prepared.eval()
    right = sum(int((run.prepared(x).argmax(1) == y).sum()) for x, y in run.val)
    assert metrics["quantized.top1"] == pytest.approx(right / 24)
    plain = Net().eval()
    plain.load_state_dict(detent.float_state_dict(run.prepared))
    loss = sum(F.cross_entropy(plain(x), y, reduction="sum").item() for x, y in run.val)
    assert metrics["float.loss"] == pytest.approx(loss / 24, rel=1e-5)
    assert metrics["float.loss"] != metrics["quantized.loss"]


# --- NaN ---------------------------------------------------------------------------------------------------


class Poisoned(LSQEpochLoop):
    """From the ninth step on a weight is NaN."""

    def run_iter(self, index: int, batch: Any) -> float:
        if self.work.progress.step == 8:
            with torch.no_grad():
                dict(self.work.prepared.named_parameters())["fc.bias"].fill_(torch.nan)
        return super().run_iter(index, batch)


def test_nan_stops_and_the_last_good_checkpoint_stays(tmp_path: Path) -> None:
    run = make_run(tmp_path, checkpoint_interval=1)
    with pytest.raises(RangeError) as error:
        Poisoned(run, max_epochs=3).run()
    assert "the loss is nan at step 8" in error.value.found
    assert "fc.bias" in error.value.found
    assert str(tmp_path / "last.safetensors") in error.value.to_do
    good = checkpoint.read(tmp_path / "last.safetensors")
    assert good["state"]["training"]["progress"]["step"] == 8
    assert torch.isfinite(good["state"]["model"]["fc.bias"]).all()


def test_inf_in_the_data_names_the_first_layer() -> None:
    run = make_run()
    LSQEpochLoop(run, max_epochs=1).prepare_for_run_epoch()
    with pytest.raises(RangeError, match=r"first layer whose output holds NaN or Inf is '.+'"):
        run.step(run.prepared, (torch.full((8, 3, 8, 8), torch.nan), torch.zeros(8, dtype=torch.int64)))


# --- optimizer, loss, average, rates, log --------------------------------------------------------------------


def test_parameter_groups() -> None:
    prepared = make_run().prepared
    groups = {g["name"]: g for g in parameter_groups(prepared, lr=0.1, weight_decay=0.01, scale_lr=0.001)}
    learned = {id(p) for q in quantizers_of(prepared) for p in q.parameters(recurse=False)}
    assert {id(p) for p in groups["scales"]["params"]} == learned
    assert (groups["scales"]["lr"], groups["scales"]["weight_decay"]) == (0.001, 0.0)
    assert (groups["weights"]["lr"], groups["weights"]["weight_decay"]) == (0.1, 0.01)
    assert groups["norms and biases"]["weight_decay"] == 0.0
    held = [id(p) for g in groups.values() for p in g["params"]]
    assert sorted(held) == sorted(id(p) for p in prepared.parameters())


def test_objective() -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    plain = Objective()(logits, (logits, labels))
    assert torch.equal(plain, F.cross_entropy(logits, labels))
    smooth = Objective(label_smoothing=0.1)(logits, (logits, labels))
    assert torch.equal(smooth, F.cross_entropy(logits, labels, label_smoothing=0.1))
    teacher = nn.Identity()
    told = Objective(teacher=teacher, weight=1.0, temperature=2.0)
    assert float(told(logits, (logits, labels))) == pytest.approx(0, abs=1e-6)
    other = torch.randn(4, 3)
    p, q = torch.softmax(other / 2, 1), torch.softmax(logits / 2, 1)
    expected = 4 * (p * (p / q).log()).sum(1).mean()
    torch.testing.assert_close(told(logits, (other, labels)), expected)


def test_average() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    ema = Ema(model, decay=0.0)
    nn.init.ones_(model.weight)
    ema.update()
    nn.init.constant_(model.weight, 5.0)
    with ema.in_place():
        assert model.weight.item() == 1.0
    assert model.weight.item() == 5.0


def test_rates_are_a_function_of_the_step() -> None:
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": 0.4}], lr=1.0)
    schedule = Schedule("cosine", steps=4)
    rates = []
    for step in (0, 2, 4, 2):
        schedule.apply(optimizer, step)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.4, 0.2, 0.0, 0.2])


def test_log(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write(1, 1, {"loss": 0.5})
    log.write(2, 1, {"loss": 0.25})
    log.close()
    again = Log(tmp_path, resume_step=2, resume_rows=1)
    again.write(2, 1, {"loss": 0.125})
    again.close()
    rows = list(csv.reader((tmp_path / "log.csv").read_text().splitlines()))
    assert rows == [["step", "epoch", "name", "value"], ["1", "1", "loss", "0.5"], ["2", "1", "loss", "0.125"]]
    assert again.note is None


def test_tensorboard_reads_the_events(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = Log(tmp_path)
    log.write(1, 1, {"train.loss": 0.5})
    log.write(2, 1, {"train.loss": 0.25})
    log.close()
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train.loss")] == [(1, 0.5), (2, 0.25)]


def test_without_tensorboard_the_log_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    log = Log(tmp_path)
    log.write(1, 1, {"loss": 0.5})
    assert "detent[train]" in str(log.note)
    assert (tmp_path / "log.csv").read_text().splitlines()[1] == "1,1,loss,0.5"
    assert not (tmp_path / "events").exists()


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("ema", [None, 0.9], ids=["trained", "averaged"])
@pytest.mark.parametrize(("loop", "recipe"), [(QATEpochLoop, "ptq"), (LSQEpochLoop, "lsq")], ids=["qat", "lsq"])
def test_what_was_trained_can_be_retargeted(loop: Any, recipe: str, ema: float | None, tmp_path: Path) -> None:
    """ONNX Runtime leaves the logits float and Qualcomm has a grid for them: its range is that of the weights that are
    deployed, in memory and in the checkpoint."""
    run = make_run(tmp_path / "run", recipe=recipe, backend="onnxruntime", strategy=None, ema=ema)
    loop(run, max_epochs=2).run()
    images = next(iter(run.calibration))[0]
    with run.ema.in_place() if run.ema is not None else nullcontext():
        logits, moved = run.prepared(images), retargeted(run.prepared, "qnn")
    (output,) = [quantizer for quantizer in quantizers_of(moved) if quantizer.name == "fc"]
    assert (moved(images) - logits).abs().max() <= float(output.qparams().scale) / 2 * 1.001
    again = make_run(recipe=recipe, backend="onnxruntime", strategy=None)
    checkpoint.load_model(tmp_path / "run" / "last.safetensors", again.prepared)
    assert torch.equal(retargeted(again.prepared.eval(), "qnn")(images), moved(images))


def statistics(run: Run) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in run.prepared.named_buffers() if "running_" in name}


@pytest.mark.parametrize("strategy", [-1, 2, 3, 4])
def test_statistics_of_batch_norms_are_measured_again(strategy: int) -> None:
    run = make_run(strategy=strategy)
    detent.calibrate(run.prepared, ModelInputs(run.calibration))
    halves = list(ModelInputs(run.calibration))
    whole = torch.cat([inputs[0] for inputs in halves])
    before = {name: value.clone() for name, value in run.prepared.state_dict().items()}
    reestimate_batch_norms(run.prepared, [(whole,)])
    at_once = statistics(run)
    if strategy == -1:  # where the weight of the file does not depend on them, what comes out is normalized
        y = run.prepared.eval().get_submodule("bn1")(run.prepared.get_submodule("conv1")(whole)).detach()
        assert y.mean((0, 2, 3)).abs().max() < 0.05  # the input of the real network is quantized, this one is not
        torch.testing.assert_close(y.var((0, 2, 3)), torch.ones(8), rtol=0.05, atol=0)
    run.prepared.load_state_dict(before)
    reestimate_batch_norms(run.prepared, halves)
    for name, value in statistics(run).items():
        if name.startswith(("bn1", "conv1")):  # later layers see two batches, each normalized by itself
            torch.testing.assert_close(value, at_once[name], rtol=5e-3, atol=1e-6)
    changed = {name for name, value in run.prepared.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == set(at_once)


def test_batch_norms_that_stand_still_are_not_measured_again() -> None:
    run = make_run(strategy=1)
    detent.calibrate(run.prepared, ModelInputs(run.calibration))
    before = statistics(run)
    reestimate_batch_norms(run.prepared, ModelInputs(run.calibration))
    assert all(torch.equal(value, before[name]) for name, value in statistics(run).items())


@pytest.mark.parametrize("freeze", [None, 2])
def test_a_loop_measures_batch_norms_again_for_the_averaged_weights(freeze: int | None) -> None:
    run = make_run(strategy=-1, ema=0.9)
    LSQEpochLoop(run, max_epochs=2, val_begin=2, reestimate_bn=True, freeze_bn_begin=freeze).run()
    after = statistics(run)
    assert run.ema is not None
    with run.ema.in_place():
        reestimate_batch_norms(run.prepared, ModelInputs(run.calibration))
    same = all(torch.equal(value, after[name]) for name, value in statistics(run).items())
    assert same == (freeze is None)
