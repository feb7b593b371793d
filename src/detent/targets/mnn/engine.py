"""MNN: converts the float model with its compression parameters and runs it, in a process of its own."""

from __future__ import annotations

import contextlib
import pickle
import struct
import subprocess
import sys
import weakref
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import EngineError
from detent.files import temporary_folder
from detent.ir import Encoding, Network, Package, Port, write_qdq
from detent.processes import how_it_ended
from detent.targets.base import Engine, Placement
from detent.targets.base.engine import Arrays
from detent.targets.base.ports import given
from detent.targets.mnn.compression import Compression
from detent.targets.mnn.model import mnn_network
from detent.targets.mnn.placement import kept_tensors, placements
from detent.targets.mnn.scales import MnnScales

__all__ = ["Mnn"]

Array = npt.NDArray[Any]

_WORKER = Path(__file__).with_name("worker.py")
_ON_GRID = 1e-2  # of a step: float32 rounding leaves far less, a number between two codes usually far more


class Mnn(Engine):
    """`model.float.onnx` and `model.mnn_compression.bin`, converted when they are loaded; float32 where MNN has no
    integer kernel."""

    name = "mnn"
    extra = "mnn"
    arithmetic = "mnn"

    def __init__(self, model: bytes, compression: Compression | None, graph: Network, *, threads: int = 1):
        self.require()
        self._graph = graph
        self._worker = _Worker()
        # The model is a file while the process lives: it is read again for every set of tensors that is asked for.
        held, self._threads = contextlib.ExitStack(), threads
        folder = held.enter_context(temporary_folder())
        weakref.finalize(self, held.close)
        onnx, parameters, self._mnn = (str(Path(folder, name)) for name in ("onnx", "parameters", "mnn"))
        Path(onnx).write_bytes(model)
        if compression is not None:
            Path(parameters).write_bytes(compression.message())
        named = None if compression is None else parameters
        self._worker.ask(do="convert", onnx=onnx, compression=named, mnn=self._mnn)
        self._inside: set[str] | None = None
        self._kept: list[str] | None = None
        self._as_float = compression is None
        self._placements: list[Placement] | None = None

    @classmethod
    def version(cls) -> str | None:
        try:
            return version("MNN")
        except PackageNotFoundError:
            return None

    @classmethod
    def load(cls, package: Package, *, threads: int = 1, as_float: bool = False) -> Mnn:
        cls.require()
        model = write_qdq(mnn_network(package.graph)).SerializeToString(deterministic=True)
        compression = None
        if not as_float:
            compression = Compression.from_message(package.path(".mnn_compression.bin").read_bytes())
        return cls(model, compression, package.graph, threads=threads)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        return self._run(inputs, [output.name for output in self._graph.outputs], keep=())

    def tensors(self, inputs: Arrays) -> dict[str, Array]:
        """Every tensor of the network that the converted model still has; as codes if its values are on the network's
        grid for it."""
        if self._inside is None:
            converted = self._worker.ask(do="describe", mnn=self._mnn)["model"]
            self._inside = kept_tensors(self._graph, converted) - {output.name for output in self._graph.outputs}
        wanted = sorted(self._inside)
        # What is read for an output has its name in the converted model.
        given_out = {output.name: output.read.tensor for output in self._graph.outputs}
        found = self._run(inputs, [*wanted, *given_out], keep=wanted)
        found |= {tensor: found.pop(name) for name, tensor in given_out.items()}
        # Sizes are worked out before a run, some in tensors that stay empty.
        real = {name: values for name, values in found.items() if values.dtype == np.float32 and values.size}
        for name, grid in MnnScales(self._graph).perhaps_rounded.items():
            if name in real and _is_on(grid, real[name]):
                real.pop(name)
        shown = {name: self._in_rank(name, values) for name, values in real.items()}
        ranks = {name: len(self._graph.shapes.get(name, values.shape)) for name, values in shown.items()}
        return {name: self._codes(name, values) for name, values in shown.items() if values.ndim == ranks[name]}

    def explain(self) -> list[Placement]:
        """From what MNN reports about its commands in a run."""
        if self._placements is None:
            self._load(keep=())
            zeros = {name: _zeros(port) for name, port in self._graph.inputs.items()}
            commands = self._worker.ask(do="trace", inputs=zeros)["commands"]
            self._placements = placements(self._graph, commands, as_float=self._as_float)
        return self._placements

    def _run(self, inputs: Arrays, names: Sequence[str], keep: Sequence[str]) -> dict[str, Array]:
        arrays = given(self._graph.inputs, inputs, engine=self.name)
        self._load(keep)
        found: dict[str, Array] = self._worker.ask(do="run", inputs=arrays, outputs=list(names))["outputs"]
        return found

    def _load(self, keep: Sequence[str]) -> None:
        if self._kept != list(keep):
            self._worker.ask(do="load", mnn=self._mnn, threads=self._threads, keep=list(keep))
            self._kept = list(keep)

    def _in_rank(self, name: str, values: Array) -> Array:
        """MNN has a fourth axis where the network has a sequence."""
        rank = len(self._graph.shapes.get(name, values.shape))
        return values.reshape(values.shape[:rank]) if np.prod(values.shape[rank:]) == 1 else values

    def _codes(self, name: str, values: Array) -> Array:
        encoding = self._graph.grid_of(name)
        if encoding is None:
            return values
        codes = np.rint(values / encoding.scale)
        # MNN may have it on a grid of which this one is a part, with more steps than it has codes.
        within = codes.min(initial=0) >= encoding.qmin and codes.max(initial=0) <= encoding.qmax
        return codes.astype(encoding.dtype) if within and _is_on(encoding, values) else values


def _is_on(grid: Encoding, values: Array) -> bool:
    steps = values / grid.scale
    return bool(np.abs(steps - np.rint(steps)).max(initial=0) < _ON_GRID)


def _zeros(port: Port) -> Array:
    return np.zeros([1 if isinstance(size, str) else size for size in port.shape], port.dtype)


class _Worker:
    """The worker process, which is sent one request at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", str(_WORKER)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._end = weakref.finalize(self, _stop, self._process)

    def ask(self, **request: Any) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        content = pickle.dumps(request)
        try:
            process.stdin.write(struct.pack("<Q", len(content)) + content)
            process.stdin.flush()
            header = process.stdout.read(8)
        except BrokenPipeError:
            header = b""
        if len(header) != 8:
            raise EngineError(
                f"{request['do']} with MNN", f"{how_it_ended(process.wait())} ended its process", "simplify the model"
            )
        answer: dict[str, Any] = pickle.loads(process.stdout.read(struct.unpack("<Q", header)[0]))
        if "error" in answer:
            raise EngineError(f"{request['do']} with MNN", answer["error"], "see what MNN says of this model")
        return answer


def _stop(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    process.kill()  # it has nothing to save, and may be inside a network that does not end
    process.wait()
