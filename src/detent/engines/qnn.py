"""Qualcomm's Hexagon tensor processor (HTP), by the emulator that the package `onnxruntime-qnn` brings for x86.

The package is proprietary: it is never part of Detent, and the extra `qnn` wants an environment of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy.typing as npt
import onnx

from detent.deploy import Encoding, Package, QdqGraph
from detent.deploy.float_model import float_model
from detent.engines.engine import Engine, Placement
from detent.engines.ports import given, real
from detent.errors import EngineError

__all__ = ["Qnn"]

Arrays = Mapping[str, npt.NDArray[Any]]
Shapes = tuple[tuple[str, tuple[int, ...]], ...]

_PROVIDER = "QNNExecutionProvider"


class Qnn(Engine):
    """ONNX Runtime's QNN provider, without falling back to the CPU: what the HTP does not take is an error.

    Its graphs have fixed shapes, so a session is made for each shape of inputs that comes. A float network runs
    on ONNX Runtime's CPU, for the HTP has no float32.
    """

    name = "qnn"
    extra = "qnn"

    def __init__(self, package: Package, *, threads: int, as_float: bool):
        self._package, self._threads, self._as_float = package, threads, as_float
        self._model = float_model(package.model) if as_float else package.model
        self._sessions: dict[Shapes, Any] = {}
        self._exposing: dict[Shapes, Any] = {}

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
        arrays = given(self._package.graph, inputs, engine=self.name)
        shapes = _shapes(arrays)
        if shapes not in self._sessions:
            self._sessions[shapes] = self._session(self._model, shapes)
        outputs = self._package.graph.outputs
        results = self._sessions[shapes].run([output.name for output in outputs], arrays)
        return {output.name: real(output, values) for output, values in zip(outputs, results, strict=True)}

    def tensors(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The codes of every quantized activation that is not an input of the network."""
        if self._as_float:
            return {}
        arrays = given(self._package.graph, inputs, engine=self.name)
        shapes, shown = _shapes(arrays), _shown(self._package)
        if shapes not in self._exposing:
            model = onnx.ModelProto()
            model.CopyFrom(self._model)
            known = {value.name for value in model.graph.output}
            model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted({*shown} - known))
            self._exposing[shapes] = self._session(model, shapes)
        results = self._exposing[shapes].run(list(shown), arrays)
        return {
            tensor: encoding.quantize(values).astype(encoding.dtype)
            for (tensor, encoding), values in zip(shown.values(), results, strict=True)
        }

    def explain(self) -> list[Placement]:
        """All of it runs on the HTP, or loading it would have failed."""
        if self._as_float:
            why = "the network was loaded without quantization"
            return [Placement(op.name, op.type, "float", why) for op in self._package.graph.ops]
        if not self._sessions:
            shapes = _least(self._package.graph)
            self._sessions[shapes] = self._session(self._model, shapes)
        return [Placement(op.name, op.type, "integer") for op in self._package.graph.ops]

    def _session(self, model: onnx.ModelProto, shapes: Shapes) -> Any:
        import onnxruntime
        import onnxruntime_qnn

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 4  # what it logs is in the exception too
        ready = _fixed(model, shapes).SerializeToString()
        if self._as_float:
            return onnxruntime.InferenceSession(ready, options, providers=["CPUExecutionProvider"])
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        settings = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "offload_graph_io_quantization": "0"}
        try:
            options.add_provider_for_devices(_devices()[:1], settings)
            return onnxruntime.InferenceSession(ready, options)
        except Exception as error:  # its exceptions derive from Exception alone
            raise EngineError(
                f"load a network on qnn {self.version()}",
                str(error),
                "quantize every tensor to uint8 or uint16: the HTP takes nothing else, and the CPU does not help out",
            ) from error


def _devices() -> list[Any]:
    """The provider's devices; its library is registered once in a process."""
    import onnxruntime
    import onnxruntime_qnn

    found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _PROVIDER]
    if not found:
        onnxruntime.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
        found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _PROVIDER]
    return found


def _shapes(inputs: Arrays) -> Shapes:
    return tuple((name, tuple(array.shape)) for name, array in inputs.items())


def _least(graph: QdqGraph) -> Shapes:
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
