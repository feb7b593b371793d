"""Simulation, twin and real engine side by side, end to end and operation by operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.backends import BACKENDS
from detent.deploy import Package
from detent.engines import ENGINES, Engine, compare_latency
from detent.errors import DeployError, DetentError, EngineError, RangeError, RunError
from detent.twin import ARITHMETICS, Arithmetic, OnnxSpec, Twin
from detent.verification.against_engine import AgainstEngine
from detent.verification.against_file import AgainstFile
from detent.verification.against_twin import AgainstTwin
from detent.verification.batches import Batch, require_classes, taken_apart
from detent.verification.differences import Tally
from detent.verification.files import disagreements
from detent.verification.parameters import changed_parameters
from detent.verification.simulation import Simulated, Simulation
from detent.verification.vendor_files import vendor_disagreements
from detent.verification.verdict import Accuracy, Difference, Speed, Verdict

__all__ = ["verify"]

Array = npt.NDArray[Any]


def verify(
    package: Package,
    batches: Iterable[Any],
    *,
    prepared: Any = None,
    engine: str | None = None,
    arithmetic: str | None = None,
    tensors: bool = True,
    latency: bool = True,
) -> Verdict:
    """Compare on `batches` (tensors, tuples of inputs with perhaps labels behind them, or dicts).

    `engine` is the backend's unless named; where it is not installed the verdict says so. `arithmetic` is that of the
    engine unless named. `prepared` is the model the package came from; without it the QDQ file itself, computed in
    float as ONNX says, stands in for the simulation. `tensors=False` leaves out the comparison inside.
    """
    manifest = package.manifest
    simulation = None if prepared is None else Simulation(prepared, manifest["mode"], manifest.get("names"))
    name = arithmetic or _arithmetic_of(engine, package)
    computes = ARITHMETICS[name]()
    wrong = list(disagreements(package.graph, package.manifest))
    if simulation is not None:
        wrong += changed_parameters(package.graph, simulation.parameters())
    beside = list(vendor_disagreements(package))
    try:
        verification = _Verification(package, simulation, engine, name, wrong, beside)
        return verification.run(batches, tensors=tensors, latency=latency)
    except (DeployError, EngineError, RunError) as error:
        if not wrong and not beside:
            raise
        # No wonder that it does not run: what is wrong with the file is known.
        return _not_run(package, computes, [*wrong, *beside], error, simulated=simulation is not None)


def _arithmetic_of(engine: str | None, package: Package) -> str:
    """The backend's own, or that of another engine than the backend's own which is to run the file."""
    own, asked = str(package.manifest["arithmetic"]), engine or package.manifest["engine"]
    others = [backend.arithmetic for backend in BACKENDS.values() if backend.engine == asked]
    return own if asked == package.manifest["engine"] or not others else others[0]


def _not_run(
    package: Package, arithmetic: Arithmetic, wrong: Iterable[str], error: DetentError, *, simulated: bool
) -> Verdict:
    return Verdict(
        backend=package.manifest["backend"],
        engine=None,
        arithmetic=arithmetic.name,
        claim=arithmetic.claim,
        samples=0,
        outputs=(),
        tensors=(),
        problems=tuple(wrong),
        notes=(f"nothing was computed: {error.asked}: {error.found}",),
        simulated=simulated,
    )


class _Verification:
    """One run of `verify`. `wrong` is what was found in `model.onnx` without running anything, `beside` in other files,
    which are wrong where it is."""

    def __init__(
        self,
        package: Package,
        simulation: Simulation | None,
        engine: str | None,
        arithmetic: str,
        wrong: Iterable[str],
        beside: Iterable[str],
    ):
        self.package, self.manifest = package, package.manifest
        self.wrong, self.beside = tuple(wrong), tuple(beside)
        self.notes: list[str] = [str(note) for note in self.manifest["notes"]]
        self.twin = Twin(package.graph, ARITHMETICS[arithmetic]())
        self.spec = Twin(package.graph, OnnxSpec())
        self.simulation = simulation
        self.first = "file" if self.simulation is None else "simulation"
        self.positions = len(package.graph.inputs) if simulation is None else simulation.positions
        self.engine = self._load(engine, arithmetic)
        self.against_file = AgainstFile(self.spec, self.manifest)
        self.against_twin, self.against_engine = AgainstTwin(self.twin), AgainstEngine(self.twin)
        self.outputs = {output.name: output.read for output in package.graph.outputs}

    def _load(self, asked: str | None, arithmetic: str) -> Engine | None:
        name = asked or self.manifest["engine"]
        if name is None:
            self.notes.append(f"there is no engine of {self.manifest['backend']} to run here")
            return None
        kind = ENGINES[name]
        if asked is None and kind.version() is None:
            self.notes.append(f"{name} is not installed (pip install 'detent[{kind.extra}]'): it was not run")
            return None
        kind.require()
        return kind.load(self.package, **kind.options_for(arithmetic))

    def run(self, batches: Iterable[Any], *, tensors: bool, latency: bool) -> Verdict:
        ends = {what: Tally(what) for what in (f"{self.first} vs twin", "twin vs engine", f"{self.first} vs engine")}
        hits: dict[str, list[float]] = {}
        samples, first = 0, None
        for batch in taken_apart(batches, self.package.graph.inputs, self.positions):
            first = batch.inputs if first is None else first
            samples += len(next(iter(batch.inputs.values())))
            simulated = None if self.simulation is None else self.simulation.run(batch.arguments)
            computed, inside = self.twin.run_and_show(batch.inputs) if tensors else (self.twin.run(batch.inputs), {})
            results = self._end_to_end(batch, ends, simulated, computed)
            _score(results, batch.labels, hits)
            self._one_by_one(batch, results, simulated, inside, tensors=tensors)
        if first is None:
            raise RangeError("verify on no data", "the batches are empty", "give at least one batch")
        outputs = tuple(d for tally in ends.values() for d in tally.differences)
        sides = (self.against_file, self.against_twin, self.against_engine)
        within = tuple(difference for side in sides for difference in side.tally.differences)
        placements = [] if self.engine is None else self.engine.explain()
        return Verdict(
            backend=self.manifest["backend"],
            engine=self._engine_name(),
            arithmetic=self.twin.arithmetic.name,
            claim=self.twin.arithmetic.claim,
            samples=samples,
            outputs=outputs,
            tensors=within if tensors else (),
            problems=tuple(self._problems(within)) or tuple(self._unequal(outputs)),
            placements=tuple(asdict(placed) for placed in placements),
            accuracy=_accuracy(hits, self.first),
            speed=self._speed(first) if latency and self.engine is not None else None,
            notes=tuple(self.notes),
            simulated=self.simulation is not None,
            unsaid=tuple(t["tensor"] for t in self.manifest["tensors"] if t["scheme"]["grid"]["kind"] != "int"),
        )

    def _engine_name(self) -> str | None:
        return None if self.engine is None else f"{self.engine.name} {type(self.engine).version()}"

    def _end_to_end(
        self, batch: Batch, ends: Mapping[str, Tally], simulated: Simulated | None, computed: dict[str, Array]
    ) -> dict[str, dict[str, Array]]:
        results = {"twin": computed}
        if simulated is not None:
            results[self.first] = dict(zip(self.outputs, simulated.outputs, strict=True))
        else:
            results[self.first] = self.spec.run(batch.inputs)
        if self.engine is not None:
            results["engine"] = self.engine.run(batch.inputs)
        for what, tally in ends.items():
            ours, theirs = what.split(" vs ")
            if ours in results and theirs in results:
                for name, read in self.outputs.items():
                    tally.compare(name, results[ours][name], results[theirs][name], read.encoding)
        return results

    def _one_by_one(
        self,
        batch: Batch,
        results: Mapping[str, Mapping[str, Array]],
        simulated: Simulated | None,
        inside: Mapping[str, Array],
        *,
        tensors: bool,
    ) -> None:
        """Each operation from the values the other side had before it, so that one flip does not spread. `inside` is
        what the twin has of its own."""
        if self.engine is not None:
            seen = dict(self.engine.tensors(batch.inputs)) if tensors else {}
            if tensors and not seen and not any("cannot show" in note for note in self.notes):
                self.notes.append(f"{self.engine.name} cannot show the tensors inside: only outputs were compared")
            self.against_engine.add(batch.inputs, seen, list(self._made(results["engine"])), inside)
        if simulated is not None and tensors:
            given = self.against_file.given(simulated)
            self.against_file.add(batch.inputs, simulated, given)
            self.against_twin.add(batch.inputs, simulated, given)

    def _made(self, outputs: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """The tensors that outputs are, as codes where they are on a grid."""
        for name, read in self.outputs.items():
            made = outputs[name]
            real = np.issubdtype(made.dtype, np.floating)
            yield read.tensor, made if read.encoding is None or not real else read.encoding.quantize(made)

    def _problems(self, within: tuple[Difference, ...]) -> Iterator[str]:
        yield from self.wrong
        for tensor in self.against_file.without_grid:
            yield f"{tensor}: it is quantized in the model, and float in model.onnx"
        # Operation by operation, or else a difference in the first layer is counted in all that follow.
        # What the target does otherwise than simulated is not a fault of the file or of the twin: the line says it.
        yield from (str(found) for found in within if found.impossible and found.what != self.against_twin.tally.what)
        yield from self.beside

    def _unequal(self, outputs: tuple[Difference, ...]) -> Iterator[str]:
        """From end to end, where no operation alone was found to differ and equality is claimed of all of them."""
        if self.against_engine.claims_equality:
            yield from (str(found) for found in outputs if found.what == "twin vs engine" and not found.equal)

    def _speed(self, inputs: Mapping[str, Array]) -> Speed | None:
        assert self.engine is not None
        free = [isinstance(port.shape[0], str) for port in self.package.graph.inputs.values() if port.shape]
        one = {name: array[:1] for name, array in inputs.items()} if all(free) else dict(inputs)
        try:
            plain = type(self.engine).load(self.package, as_float=True)
            measured = compare_latency(type(self.engine).fastest(self.package), plain, one)
        except EngineError as error:
            self.notes.append(f"latency was not measured: {error.found}")
            return None
        return Speed(measured.int8_ms, measured.float_ms)


def _score(results: Mapping[str, Mapping[str, Array]], labels: Array | None, hits: dict[str, list[float]]) -> None:
    if labels is None:
        return
    for who, outputs in results.items():
        scores = next(iter(outputs.values())).reshape(len(labels), -1)
        require_classes(labels, scores.shape[1])
        right = scores.argmax(1) == labels.reshape(-1)
        hits.setdefault(who, []).extend(right.astype(float).tolist())


def _accuracy(hits: Mapping[str, list[float]], first: str) -> Accuracy | None:
    if not hits:
        return None
    shares = {who: 100 * float(np.mean(seen)) for who, seen in hits.items()}
    return Accuracy(len(hits["twin"]), shares.get(first), shares["twin"], shares.get("engine"))
