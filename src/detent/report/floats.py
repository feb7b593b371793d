"""The float network that was quantized, as far as it is known: the one in memory, or the ONNX file it came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from detent.algorithms import ALGORITHMS
from detent.algorithms.common.floating import as_float
from detent.errors import ArtifactError, DetentError
from detent.graph import PreparedModel
from detent.ir import Package
from detent.loading import load
from detent.preparing import prepare
from detent.recipes import Recipe
from detent.report.histograms import sqnr
from detent.twin import OnnxSpec, Twin
from detent.verification.batches import Batch
from detent.verification.simulation import Simulation

__all__ = ["FloatReference", "float_network"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

_ALIKE = 20.0
"""Decibels above which the outputs of two networks are those of the same weights, some of them quantized."""


class FloatReference:
    """`run` gives its outputs, `parameters` are its weights and biases, with batch norms folded, as far as they are
    known; both by the names of the deployed ones."""

    def __init__(self, package: Package, prepared: PreparedModel | None, file: Path | None):
        self._outputs = [output.name for output in package.graph.outputs]
        self._prepared, self._twin = prepared, None if file is None else Twin(file, OnnxSpec())
        if self._twin is not None:
            _require_same_ends(package, self._twin, file)
        model = prepared if file is None else _prepared_from(package, file)
        self.parameters: Arrays = {}
        if model is not None:
            self._simulation = Simulation(model, package.manifest["mode"], package.manifest.get("names"))
            with as_float(model):
                self.parameters = self._simulation.parameters()

    def run(self, batch: Batch) -> dict[str, Array]:
        if self._twin is not None:
            made = self._twin.run(dict(zip(self._twin.graph.inputs, batch.inputs.values(), strict=True)))
            return dict(zip(self._outputs, made.values(), strict=True))
        assert self._prepared is not None
        with as_float(self._prepared):
            return dict(zip(self._outputs, self._simulation.run_float(batch.arguments), strict=True))

    def is_computed_by(self, outputs: Arrays, wanted: Arrays) -> bool:
        """Whether `outputs`, which the deployed operations make with `parameters`, are `wanted`, those of this network:
        a file may not be the one that was quantized, or its weights may have other names."""
        if self._twin is None:
            return True
        losses = [sqnr(wanted[name], outputs[name]) for name in wanted if wanted[name].dtype.kind == "f"]
        return all(loss is None or loss >= _ALIKE for loss in losses)


def float_network(package: Package, prepared: PreparedModel | None, file: str | Path | None) -> FloatReference | None:
    """The file if it is given, else the model in memory, else None."""
    if prepared is None and file is None:
        return None
    return FloatReference(package, prepared, None if file is None else Path(file))


def _require_same_ends(package: Package, twin: Twin, file: Path | None) -> None:
    """Refuse a file that takes or gives another number of tensors."""
    ends = [(len(network.inputs), len(network.outputs)) for network in (package.graph, twin.graph)]
    if ends[0] != ends[1]:
        found = f"it has {ends[1][0]} inputs and {ends[1][1]} outputs, and the artifact {ends[0][0]} and {ends[0][1]}"
        raise ArtifactError(f"compare {package.folder} with {file}", found, "give the file that was quantized")


def _prepared_from(package: Package, file: Path) -> PreparedModel | None:
    """The file as it was prepared, whose weights have the names of the deployed ones; None where an algorithm changed
    the weights before they were quantized, or the backend is not known here."""
    recipe = Recipe.from_dict(package.manifest["recipe"])
    if any(ALGORITHMS[one.name].phase == "before calibration" for one in recipe.algorithms):
        return None
    ports = package.graph.inputs.values()
    example = [np.zeros([2 if isinstance(size, str) else size for size in p.shape], p.dtype) for p in ports]
    try:
        return prepare(
            load(file), [torch.from_numpy(one) for one in example], backend=package.manifest["backend"], recipe=recipe
        )
    except DetentError:
        return None
