"""ONNX Runtime on `nbits.onnx`: what onnxruntime-genai calls for every token."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx

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
    """A session with every optimization, on the CPU."""

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
        results = self._session.run(names, given(graph.inputs, inputs, engine=self.name))
        return dict(zip(names, results, strict=True))

    def explain(self) -> list[Placement]:
        graph, placed = self._package.graph, []
        for op in graph.ops:
            blocks = None if self._as_float else blocks_of(graph, op)
            integer = blocks is not None and op.type != "Gather" and self._level == 4
            why = "weights in blocks, products of real numbers" if blocks is not None and not integer else ""
            placed.append(Placement(op.name, op.type, "integer" if integer else "float", why))
        return placed

    def tensors(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """What products of weights in blocks take in and give, and rows of tables; real numbers."""
        if self._as_float:
            return {}
        session, names = self._exposing
        if not names:
            return {}
        results = session.run(names, given(self._package.graph.inputs, inputs, engine=self.name))
        return dict(zip(names, results, strict=True))

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
