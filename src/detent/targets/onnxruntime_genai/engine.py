"""ONNX Runtime on `nbits.onnx`: what onnxruntime-genai calls for every token."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from detent.errors import EngineError
from detent.files import temporary_folder
from detent.ir import Package, write_qdq
from detent.rewrites import float_network
from detent.targets.base import Engine, Placement
from detent.targets.base.onnx_session import onnxruntime_version, open_session
from detent.targets.base.ports import given
from detent.targets.onnxruntime_genai.blocks import blocks_of
from detent.targets.onnxruntime_genai.file import FILE

__all__ = ["OnnxRuntimeGenai"]

Arrays = Mapping[str, npt.NDArray[Any]]


class OnnxRuntimeGenai(Engine):
    """A session with every optimization, on the CPU. A language model gets whole sequences and an empty cache."""

    name = "onnxruntime_genai"
    arithmetic = "weight_only"

    def __init__(self, package: Package, *, threads: int, as_float: bool):
        self._package, self._threads, self._as_float = package, threads, as_float
        model = write_qdq(float_network(package.graph)).SerializeToString() if as_float else package.path(FILE)
        self._session = open_session(model, threads=threads)

    @classmethod
    def version(cls) -> str | None:
        return onnxruntime_version()

    @classmethod
    def installation(cls) -> str:
        return "pip install onnxruntime"

    @classmethod
    def load(cls, package: Package, *, threads: int = 1, as_float: bool = False) -> OnnxRuntimeGenai:
        cls.require()
        return cls(package, threads=threads, as_float=as_float)

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        graph = self._package.graph
        names = [output.name for output in graph.outputs]
        return self._results(self._session, names, inputs)

    def _results(self, session: Any, names: list[str], inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        taken = given(self._package.graph.inputs, inputs, engine=self.name)
        more = [port for port in session.get_inputs() if port.name not in taken]
        if more:
            self._require_whole(taken)
        batch, length = next(iter(taken.values())).shape[:2] if more else (0, 0)
        for port in more:
            taken[port.name] = _beside(port, batch, length)
        return dict(zip(names, session.run(names, taken), strict=True))

    def _require_whole(self, taken: Arrays) -> None:
        """Attention with a cache leaves out what is behind the last word, and computes something for it."""
        for name, array in taken.items():
            reads = [op.type for op, _ in self._package.graph.readers(name)]
            if "Gather" not in reads and (array != 1).any():
                to_do = "give sequences without padding"
                raise EngineError(f"run on {self.name}", f"{name} leaves words out", to_do)

    def explain(self) -> list[Placement]:
        graph, placed = self._package.graph, []
        for op in graph.ops:
            blocks = None if self._as_float else blocks_of(graph, op)
            integer = blocks is not None and op.type != "Gather" and self._level == 4
            why = "weights in blocks, products of real numbers" if blocks is not None and not integer else ""
            placed.append(Placement(op.name, op.type, "integer" if integer else "float", why))
        return placed

    def tensors(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Inputs and outputs of products with block-quantized weights, and rows of tables; real numbers."""
        if self._as_float:
            return {}
        session, names = self._exposing
        if not names:
            return {}
        return self._results(session, names, inputs)

    @cached_property
    def _level(self) -> int:
        model = onnx.load_model(str(self._package.path(FILE)))
        levels = [
            attribute.i
            for node in model.graph.node
            for attribute in node.attribute
            if attribute.name == "accuracy_level"
        ]
        return int(max(levels, default=0))

    @cached_property
    def _exposing(self) -> tuple[Any, list[str]]:
        """A session that gives these too. They are outputs added to the *fused* graph, so that the same kernels run."""
        graph = self._package.graph
        wanted: dict[str, None] = {}
        for op in graph.ops:
            if blocks_of(graph, op) is not None:
                reads = () if op.type == "Gather" else op.inputs[:1]
                wanted.update(dict.fromkeys([*(read.tensor for read in reads if read is not None), op.outputs[0]]))
        with temporary_folder() as folder:
            path = Path(folder) / "fused.onnx"
            # What comes after it changes layouts, and names with them.
            open_session(self._package.path(FILE), threads=self._threads, level="ORT_ENABLE_EXTENDED", save=path)
            model = onnx.load_model(str(path))
        made = {name for node in model.graph.node for name in node.output}
        names = [name for name in wanted if name in made]
        known = {value.name for value in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
        return open_session(model.SerializeToString(), threads=self._threads), names


def _beside(port: Any, batch: int, length: int) -> npt.NDArray[Any]:
    """The decoder's additional inputs: an empty cache, and the positions or mask of a whole sequence."""
    if port.type == "tensor(float)":
        _, heads, _, size = port.shape
        return np.zeros((batch, heads, 0, size), np.float32)
    if port.name == "position_ids":
        return np.tile(np.arange(length), (batch, 1))
    return np.ones((batch, length), np.int64)
