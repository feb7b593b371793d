"""ExecuTorch: runs `model.pte`, whose quantized operations are XNNPACK's."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, BinaryIO, ClassVar, cast

import numpy as np
import numpy.typing as npt

from detent.errors import EngineError
from detent.files import temporary_folder
from detent.ir import Network, Op, Operand, Output, Package, Port, sole_float_reader
from detent.processes import how_it_ended, python_command
from detent.targets.base import Engine, Placement
from detent.targets.base.engine import Arrays
from detent.targets.base.ports import given
from detent.targets.executorch import worker as executorch_worker
from detent.targets.executorch.graph import rounds_tokens
from detent.targets.executorch.program import PLACES_FILE, PTE_FILE, lower_executorch

__all__ = ["ExecuTorch", "ExecuTorch8da4w"]

Places = Mapping[str, tuple[str, str]]


class ExecuTorch(Engine):
    """A .pte file has fixed sizes: batches run one sample at a time."""

    name: ClassVar[str] = "executorch"
    extra: ClassVar[str | None] = "executorch"
    arithmetic = "executorch"
    rounds_tokens: ClassVar[bool] = False

    def __init__(self, content: bytes, graph: Network, places: Places, threads: int):
        self.require()
        self._graph, self._places, self._threads = graph, places, threads
        self._open: ExecuTorch | None = None
        self._held = contextlib.ExitStack()
        folder = self._held.enter_context(temporary_folder())
        file = folder / PTE_FILE
        file.write_bytes(content)
        # stderr to a file: ExecuTorch says there what it does, and why it fails.
        self._said = (folder / "said.txt").open("w+b")
        self._worker = subprocess.Popen(
            python_command(f"from {executorch_worker.__name__} import main; main()", str(file), str(threads)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        self._answer()

    def close(self) -> None:
        """End the worker."""
        if self._open is not None:
            self._open.close()
        for stream in (self._worker.stdin, self._worker.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._worker.kill()  # it has nothing to save, and may be inside a network that does not end
        self._worker.wait()
        self._said.close()
        self._held.close()

    def __del__(self) -> None:
        if hasattr(self, "_worker") and not self._said.closed:
            self.close()

    def _answer(self) -> list[npt.NDArray[Any]]:
        answer = executorch_worker.receive(cast("BinaryIO", self._worker.stdout))
        if answer is None:
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip().splitlines()
            found = f"ExecuTorch ended ({how_it_ended(self._worker.wait())}): {said[-1] if said else 'no word'}"
            raise EngineError("run a .pte file", found, "deploy it again")
        return answer

    @classmethod
    def version(cls) -> str | None:
        try:
            return importlib.metadata.version("executorch")
        except importlib.metadata.PackageNotFoundError:
            return None

    @classmethod
    def load(cls, package: Package, *, threads: int = 1, as_float: bool = False) -> ExecuTorch:
        cls.require()
        if as_float:
            content, places = lower_executorch(package.graph, as_float=True)
        else:
            content = package.path(PTE_FILE).read_bytes()
            places = json.loads(package.path(PLACES_FILE).read_text())
        return cls(content, package.graph, places, threads)

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        ports = self._graph.inputs
        arrays = given(ports, inputs, engine=self.name)
        sizes = [len(arrays[name]) for name, port in ports.items() if _has_batch(port)]
        if not sizes:
            return self._sample(arrays)
        samples = [self._sample(self._one(arrays, index)) for index in range(sizes[0])]
        return {
            output.name: np.concatenate([sample[output.name] for sample in samples], self._batch_axis(output.read))
            for output in self._graph.outputs
        }

    def tensors(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Tensors of the same network lowered once more with more outputs, if all of it runs where it runs without
        them: every tensor that is on a grid, as codes."""
        if self._open is None:
            graph = _with_all_shown(self._graph, tokens_rounded=self.rounds_tokens)
            content, places = lower_executorch(graph, rounds_tokens=self.rounds_tokens)
            self._open = type(self)(content, graph, places, self._threads)
        if any(tuple(place) != tuple(self._places[name]) for name, place in self._open._places.items()):
            return {}
        found = self._open.run(inputs)
        grids = {output.name: output.read.encoding for output in self._open._graph.outputs}
        return {
            name: values if (grid := grids[name]) is None else grid.quantize(values) for name, values in found.items()
        }

    def explain(self) -> list[Placement]:
        found = []
        for name, (kind, place) in self._places.items():
            ran, _, why = place.partition(" ")
            assert ran in ("integer", "float", "folded")
            found.append(Placement(name, kind, ran, f"it runs {why}" if why else ""))  # type: ignore[arg-type]
        return found

    def _one(self, inputs: Arrays, index: int) -> dict[str, npt.NDArray[Any]]:
        return {
            name: np.array(inputs[name][index : index + 1] if _has_batch(port) else inputs[name])
            for name, port in self._graph.inputs.items()
        }

    def _batch_axis(self, read: Operand) -> int:
        """Which axis of a tensor samples are put together along: the one of a free size."""
        free = [axis for axis, size in enumerate(self._graph.shapes.get(read.tensor, ())) if isinstance(size, str)]
        return free[0] if free else 0

    def _sample(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        executorch_worker.send(cast("BinaryIO", self._worker.stdin), list(inputs.values()))
        return dict(zip((output.name for output in self._graph.outputs), self._answer(), strict=True))


class ExecuTorch8da4w(ExecuTorch):
    """Layers round each token to 8 bits while they run."""

    name: ClassVar[str] = "executorch_8da4w"
    arithmetic = "executorch_8da4w"
    rounds_tokens: ClassVar[bool] = True


def _with_all_shown(graph: Network, *, tokens_rounded: bool) -> Network:
    """The same network that gives every tensor which is read on one grid, what layers take in and give where the
    engine rounds tokens, and its outputs, by their names inside."""
    reads = [read for op in graph.ops for read in op.inputs if read is not None and read.tensor not in graph.constants]
    shown = {
        read.tensor: read for read in reads if read.encoding is not None and graph.grid_of(read.tensor) is not None
    }
    for op in graph.ops:
        if tokens_rounded and rounds_tokens(graph, op):
            last = _with_bias(graph, op)
            shown |= {read.tensor: read for read in (op.inputs[0], Operand(last.outputs[0])) if read is not None}
    given = {output.read.tensor: output.read for output in graph.outputs}
    outputs = tuple(Output(tensor, read) for tensor, read in {**shown, **given}.items())
    return replace(graph, outputs=outputs)


def _with_bias(graph: Network, op: Op) -> Op:
    """The last operation of a layer: the sum with its bias is a part of the kernel."""
    after = sole_float_reader(graph, op.outputs[0])
    adds = after is not None and after.type == "Add" and any(graph.is_constant(read) for read in after.inputs)
    return after if adds and after is not None else op


def _has_batch(port: Port) -> bool:
    return bool(port.shape) and isinstance(port.shape[0], str)
