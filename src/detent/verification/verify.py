"""Simulation, twin and real engine side by side, end to end and operation by operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.deploy import Package
from detent.engines import ENGINES, Engine, compare_latency
from detent.errors import EngineError, RangeError
from detent.numerics import Rounding
from detent.twin import ARITHMETICS, Arithmetic, Literal, Twin
from detent.verification.batches import Batch, taken_apart
from detent.verification.differences import Tally, encoding_by_tensor
from detent.verification.files import disagreements
from detent.verification.simulation import Simulation
from detent.verification.verdict import Accuracy, Difference, Speed, Verdict

__all__ = ["verify"]

Array = npt.NDArray[Any]

_SIMULATED_RATE = 1e-3
"""How often one operation of the float simulation may round the other way than the file says: 3e-6 was measured; a
wrong rounding gives a tenth or more."""

_TIED_RATE = 2e-2
"""The same of a bilinear resize: by whole factors it gives sixteenths of steps, so that a number in 16 lies between two
codes, and the order of a sum decides. 0.0075 was measured; ties rounded the other way would be 0.03."""

_IN_FLOAT = 1 / 128
"""Of the largest value: one step of 8 bits."""

_FLOAT_RATE = 1e-2
"""How many numbers of one float operation of the simulation may differ from what the file gives for the same inputs:
none did in 48 networks; one code that was rounded the other way before it would reach a few of them."""

_SPREAD = 16
"""How many LSB an output may be off where equality is not claimed and the engine does not show what is inside: flips
that spread were seen to add up to 8."""


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

    `engine` is the backend's unless named; where it is not installed the verdict says so. `arithmetic` is the
    backend's unless named. `prepared` is the model the package came from; without it the QDQ file itself, computed in
    float as ONNX says, stands in for the simulation. `tensors=False` leaves out the comparison inside.
    """
    return _Verification(package, prepared, engine, arithmetic).run(batches, tensors=tensors, latency=latency)


class _Verification:
    """One run of `verify`."""

    def __init__(self, package: Package, prepared: Any, engine: str | None, arithmetic: str | None):
        self.package, self.manifest = package, package.manifest
        self.notes: list[str] = [str(note) for note in self.manifest["notes"]]
        name = arithmetic or self.manifest["arithmetic"]
        self.twin = Twin(package.graph, _arithmetic(name))
        self.spec = Twin(package.graph, _arithmetic("onnx_spec"))
        self.simulation = None if prepared is None else Simulation(prepared, self.manifest.get("mode"))
        self.first = "file" if self.simulation is None else "simulation"
        self.positions = getattr(prepared, "input_count", len(package.graph.inputs))
        self.engine = self._load(engine, name)
        self.encodings = encoding_by_tensor(package.graph)
        # No claim of equality is made for operations the engine runs in float: sums have no order of their own there.
        self.computed_in_float = {
            form.tensor for step in self.twin.steps if step.ran_as == "float" for form in step.writes
        }
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
        inside = {what: Tally(what) for what in ("twin vs engine", "simulation vs file")}
        hits: dict[str, list[float]] = {}
        samples, first = 0, None
        for batch in taken_apart(batches, self.package.graph.inputs, self.positions):
            first = batch.inputs if first is None else first
            samples += len(next(iter(batch.inputs.values())))
            simulated = None if self.simulation is None else self.simulation.run(batch.arguments)
            results = self._end_to_end(batch, ends, None if simulated is None else simulated[0])
            _score(results, batch.labels, hits)
            if tensors:
                self._inside(batch, inside, None if simulated is None else simulated[1])
        if first is None:
            raise RangeError("verify on no data", "the batches are empty", "give at least one batch")
        outputs = tuple(d for tally in ends.values() for d in tally.differences)
        within = tuple(d for tally in inside.values() for d in tally.differences)
        placements = [] if self.engine is None else self.engine.explain()
        return Verdict(
            backend=self.manifest["backend"],
            engine=self._engine_name(),
            arithmetic=self.twin.arithmetic.name,
            claim=self.twin.arithmetic.claim,
            samples=samples,
            outputs=outputs,
            tensors=within,
            problems=tuple(self._problems(outputs, within)),
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
        self, batch: Batch, ends: Mapping[str, Tally], simulated: list[Array] | None
    ) -> dict[str, dict[str, Array]]:
        results = {"twin": self.twin.run(batch.inputs)}
        if simulated is not None:
            results[self.first] = dict(zip(self.outputs, simulated, strict=True))
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

    def _inside(self, batch: Batch, inside: Mapping[str, Tally], values: dict[str, Array] | None) -> None:
        """Each operation from the values the other side had before it, so that one flip does not spread."""
        if self.engine is not None:
            seen = self.engine.tensors(batch.inputs)
            if seen:
                inside["twin vs engine"].compare_all(self.twin.tensors(batch.inputs, seen), seen, self.encodings)
            elif not any("cannot show" in note for note in self.notes):
                self.notes.append(f"{self.engine.name} cannot show the tensors inside: only outputs were compared")
        if values is not None:
            computed = self._of_the_file().tensors(batch.inputs, values)
            inside["simulation vs file"].compare_all(computed, values, self.encodings)

    def _of_the_file(self) -> Twin:
        """What the simulation should agree with: the file taken literally, rounded as the target rounds."""
        inside = [t for t in self.manifest["tensors"] if t["role"] == "activation" and t["op"]]
        roundings = {tensor["scheme"]["rounding"] for tensor in inside} - {"half_even"}
        return Twin(self.package.graph, Literal(Rounding(roundings.pop()))) if len(roundings) == 1 else self.spec

    def _problems(self, outputs: tuple[Difference, ...], within: tuple[Difference, ...]) -> Iterator[str]:
        yield from disagreements(self.package.graph, self.manifest)
        proven = self.twin.arithmetic.claim.startswith("equal")
        against = [found for found in within if found.what == "twin vs engine"]
        # Operation by operation, or else a difference in the first layer is counted in all that follow.
        for found in against:
            if found.most > self._allowed(found, proven) or self._too_often(found):
                yield str(found)
        equal = proven and not self.computed_in_float
        for found in outputs:
            far = not against and found.unit == "LSB" and found.most > _SPREAD
            if found.what == "twin vs engine" and ((equal and not found.equal) or far):
                yield str(found)
        # A grid that ONNX does not have (a logarithmic one) is not in the file, and real numbers are then others.
        complete = all(tensor["scheme"]["grid"]["kind"] == "int" for tensor in self.manifest["tensors"])
        for found in within:
            most, rate = (1.0, self._simulated_rate(found)) if found.unit == "LSB" else (_IN_FLOAT, _FLOAT_RATE)
            if found.what != "simulation vs file" or not (complete or found.unit == "LSB"):
                continue
            if found.most > most or (found.rate > rate and found.differing > 2):
                yield str(found)

    def _simulated_rate(self, found: Difference) -> float:
        op = self.package.graph.producer(found.tensor)
        blends = op is not None and op.type == "Resize" and op.attributes.get("mode", "nearest") == "linear"
        return _TIED_RATE if blends else _SIMULATED_RATE

    def _too_often(self, found: Difference) -> bool:
        return found.unit == "LSB" and found.differing > 2 and found.rate > self.twin.arithmetic.off_rate

    def _allowed(self, found: Difference, proven: bool) -> float:
        """How far a tensor may be off: nothing where equality is claimed, one step elsewhere."""
        in_float = found.tensor in self.computed_in_float
        if found.unit == "LSB":
            return 0 if proven and not in_float else 1
        # Real numbers: the order of a sum, or about one step of 8 bits.
        return _IN_FLOAT if in_float or not proven else 0

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


def _arithmetic(name: str) -> Arithmetic:
    return ARITHMETICS[name]()


def _score(results: Mapping[str, Mapping[str, Array]], labels: Array | None, hits: dict[str, list[float]]) -> None:
    if labels is None:
        return
    for who, outputs in results.items():
        scores = next(iter(outputs.values()))
        right = scores.reshape(len(labels), -1).argmax(1) == labels.reshape(-1)
        hits.setdefault(who, []).extend(right.astype(float).tolist())


def _accuracy(hits: Mapping[str, list[float]], first: str) -> Accuracy | None:
    if not hits:
        return None
    shares = {who: 100 * float(np.mean(seen)) for who, seen in hits.items()}
    return Accuracy(len(hits["twin"]), shares.get(first), shares["twin"], shares.get("engine"))
