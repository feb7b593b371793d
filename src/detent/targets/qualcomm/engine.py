"""Qualcomm's Hexagon tensor processor (HTP), by the emulator that the package `onnxruntime-qnn` brings for x86.

The package is proprietary: it is never part of Detent, and the extra `qnn` wants an environment of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

import numpy.typing as npt
import onnx

from detent.errors import EngineError
from detent.ir import Encoding, Network, Op, Package
from detent.rewrites import float_model
from detent.targets.base import Engine, Placement
from detent.targets.base.ports import Shapes, given, real, shapes_of
from detent.targets.qualcomm.arithmetic.steps import why_float
from detent.targets.qualcomm.partition import PartModel, Segment, network_ops, parts, segments

__all__ = ["Qnn"]

Arrays = Mapping[str, npt.NDArray[Any]]

_PROVIDER = "QNNExecutionProvider"


class Qnn(Engine):
    """ONNX Runtime's QNN provider; operations that the HTP does not take run on the CPU beside it.

    Its graphs have fixed shapes, so sessions are made for each shape of inputs that comes. A float network runs
    on ONNX Runtime's CPU, for the HTP has no float32.
    """

    name = "qnn"
    extra = "qnn"
    arithmetic = "htp"

    def __init__(self, package: Package, *, threads: int, as_float: bool):
        self._package, self._threads, self._as_float = package, threads, as_float
        self._model = float_model(package.model) if as_float else package.model
        self._running: dict[Shapes, _Running] = {}
        self._exposing: dict[Shapes, _Running] = {}

    @classmethod
    def version(cls) -> str | None:
        try:
            return metadata.version("onnxruntime-qnn")
        except metadata.PackageNotFoundError:
            return None

    @classmethod
    def load(cls, package: Package, *, threads: int = 1, as_float: bool = False) -> Qnn:
        cls.require()
        return cls(package, threads=threads, as_float=as_float)

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        arrays = given(self._package.graph.inputs, inputs, engine=self.name)
        found = self._for(shapes_of(arrays)).run(arrays)
        return {output.name: real(output, found[output.name]) for output in self._package.graph.outputs}

    def tensors(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The codes of every quantized activation that is not an input of the network."""
        if self._as_float:
            return {}
        arrays = given(self._package.graph.inputs, inputs, engine=self.name)
        shapes, shown = shapes_of(arrays), _shown(self._package)
        if shapes not in self._exposing:
            held = self._for(shapes).segments
            self._exposing[shapes] = _Running(_fixed(self._model, shapes), held, self._threads, also=sorted(shown))
        found = self._exposing[shapes].run(arrays)
        return {
            tensor: encoding.quantize(found[name]).astype(encoding.dtype) for name, (tensor, encoding) in shown.items()
        }

    def explain(self) -> list[Placement]:
        """Operations on the CPU run in float, and so do operations on the HTP that are not quantized."""
        ops = self._package.graph.ops
        if self._as_float:
            return [Placement(op.name, op.type, "float", "the network was loaded without quantization") for op in ops]
        running = next(iter(self._running.values()), None) or self._for(_least(self._package.graph))
        on_host = {name for segment in running.segments if segment.on_host for name in segment.ops}

        def placed(op: Op) -> Placement:
            if op.outputs[0] in on_host:
                return Placement(op.name, op.type, "float", "on the CPU: the HTP does not take it")
            why = why_float(self._package.graph, op)
            return Placement(op.name, op.type, "float" if why else "integer", why)

        return [placed(op) for op in ops]

    def _for(self, shapes: Shapes) -> _Running:
        if shapes not in self._running:
            model = _fixed(self._model, shapes)
            everything = frozenset(node.output[0] for node in network_ops(model))
            found = [Segment(everything, on_host=True)] if self._as_float else self._segments(model, everything)
            self._running[shapes] = _Running(model, found, self._threads)
        return self._running[shapes]

    def _segments(self, model: onnx.ModelProto, everything: frozenset[str]) -> list[Segment]:
        refusals = []

        def loads(part: PartModel) -> bool:
            try:
                _session(part, self._threads)
            except Exception as error:  # its exceptions derive from Exception alone
                refusals.append(error)
                return False
            return True

        if loads(PartModel(model, on_host=False)):
            return [Segment(everything, on_host=False)]
        found = segments(model, loads)
        if all(segment.on_host for segment in found):
            raise EngineError(
                f"load a network on qnn {self.version()}",
                f"the HTP takes none of its operations: {refusals[0]}",
                "quantize its tensors to uint8 or uint16: the HTP computes on nothing else",
            ) from refusals[0]
        return found


class _Running:
    """A session for each segment of a network."""

    def __init__(self, model: onnx.ModelProto, found: list[Segment], threads: int, also: Iterable[str] = ()):
        self.segments = found
        self._sessions = [(part, _session(part, threads)) for part in parts(model, found, also)]

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The outputs of all segments, by name."""
        known = dict(inputs)
        for part, session in self._sessions:
            results = session.run(part.outputs, {name: known[name] for name in part.inputs})
            known.update(zip(part.outputs, results, strict=True))
        return known


def _session(part: PartModel, threads: int) -> Any:
    import onnxruntime
    import onnxruntime_qnn

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # the exception includes what it logs
    content = part.model.SerializeToString()
    if part.on_host:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    settings = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "offload_graph_io_quantization": "0"}
    options.add_provider_for_devices(_devices()[:1], settings)
    return onnxruntime.InferenceSession(content, options)


def _devices() -> list[Any]:
    """The provider's devices; its library is registered once in a process."""
    import onnxruntime
    import onnxruntime_qnn

    found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _PROVIDER]
    if not found:
        onnxruntime.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
        found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _PROVIDER]
    return found


def _least(graph: Network) -> Shapes:
    """The shapes of the inputs where every free size is 1."""
    shape = {
        name: tuple(1 if isinstance(size, str) else size for size in port.shape) for name, port in graph.inputs.items()
    }
    return tuple(shape.items())


def _fixed(model: onnx.ModelProto, shapes: Shapes) -> onnx.ModelProto:
    """A copy in which the free sizes are those of `shapes`."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    sizes: dict[str, int] = {}
    values = {value.name: value for value in fixed.graph.input}
    for name, shape in shapes:
        for dim, size in zip(values[name].type.tensor_type.shape.dim, shape, strict=True):
            if dim.HasField("dim_param"):
                sizes[dim.dim_param] = size
    for value in (*fixed.graph.input, *fixed.graph.output, *fixed.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    return fixed


def _shown(package: Package) -> dict[str, tuple[str, Encoding]]:
    """For what each DequantizeLinear of an activation gives: the tensor that was quantized, and its grid."""
    nodes = package.model.graph.node
    quantized = {node.output[0]: node.input[0] for node in nodes if node.op_type == "QuantizeLinear"}
    found: dict[str, tuple[str, Encoding]] = {}
    for node in nodes:
        tensor = quantized.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if tensor is None or tensor in package.graph.inputs or tensor in [known for known, _ in found.values()]:
            continue
        grid = package.graph.grid_of(tensor)
        if grid is not None:
            found[node.output[0]] = (tensor, grid)
    return found
