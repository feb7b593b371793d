"""ONNX Runtime, CPU provider: it fuses Q, DQ and the operation between them into one integer kernel, or does not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from detent.files import temporary_folder
from detent.ir import Encoding, Package, write_qdq
from detent.rewrites import float_network
from detent.targets.base import Engine, Placement
from detent.targets.base.onnx_session import onnxruntime_version, open_session
from detent.targets.base.ports import given, real
from detent.targets.onnxruntime.placement import FusedGraph, why_float

__all__ = ["OnnxRuntime"]

Arrays = Mapping[str, npt.NDArray[Any]]


class OnnxRuntime(Engine):
    """A session with every optimization, on the CPU."""

    name = "onnxruntime"
    arithmetic = "onnxruntime"

    def __init__(self, package: Package, *, threads: int, as_float: bool):
        self._package, self._threads, self._as_float = package, threads, as_float
        with temporary_folder() as folder:
            path = Path(folder) / "model.onnx"  # not in memory as well while the session reads it
            model = write_qdq(float_network(package.graph)) if as_float else package.model
            path.write_bytes(model.SerializeToString())
            del model
            self._session = open_session(path, threads=threads)

    @classmethod
    def version(cls) -> str | None:
        return onnxruntime_version()

    @classmethod
    def load(cls, package: Package, *, threads: int = 1, as_float: bool = False) -> OnnxRuntime:
        cls.require()
        return cls(package, threads=threads, as_float=as_float)

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        names = [output.name for output in self._package.graph.outputs]
        results = self._session.run(names, given(self._package.graph.inputs, inputs, engine=self.name))
        return {
            output.name: real(output, values)
            for output, values in zip(self._package.graph.outputs, results, strict=True)
        }

    def explain(self) -> list[Placement]:
        graph = self._package.graph
        if self._as_float:
            return [
                Placement(op.name, op.type, "float", "the network was loaded without quantization") for op in graph.ops
            ]
        placed = []
        for op in graph.ops:
            ran_as = self._fused.ran_as(op.name)
            why = why_float(graph, op) if ran_as == "float" else ""
            placed.append(Placement(op.name, op.type, ran_as, why))
        return placed

    def tensors(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The codes of every quantized activation; empty for a network without quantization.

        They are outputs added to the *fused* graph, so that the same kernels run: added to the model itself, an int8
        tensor with one more reader stops being turned into uint8, and its operations run in float.
        """
        if self._as_float:
            return {}
        session, exposed = self._exposing
        if not exposed:  # weights alone are quantized; asked for no tensor, a session gives its outputs
            return {}
        results = session.run(
            [name for name, _ in exposed.values()], given(self._package.graph.inputs, inputs, engine=self.name)
        )
        return {
            tensor: _as_stored(codes, encoding)
            for (tensor, (_, encoding)), codes in zip(exposed.items(), results, strict=True)
        }

    @cached_property
    def _fused(self) -> FusedGraph:
        named = _with_node_names(self._package.model)
        with temporary_folder() as folder:
            path = Path(folder) / "fused.onnx"
            # Extended fuses into integer kernels. What comes after it changes layouts, and names with them.
            open_session(named.SerializeToString(), threads=self._threads, level="ORT_ENABLE_EXTENDED", save=path)
            return FusedGraph(named, onnx.load_model(str(path)))

    @cached_property
    def _exposing(self) -> tuple[Any, dict[str, tuple[str, Encoding]]]:
        """A session that also gives the codes, and for each tensor the name of that output, and its grid."""
        exposed = self._fused.codes_of(self._package.graph)
        model = onnx.ModelProto()
        model.CopyFrom(self._fused.model)
        known = {value.name for value in model.graph.output}
        wanted = {name for name, _ in exposed.values()} - known
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(wanted))
        return open_session(model.SerializeToString(), threads=self._threads), exposed


def _as_stored(codes: npt.NDArray[Any], encoding: Encoding) -> npt.NDArray[Any]:
    if codes.dtype == np.uint8 and encoding.dtype == "int8":  # the engine shifted both codes and zero point
        return (codes.astype(np.int16) - 128).astype(np.int8)
    return codes


def _with_node_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every node has a name of its own, for fused nodes are found by it."""
    named = onnx.ModelProto()
    named.CopyFrom(model)
    taken: set[str] = set()
    for node in named.graph.node:
        if not node.name or node.name in taken:
            node.name = f"{node.op_type} of {node.output[0]}"
        taken.add(node.name)
    return named
