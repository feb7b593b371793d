"""The work on one cell: quantize, train if requested, deploy, and measure the result."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from detent.artifact import Artifact, deploy
from detent.bench.cell import Cell
from detent.errors import DetentError
from detent.files import temporary_folder
from detent.graph import PreparedModel
from detent.graph.names import float_state_dict
from detent.targets.academic import ACADEMIC
from detent.training.batch import call, size_of
from detent.training.build import batches_of, float_model, loop_of, run_of, samples_of
from detent.training.config import Config
from detent.training.metrics import top1
from detent.training.processes import Processes
from detent.training.random_state import seed_everything
from detent.training.session import for_verify

__all__ = ["measure_cell"]


def measure_cell(data: Mapping[str, Any], *, allow_imports: bool = False) -> dict[str, Any]:
    """The figures of a cell: accuracies in percent, bytes, seconds. What the target cannot do is a `DetentError`."""
    cell = Cell.from_dict(data)
    config = Config.from_dict(cell.config, source=str(cell))
    seed_everything(config.train.seed)
    began = time.perf_counter()
    run = run_of(config, None, Processes(), allow_imports=allow_imports)
    run.val.limit = 1  # the loops validate too; what counts is measured below, on as much as is asked for
    prepared_after = time.perf_counter()
    loop_of(config, run).run()
    quantized_after = time.perf_counter()
    prepared = run.prepared.cpu().eval()
    with run.ema.in_place() if run.ema is not None else nullcontext():
        figures = {
            "accuracy": {
                "float": _float_accuracy(_float_config(cell), cell.measure.get("batches"), allow_imports),
                "simulated": _accuracy(prepared, _test(config, cell.measure.get("batches"), allow_imports)),
            },
            "parameter_bytes": _parameter_bytes(prepared),
            **_deployed(prepared, _test(config, cell.measure["verified"], allow_imports), cell.measure),
        }
    figures["seconds"] = {
        "prepare": prepared_after - began,
        "quantize": quantized_after - prepared_after,
        "measure": time.perf_counter() - quantized_after,
    }
    return figures


def _test(config: Config, limit: int | None, allow_imports: bool) -> Iterable[Any]:
    samples = samples_of(config, "test", allow_imports=allow_imports)
    return batches_of(config, samples, Processes(), limit=limit)


def _float_config(cell: Cell) -> str:
    """The cell's config without what the float network does not depend on, the same text for all such cells."""
    said = {key: cell.config[key] for key in ("model", "data")}
    return json.dumps({"name": "float", "backend": ACADEMIC.name, "recipe": {"name": "float"}, **said}, sort_keys=True)


@cache
def _float_accuracy(told: str, batches: int | None, allow_imports: bool) -> float | None:
    """The accuracy of the float network, computed once per worker."""
    config = Config.from_dict(json.loads(told))
    return _accuracy(float_model(config, allow_imports=allow_imports).eval(), _test(config, batches, allow_imports))


@torch.no_grad()
def _accuracy(model: torch.nn.Module, batches: Iterable[Any]) -> float | None:
    """Top-1 in percent; None if batches have no classes."""
    right = seen = 0.0
    for batch in batches:
        share = top1(call(model, batch), batch)
        if share is None:
            return None
        right += float(share) * size_of(batch)
        seen += size_of(batch)
    return 100 * right / seen


def _parameter_bytes(prepared: PreparedModel) -> dict[str, float]:
    """The size of all parameters, in float32 and quantized; scales are not counted."""
    weights = {entry.tensor: entry.scheme for entry in prepared.plan.quantized if entry.role == "weight"}
    plain = quantized = 0.0
    for name, value in float_state_dict(prepared).items():
        if not value.is_floating_point() or name.endswith(("running_mean", "running_var")):
            continue
        scheme = weights.get(name)
        plain += 4 * value.numel()
        quantized += (32 if scheme is None else scheme.grid.bits) * value.numel() / 8
    return {"float": plain, "quantized": quantized}


def _deployed(prepared: PreparedModel, batches: Iterable[Any], measure: Mapping[str, Any]) -> dict[str, Any]:
    """The size of the deployed files, the accuracy of twin and engine, and the engine's latency."""
    with temporary_folder() as folder:
        try:
            artifact = deploy(prepared, folder / "artifact")
        except DetentError as error:  # a grid that no file can say
            return {"deployed": None, "not_deployed": f"{error.found}; {error.to_do}"}
        labeled = [for_verify(batch) for batch in islice(batches, measure["verified"])]
        verdict = artifact.verify(labeled, tensors=False, latency=bool(measure["latency"]))
        speed, accuracy = verdict.speed, verdict.accuracy
        return {
            "deployed": {
                "backend": verdict.backend,
                "engine": verdict.engine,
                "arithmetic": verdict.arithmetic,
                "cpu": verdict.cpu,
                "verdict": verdict.line,
                "holds": verdict.holds,
                "samples": verdict.samples,
                "accuracy": None
                if accuracy is None
                else {"simulated": accuracy.simulation, "twin": accuracy.twin, "engine": accuracy.engine},
                "latency_ratio": None if speed is None else speed.median_ratio,
                "file_bytes": _file_bytes(artifact),
            }
        }


def _file_bytes(artifact: Artifact) -> dict[str, int]:
    return {name: (Path(artifact.folder) / name).stat().st_size for name in sorted(artifact.manifest["files"])}
