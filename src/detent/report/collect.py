"""Collects the facts of a report: from the folder, and from running the network on data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from detent.errors import ArtifactError, refusing
from detent.graph import PreparedModel
from detent.ir import Package
from detent.report.curves import read_curves
from detent.report.facts import Facts
from detent.report.floats import float_network
from detent.report.folder import read_folder
from detent.report.measuring import Measuring, explain, place
from detent.verification import verify

__all__ = ["BATCHES", "collect"]

BATCHES = 8
_NO_DATA = (
    "No data was given: pass `--data` (in Python `data=`) for the verdict, accuracy, latency, differences in LSB, "
    "sensitivity and the histograms of activations."
)


def collect(
    package: Package,
    *,
    prepared: PreparedModel | None = None,
    data: Iterable[Any] | None = None,
    float_model: str | Path | None = None,
    log: str | Path | None = None,
    batches: int = BATCHES,
    latency: bool = True,
) -> Facts:
    """What is known of `package`. `data` are batches as `verify` takes them, of which the first `batches` are used;
    `float_model` is the ONNX file that was quantized, `log` the `log.csv` of its training, or the folder of it.
    `prepared` is the model it came from, if that is in memory."""
    curves = () if log is None else read_curves(log)
    if prepared is not None:
        return replace(_collect(package, prepared, data, float_model, batches, latency), curves=curves)
    with refusing(ArtifactError, f"report on {package.folder}", "deploy the model again"):
        return replace(_collect(package, None, data, float_model, batches, latency), curves=curves)


def _collect(
    package: Package,
    prepared: PreparedModel | None,
    data: Iterable[Any] | None,
    float_model: str | Path | None,
    batches: int,
    latency: bool,
) -> Facts:
    facts = read_folder(package)
    if data is None:
        placed = explain(package)
        return replace(facts, nodes=tuple(place(node, placed) for node in facts.nodes), missing=(_NO_DATA,))
    measuring = Measuring(package, prepared, float_network(package, prepared, float_model))
    verdict = verify(package, measuring.seen(islice(data, batches)), prepared=prepared, latency=latency)
    return measuring.added(facts, verdict)
