"""Compares simulation, twin and engine, end to end and operation by operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from detent.errors import DeployError, DetentError, EngineError, RangeError, RunError
from detent.graph import PreparedModel
from detent.ir import Package
from detent.ir.torch_module import FloatGrids, TorchGraph
from detent.progress import count_of, progress
from detent.rewrites.dequantize_looked_up_rows import with_whole_tables
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.base import Engine
from detent.targets.base.latency import compare as compare_latency
from detent.targets.engines import ENGINES
from detent.twin import Arithmetic, OnnxSpec, Twin
from detent.verification.against_engine import AgainstEngine
from detent.verification.against_file import AgainstFile
from detent.verification.against_twin import AgainstTwin
from detent.verification.batches import Batch, unpack_batches
from detent.verification.causes import causes
from detent.verification.ends import Ends
from detent.verification.files import disagreements
from detent.verification.on_cpus import OnCpus, group_kinds, on_others, require_known, untrue
from detent.verification.parameters import changed_parameters
from detent.verification.second_size import double_free_sizes
from detent.verification.simulation import Simulated, Simulation
from detent.verification.vendor_files import unchecked_files, vendor_disagreements
from detent.verification.verdict import Difference, Speed, Verdict

__all__ = ["verify"]

Array = npt.NDArray[Any]


def verify(
    package: Package,
    batches: Iterable[Any],
    *,
    prepared: PreparedModel | None = None,
    engine: str | None = None,
    arithmetic: str | None = None,
    tensors: bool = True,
    latency: bool = True,
    cpus: Sequence[str] = (),
) -> Verdict:
    """Compare on `batches` (tensors, tuples of inputs and optionally labels, or dicts).

    `engine` is the backend's unless named; where it is not installed the verdict says so. `arithmetic` is that of the
    engine unless named. `prepared` is the model the package came from; without it the QDQ file itself, computed in
    float as ONNX says, stands in for the simulation. `tensors=False` looks inside only where outputs of twin and engine
    differ, to judge whether what is claimed explains it. `cpus` are kinds of CPU (`detent.cpus`) of which the twin
    predicts what they compute; without them it says, on a few samples, whether other kinds agree with this one.
    """
    manifest = package.manifest
    simulation = None if prepared is None else Simulation(prepared, manifest["mode"], manifest.get("names"))
    name = arithmetic or _arithmetic_of(engine, package)
    computes = ARITHMETICS[name]()
    require_known(cpus, name)
    planned = with_whole_tables(package.graph)
    wrong = list(disagreements(planned, package.manifest))
    if simulation is not None:
        wrong += changed_parameters(planned, simulation.parameters())
    beside = list(vendor_disagreements(package))
    try:
        verification = _Verification(package, simulation, engine, name, wrong, beside)
        return verification.run(batches, tensors=tensors, latency=latency, cpus=cpus)
    except _FileDoesNotRunError as error:
        found = f"model.onnx does not run on what the model runs on: {error.asked}: {error.found}"
        return _not_run(package, computes, [*wrong, *beside, found], error, simulated=True)
    except (DeployError, EngineError, RunError) as error:
        if not wrong and not beside:
            raise
        # The file is known to be wrong, so it need not run.
        return _not_run(package, computes, [*wrong, *beside], error, simulated=simulation is not None)


def _arithmetic_of(engine: str | None, package: Package) -> str:
    """The backend's arithmetic, or that of another engine if the user names one."""
    own = str(package.manifest["arithmetic"])
    if engine is None or engine == package.manifest["engine"]:
        return own
    return ENGINES[engine].arithmetic or own


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
        cpu=arithmetic.cpu.name,
    )


class _FileDoesNotRunError(RunError):
    """The model runs on these inputs, but the file does not."""


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
        self.notes: list[str] = [*map(str, self.manifest["notes"]), *unchecked_files(package)]
        self.twin = Twin(package.graph, ARITHMETICS[arithmetic]())
        self.spec = Twin(package.graph, OnnxSpec())
        self.simulation = simulation
        self.first = "file" if self.simulation is None else "simulation"
        self.positions = len(package.graph.inputs) if simulation is None else simulation.positions
        self.engine = self._load(engine, arithmetic)
        self.against_file = AgainstFile(self.spec, self.manifest)
        self.against_twin, self.against_engine = AgainstTwin(self.twin), AgainstEngine(self.twin)
        self.outputs = {output.name: output.read for output in package.graph.outputs}
        self.ends = Ends(self.first, {name: read.encoding for name, read in self.outputs.items()})
        self.looked_inside = False

    def _load(self, asked: str | None, arithmetic: str) -> Engine | None:
        name = asked or self.manifest["engine"]
        if name is None:
            self.notes.append(f"there is no engine of {self.manifest['backend']} to run here")
            return None
        kind = ENGINES[name]
        if asked is None and kind.version() is None:
            self.notes.append(f"{name} is not installed ({kind.installation()}): it was not run")
            return None
        kind.require()
        return kind.load(self.package, **kind.options_for(arithmetic))

    def run(self, batches: Iterable[Any], *, tensors: bool, latency: bool, cpus: Sequence[str]) -> Verdict:
        samples, first, speed = 0, None, None
        asked = OnCpus(self.twin, {name: (name,) for name in cpus})
        with progress("verifying", count_of(batches)) as bar:
            for batch in unpack_batches(batches, self.package.graph.inputs, self.positions):
                if first is None:
                    first = batch.inputs
                    # Before there is anything to compare: the float model needs the memory.
                    speed = self._speed(first) if latency and self.engine is not None else None
                samples += len(next(iter(batch.inputs.values())))
                asked.add(batch.inputs, self._run_file(batch, tensors=tensors), batch.labels)
                bar.advance()
        if first is None:
            raise RangeError("verify on no data", "the batches are empty", "give at least one batch")
        samples += self._compare_second_size(first, tensors=tensors)
        with progress("comparing kinds of CPU"):
            others = on_others(self.twin, self._some(first, 16))
        sides = (self.against_file, self.against_twin, self.against_engine)
        within = tuple(difference for side in sides for difference in side.tally.differences)
        placements = [] if self.engine is None else self.engine.explain()
        found = Verdict(
            backend=self.manifest["backend"],
            engine=self._engine_name(),
            arithmetic=self.twin.arithmetic.name,
            claim=self.twin.arithmetic.claim,
            samples=samples,
            outputs=self.ends.differences,
            tensors=within if self.looked_inside or tensors else (),
            problems=tuple(self._problems(within)) or tuple(self._unequal()),
            placements=tuple(asdict(placed) for placed in placements),
            accuracy=self.ends.accuracy,
            speed=speed,
            notes=tuple(self.notes),
            simulated=self.simulation is not None,
            unsaid=tuple(t["tensor"] for t in self.manifest["tensors"] if t["scheme"]["grid"]["kind"] != "int"),
            cpu=self.twin.arithmetic.cpu.name,
            others=others,
            predicted=asked.found,
            sqnr={name: float(value) for name, value in self.manifest.get("sqnr", {}).items()},
            exact_on=None if "cpus" not in self.manifest else tuple(self.manifest["cpus"]),
        )
        wrong = (*found.problems, *untrue(found))
        return replace(found, problems=wrong, causes=tuple(causes(found, self.twin, self._computes_as())))

    def _computes_as(self) -> str | None:
        """The kind of CPU whose twin reproduces the engine, if the twin of this CPU does not."""
        if self.against_engine.first_defect is None:
            return None
        inputs, shown, outputs = self.against_engine.first_defect
        for name in group_kinds(self.twin):
            other = AgainstEngine(Twin(self.twin.graph, type(self.twin.arithmetic)(name)))
            other.add(inputs, shown, outputs, {})
            if not other.tally.impossible:
                return name
        return None

    def _some(self, inputs: Mapping[str, Array], most: int) -> dict[str, Array]:
        """The first samples, if the network accepts any number of them."""
        free = [isinstance(port.shape[0], str) for port in self.package.graph.inputs.values() if port.shape]
        return {name: array[:most] for name, array in inputs.items()} if all(free) else dict(inputs)

    def _engine_name(self) -> str | None:
        return None if self.engine is None else f"{self.engine.name} {type(self.engine).version()}"

    def _run_file(self, batch: Batch, *, tensors: bool) -> dict[str, Array]:
        """Like `_compare`; if the model runs and the file does not, the file is at fault."""
        try:
            return self._compare(batch, tensors=tensors)
        except RunError as error:
            if self.simulation is not None:
                self.simulation.run(batch.arguments)
                raise _FileDoesNotRunError(error.asked, error.found, "deploy the model again") from error
            shapes = ", ".join(f"{name} {array.shape}" for name, array in batch.inputs.items())
            to_do = f"if the network takes {shapes}, the file is wrong: deploy it again; else give inputs it takes"
            raise RunError(error.asked, error.found, to_do) from error

    def _compare_second_size(self, inputs: Mapping[str, Array], *, tensors: bool) -> int:
        """Compare on a sample of another size, where sizes other than the batch are free and the network and the engine
        take it; returns how many samples these are."""
        other = double_free_sizes(inputs, self.package.graph.inputs)
        if other is None or self.positions != len(inputs):
            return 0
        shapes = ", ".join(f"{name} {array.shape}" for name, array in other.items())
        batch = next(unpack_batches([tuple(other.values())], self.package.graph.inputs, self.positions))
        try:
            if self.simulation is not None:
                self.simulation.run(batch.arguments)
            else:
                self.spec.run(other)
            if self.engine is not None:
                self.engine.run(other)
        except (RunError, EngineError) as error:
            self.notes.append(f"not compared on a second size ({shapes}): {error.asked}: {error.found}")
            return 0
        self._run_file(batch, tensors=tensors)
        return 1

    def _compare(self, batch: Batch, *, tensors: bool) -> dict[str, Array]:
        """Compare all sides on one batch; returns the outputs of the twin."""
        simulated = None if self.simulation is None else self.simulation.run(batch.arguments)
        computed, own = self.twin.run_and_show(batch.inputs) if tensors else (self.twin.run(batch.inputs), {})
        results = {"twin": computed, self.first: self._first(batch, simulated)}
        if self.engine is not None:
            results["engine"] = self.engine.run(batch.inputs)
        self.ends.add(results, batch.labels)
        real = not any(output.as_codes for output in self.package.graph.outputs)
        if real and not all(np.isfinite(value).all() for value in computed.values()):
            self.ends.compare_with_float(results, self._float(batch))
        if self.engine is not None:
            self._compare_engine(batch, results, own, tensors=tensors)
        del own
        if simulated is not None and tensors:
            given = self.against_file.given(simulated)
            self.against_file.add(batch.inputs, simulated, given)
            self.against_twin.add(batch.inputs, simulated, given)
        return computed

    def _first(self, batch: Batch, simulated: Simulated | None) -> dict[str, Array]:
        if simulated is None:
            return self.spec.run(batch.inputs)
        return dict(zip(self.outputs, simulated.outputs, strict=True))

    def _float(self, batch: Batch) -> dict[str, Array]:
        """The outputs without any rounding: of the model, or of the file with dequantized weights."""
        if self.simulation is not None:
            return dict(zip(self.outputs, self.simulation.run_float(batch.arguments), strict=True))
        plain = TorchGraph(self.package.graph, FloatGrids()).eval()
        with torch.no_grad():
            made = plain(*(torch.from_numpy(np.array(array)) for array in batch.inputs.values()))
        return {name: value.numpy() for name, value in zip(self.outputs, made, strict=True)}

    def _compare_engine(
        self, batch: Batch, results: Mapping[str, Mapping[str, Array]], own: Mapping[str, Array], *, tensors: bool
    ) -> None:
        """Compares each operation starting from the engine's values, so that a single difference does not spread.

        `own` are the twin's intermediate tensors. `tensors=False` skips this if all outputs are equal. If one is not,
        only the operations can tell whether the claim explains it: end to end, allowed differences spread and hide
        others.
        """
        assert self.engine is not None
        twin, engine = (list(self._made(results[who])) for who in ("twin", "engine"))
        equal = all(
            np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for (_, a), (_, b) in zip(twin, engine, strict=True)
        )
        if not tensors and (equal or self.against_engine.tally.impossible):
            return
        self.looked_inside = True
        seen = self.engine.tensors(batch.inputs)
        if not seen and not any("cannot show" in note for note in self.notes):
            self.notes.append(f"{self.engine.name} cannot show the tensors inside: only outputs were compared")
        self.against_engine.add(batch.inputs, seen, engine, own)

    def _made(self, outputs: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """The tensors that outputs are, as codes where they are on a grid."""
        for name, read in self.outputs.items():
            made = outputs[name]
            real = np.issubdtype(made.dtype, np.floating)
            # No grid has a code for NaN: `Ends` finds it.
            yield read.tensor, read.encoding.quantize(np.nan_to_num(made)) if read.encoding and real else made

    def _problems(self, within: tuple[Difference, ...]) -> Iterator[str]:
        yield from self.wrong
        for tensor in self.against_file.without_grid:
            yield f"{tensor}: it is quantized in the model, and float in model.onnx"
        # Operation by operation, or else a difference in the first layer is counted in all that follow.
        # What the target does otherwise than simulated is not a fault of the file or of the twin: the line says it.
        yield from (str(found) for found in within if found.impossible and found.what != self.against_twin.tally.what)
        yield from self.ends.problems()
        yield from self.beside

    def _unequal(self) -> Iterator[str]:
        """From end to end, where no operation alone was found to differ and equality is claimed of all of them."""
        if self.against_engine.claims_equality:
            outputs = self.ends.differences
            yield from (str(found) for found in outputs if found.what == "twin vs engine" and not found.equal)

    def _speed(self, inputs: Mapping[str, Array]) -> Speed | None:
        assert self.engine is not None
        kind, one = type(self.engine), self._some(inputs, 1)
        try:
            plain = kind.load(self.package, as_float=True)
            measured = compare_latency(kind.fastest(self.package), plain, one)
        except EngineError as error:
            self.notes.append(f"latency was not measured: {error.found}")
            return None
        return Speed(measured.int8_ms, measured.float_ms, measured.int8_median_ms, measured.float_median_ms)
