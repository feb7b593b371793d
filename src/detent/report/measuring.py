"""What running an artifact on data adds: the error of each tensor and each operation, and how numbers lie on grids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from detent.errors import DetentError
from detent.graph import PreparedModel
from detent.ir import Encoding, Op, Package
from detent.report.facts import Facts, Node, RunsAs, TensorSummary
from detent.report.floats import FloatReference
from detent.report.folder import twin_of
from detent.report.histograms import histogram, sqnr, thinned
from detent.report.reference import Reference, quantized_operations
from detent.targets.engines import ENGINES
from detent.verification import Verdict
from detent.verification.batches import Batch, unpack_batches
from detent.verification.differences import encoding_by_tensor

__all__ = ["Measuring", "explain", "place"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Placements = Mapping[str, Mapping[str, str]]
"""How the engine runs each operation, by its name."""

_MOST_SAMPLES, _MOST_ELEMENTS = 16, 2**25
"""Of the tensors inside that are kept for a moment, all together."""

NO_FLOAT = (
    "The folder does not hold the float network: pass `--float model.onnx` (in Python `float_model=`) for its accuracy "
    "and the SQNR of the outputs."
)
NO_WEIGHTS = (
    "The float weights are not known. Errors of layers are measured from the weights as they were deployed: what "
    "quantizing the weights costs is not in them."
)


def explain(package: Package) -> Placements:
    """Where the engine says it would run each operation; nothing if it is not here."""
    name = package.manifest["engine"]
    if name is None or ENGINES[name].version() is None:
        return {}
    try:
        return {placed.op: asdict(placed) for placed in ENGINES[name].load(package).explain()}
    except DetentError:
        return {}


def place(node: Node, placements: Placements) -> Node:
    """The node with how it runs in the engine, and why."""
    told = placements.get(node.name)
    return node if told is None else replace(node, runs=cast(RunsAs, told["ran_as"]), why=told["why"])


class Measuring:
    """Watches batches go by to `verify`, and looks inside on the first samples. `plain` is the float network."""

    def __init__(self, package: Package, prepared: PreparedModel | None, plain: FloatReference | None):
        self._package, self._network, self._plain = package, package.graph, plain
        self._twin, self._encodings = twin_of(package), encoding_by_tensor(package.graph)
        self._positions = len(self._network.inputs) if prepared is None else prepared.input_count
        self._right: list[bool] = []
        self._first: Batch | None = None

    def seen(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches as they are."""
        for given in batches:
            batch = next(unpack_batches([given], self._network.inputs, self._positions))
            self._first = self._first or batch
            if batch.labels is not None and self._plain is not None:
                scores = next(iter(self._plain.run(batch).values())).reshape(batch.labels.size, -1)
                self._right += (scores.argmax(1) == batch.labels.reshape(-1)).tolist()
            yield given

    def added(self, facts: Facts, verdict: Verdict) -> Facts:
        """The facts with the measured ones added."""
        assert self._first is not None  # verify refuses no data
        batch = self._some(self._first)
        deployed, own = self._twin.run_and_show(batch.inputs)
        wanted = None if self._plain is None else self._plain.run(batch)
        reference, inside = self._reference(batch, wanted)
        alone = self._alone(reference, batch.inputs, inside)
        placed = {placement["op"]: placement for placement in verdict.placements}
        nodes = [
            replace(
                place(node, placed),
                sqnr=self._result(node, inside, own),
                alone=alone.get(node.name),
                differences=_differences(node, verdict),
            )
            for node in facts.nodes
        ]
        facts = replace(
            facts,
            nodes=tuple(nodes),
            tensors={name: self._measured(held, reference, inside, own) for name, held in facts.tensors.items()},
            verdict=verdict,
            samples=len(next(iter(batch.inputs.values()))),
            missing=tuple(self._missing(reference, wanted)),
        )
        if wanted is None:
            return facts
        losses = {name: sqnr(wanted[name], deployed[name]) for name in wanted if wanted[name].dtype.kind == "f"}
        return replace(
            facts,
            float_accuracy=100 * float(np.mean(self._right)) if self._right else None,
            output_sqnr={name: loss for name, loss in losses.items() if loss is not None},
            sqnr_of=f"{facts.samples} samples of the data",
        )

    def _missing(self, reference: Reference, wanted: Arrays | None) -> Iterator[str]:
        if wanted is None:
            yield NO_FLOAT
        if self._network.coded & self._network.constants.keys() and not reference.known:
            yield NO_WEIGHTS

    def _reference(self, batch: Batch, wanted: Arrays | None) -> tuple[Reference, Arrays]:
        """The deployed operations in float, with every tensor inside: with the float weights if they make the outputs
        that are wanted."""
        if self._plain is not None and wanted is not None and self._plain.parameters:
            reference = Reference(self._network, self._plain.parameters)
            outputs, inside = reference.run_and_show(batch.inputs)
            if self._plain.is_computed_by(outputs, wanted):
                return reference, inside
        reference = Reference(self._network, {})
        return reference, reference.run_and_show(batch.inputs)[1]

    def _some(self, batch: Batch) -> Batch:
        """The first samples, so few that the tensors inside fit into memory."""
        ports = self._network.inputs.values()
        if not all(port.shape and isinstance(port.shape[0], str) for port in ports):
            return batch
        sizes = [
            int(np.prod([1 if isinstance(size, str) else size for size in self._network.shapes[name]]))
            for op in self._network.ops
            for name in op.outputs
            if name in self._network.shapes
        ]
        count = max(1, min(_MOST_SAMPLES, _MOST_ELEMENTS // max(sum(sizes), 1)))
        inputs = {name: array[:count] for name, array in batch.inputs.items()}
        return next(unpack_batches([tuple(inputs.values())], self._network.inputs, self._positions))

    def _alone(self, reference: Reference, inputs: Arrays, inside: Arrays) -> dict[str, float | None]:
        """Those first whose operands their grids change most, for a large network is not tried to its end."""

        def worst(op: Op) -> float:
            losses = [
                sqnr(inside[read.tensor], _on_grid(inside[read.tensor], read.encoding))
                for read in op.reads
                if read.encoding is not None and read.tensor in inside
            ]
            return min((loss for loss in losses if loss is not None), default=np.inf)

        return reference.alone(inputs, sorted(quantized_operations(self._network), key=worst))

    def _measured(self, held: TensorSummary, reference: Reference, inside: Arrays, own: Arrays) -> TensorSummary:
        encoding = next(one for one in self._network.encodings(held.name) if one is not None)
        encoding = replace(encoding, qmin=held.qmin, qmax=held.qmax)
        if held.role == "weight":
            if held.name not in reference.known:
                return held
            real, made, encoding = thinned(encoding, reference.constants[held.name], reference.deployed[held.name])
            codes: Array | None = encoding.quantize(made)
        else:
            if held.name not in inside:
                return held
            real, shown = inside[held.name], own.get(held.name)
            made, codes = _on_grid(real, encoding), None if shown is None or shown.dtype.kind == "f" else shown
        drawn = histogram(real, encoding, of="float values", codes=codes)
        return replace(held, sqnr=sqnr(real, made), histogram=drawn or held.histogram)

    def _result(self, node: Node, inside: Arrays, own: Arrays) -> float | None:
        """What it leads to, of the twin against the float network."""
        name = node.result
        if name not in inside or name not in own or inside[name].size != own[name].size:
            return None
        made = own[name]
        if made.dtype.kind != "f":
            encoding = self._encodings.get(name)
            if encoding is None or inside[name].dtype.kind != "f":
                return None
            made = encoding.dequantize(made)
        return sqnr(inside[name], made)


def _on_grid(values: Array, encoding: Encoding | None) -> Array:
    return values if encoding is None else encoding.dequantize(encoding.quantize(np.nan_to_num(values)))


def _differences(node: Node, verdict: Verdict) -> dict[str, tuple[int, int, float, str]]:
    return {
        found.what: (found.differing, found.elements, found.most, found.unit)
        for found in verdict.tensors
        if found.tensor in (node.result, *node.outputs)
    }
