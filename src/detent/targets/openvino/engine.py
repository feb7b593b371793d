"""OpenVINO, CPU plugin: low-precision transformations, then oneDNN kernels with everything around them fused in."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from detent.errors import ArtifactError, EngineError
from detent.ir import Encoding, Network, Op, Package, Trait, ops_with, write_qdq
from detent.rewrites import float_network
from detent.targets.base import Engine, Placement
from detent.targets.base.blocks import is_weight_only, weight_in_blocks
from detent.targets.base.ports import Shapes, given, real, shapes_of
from detent.targets.openvino.defects import DEFECTS

__all__ = ["OpenVino"]

Arrays = Mapping[str, npt.NDArray[Any]]
Value = TypeVar("Value")

_WIDEST = "ONEDNN_MAX_CPU_ISA"
_CPU = Path("/proc/cpuinfo")
_TILE_LEAF = 0x1D  # of CPUID; where it reads zero, oneDNN configures no tiles and uses them all the same
# What its ONNX reader and its transformations append to the name of an operation with a bias, or with scales behind it.
_APPENDED = re.compile("/(WithoutBiases|DequantizationMultiply)")
_INTEGERS = ("u8", "i8")
_TRIALS = 12
"""How often a network is compiled to find which of its tensors can be shown."""
_ANOTHER = "deploy for a backend it runs"


class OpenVino(Engine):
    """The IR of a package if there is one, else its ONNX model, compiled for each shape of inputs that comes.

    On a virtual machine that names AMX among the CPU's features and hides how its tiles are laid out, it is held to
    AVX-512 kernels, unless the environment variable ONEDNN_MAX_CPU_ISA says otherwise: there oneDNN's AMX kernels end
    the process by an illegal instruction. Both sets of kernels compute the same integers.
    """

    name = "openvino"
    extra = "openvino"
    arithmetic = "openvino"
    known_defects = DEFECTS

    def __init__(self, package: Package, *, threads: int, as_float: bool):
        from openvino import Core

        if _hides_tiles(_CPU.read_text() if _CPU.is_file() else ""):
            os.environ.setdefault(_WIDEST, "AVX512_CORE_FP16")
        self._package, self._threads, self._as_float = package, threads, as_float
        self._core = Core()
        self._compiled: dict[Shapes, Any] = {}
        self._exposing: dict[Shapes, _Exposing] = {}
        self._read()  # so that a file it cannot read is refused now

    @classmethod
    def version(cls) -> str | None:
        try:
            import openvino
        except ImportError:
            return None
        return str(openvino.__version__).split("-")[0]  # without the build: 2026.4.1-22982-e213a147257-releases/2026/4

    @classmethod
    def load(cls, package: Package, *, threads: int = 1, as_float: bool = False) -> OpenVino:
        cls.require()
        return cls(package, threads=threads, as_float=as_float)

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        return self._outputs(given(self._package.graph.inputs, inputs, engine=self.name))

    def _outputs(self, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
        shapes = shapes_of(arrays)
        if shapes not in self._compiled:
            self._compiled[shapes] = self._compile(shapes).create_infer_request()
        request = self._compiled[shapes]
        with self._reported(f"run on inputs {dict(shapes)}", _ANOTHER):
            results = request.infer(_inputs_of(request.model_inputs, arrays), share_inputs=True)
        return {output.name: real(output, np.array(results[output.name])) for output in self._package.graph.outputs}

    def tensors(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The codes of quantized activations, recovered from the real numbers that leave the DequantizeLinear; and the
        real numbers that products with compressed weights read and give.

        Not of those that an Add reads, times a constant or not: shown, they would no longer be fused into the
        convolution, and other numbers would come out of the network. Nor of those that are multiplied with another
        activation: shown, they would be stored, and rounded otherwise. Nor of others that change the outputs when they
        are shown. Empty for a network without quantization.
        """
        if self._as_float:
            return {}
        arrays = given(self._package.graph.inputs, inputs, engine=self.name)
        shapes, outputs = shapes_of(arrays), self._outputs(arrays)
        if shapes not in self._exposing:
            self._exposing[shapes] = self._exposed(shapes, _shown(self._package))
        found = self._values(self._exposing[shapes], arrays, outputs)
        if found is None:
            self._exposing[shapes], found = self._without_effect(self._exposing[shapes].shown, arrays, outputs)
        return found

    def _exposed(self, shapes: Shapes, shown: Sequence[_Shown]) -> _Exposing:
        compiled = self._compile(shapes, tuple(one.real for one in shown))
        return _Exposing(compiled.create_infer_request(), tuple(shown))

    def _values(self, exposing: _Exposing, arrays: Arrays, outputs: Arrays) -> dict[str, npt.NDArray[Any]] | None:
        """The values of the exposed tensors; None if exposing them changes the outputs of the network."""
        request = exposing.request
        with self._reported(f"run on inputs {dict(shapes_of(arrays))}", _ANOTHER):
            results = request.infer(_inputs_of(request.model_inputs, arrays))
        ends = ((output, real(output, np.array(results[output.name]))) for output in self._package.graph.outputs)
        if not all(np.array_equal(end, outputs[output.name], equal_nan=end.dtype.kind == "f") for output, end in ends):
            return None
        return {one.tensor: one.codes(np.array(results[one.real])) for one in exposing.shown}

    def _without_effect(
        self, shown: Sequence[_Shown], arrays: Arrays, outputs: Arrays
    ) -> tuple[_Exposing, dict[str, npt.NDArray[Any]]]:
        """As many tensors as can be exposed without changing the outputs of the network, those near its end first."""
        shapes = shapes_of(arrays)
        best = self._exposed(shapes, ())
        values: dict[str, npt.NDArray[Any]] = {}
        middle = len(shown) // 2
        left = [shown[:middle], shown[middle:]]
        for _ in range(_TRIALS):
            if not left:
                break
            group = left.pop()
            tried = self._exposed(shapes, [*best.shown, *group])
            found = self._values(tried, arrays, outputs)
            if found is not None:
                best, values = tried, found
            elif len(group) > 1:
                middle = len(group) // 2
                left += [group[:middle], group[middle:]]
        return best, values

    def explain(self) -> list[Placement]:
        graph = self._package.graph
        if self._as_float:
            return [
                Placement(op.name, op.type, "float", "the network was loaded without quantization") for op in graph.ops
            ]
        ones = {
            name: tuple(1 if isinstance(size, str) else size for size in p.shape) for name, p in graph.inputs.items()
        }
        compiled = self._compile(next(iter(self._compiled), tuple(ones.items())))
        return _placements(graph, _kernels(compiled))

    def _read(self) -> Any:
        if self._as_float:
            with self._reported("load a network without quantization", _ANOTHER):
                return self._core.read_model(
                    io.BytesIO(write_qdq(float_network(self._package.graph)).SerializeToString())
                )
        path = _file(self._package)
        with self._reported(f"load {path}", _ANOTHER):
            model = self._core.read_model(str(path))
        self._require_ends(model, path)
        return model

    def _require_ends(self, model: Any, path: Path) -> None:
        """An input that nothing reads may be gone; one of another name would run on what is in the memory."""
        known, graph = _names(model.outputs), self._package.graph
        missing = [f"no output {output.name!r}" for output in graph.outputs if output.name not in known]
        inputs = [port.get_names() for port in model.inputs]
        strange = [f"an input called {sorted(names)}" for names in inputs if not names & graph.inputs.keys()]
        if found := [*strange, *missing]:
            raise EngineError(
                f"load {path} on openvino {self.version()}", f"unlike model.onnx it has {found[0]}", "deploy it again"
            )

    def _compile(self, shapes: Shapes, exposed: tuple[str, ...] = ()) -> Any:
        model = self._read()
        options = {
            "INFERENCE_PRECISION_HINT": "f32",  # or a CPU with bf16 computes float operations in it
            "INFERENCE_NUM_THREADS": str(self._threads),
            "PERFORMANCE_HINT": "LATENCY",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",  # or it quantizes the input of a linear layer; the IR disables that
        }
        with self._reported(
            f"compile for inputs {dict(shapes)}", f"give inputs of shapes that fit together, or {_ANOTHER}"
        ):
            if wanted := [name for name in exposed if name not in _names(model.outputs)]:
                model.add_outputs(wanted)
            model.reshape({name: list(sizes) for name, sizes in _inputs_of(model.inputs, dict(shapes)).items()})
            return self._core.compile_model(model, "CPU", options)

    @contextmanager
    def _reported(self, asked: str, to_do: str) -> Iterator[None]:
        """Converts OpenVINO's exceptions to Detent's."""
        try:
            yield
        except RuntimeError as error:
            raise EngineError(f"{asked} on openvino {self.version()}", str(error), to_do) from error


def _file(package: Package) -> Path:
    has_ir = any(name.endswith("model.xml") for name in package.manifest["files"])
    path = package.path("model.xml" if has_ir else "model.onnx")
    constants = path.with_suffix(".bin")  # which OpenVINO opens without being asked
    if has_ir and str(constants.relative_to(package.folder)) not in package.manifest["files"]:
        raise ArtifactError(
            f"load {path}", f"the manifest does not name {constants.name}", "give a folder that deploy wrote"
        )
    return path


def _hides_tiles(cpu: str) -> bool:
    """Whether a CPU, described as in /proc/cpuinfo, has AMX but not the CPUID leaf that describes its tiles."""
    last_leaf = re.search(r"^cpuid level\s*: (\d+)$", cpu, re.MULTILINE)
    return "amx_tile" in cpu and last_leaf is not None and int(last_leaf[1]) < _TILE_LEAF


def _inputs_of(ports: Iterable[Any], given: Mapping[str, Value]) -> dict[str, Value]:
    """The given values that the model has inputs for: OpenVINO drops an input that nothing reads."""
    known = _names(ports)
    return {name: value for name, value in given.items() if name in known}


def _names(ports: Iterable[Any]) -> set[str]:
    return {name for port in ports for name in port.get_names()}


# --- what is inside ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shown:
    """An activation, and the name of the real numbers it is dequantized to if it is quantized."""

    tensor: str
    real: str
    encoding: Encoding | None

    def codes(self, real: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The codes that real numbers on its grid stand for; these themselves where it has none."""
        return real if self.encoding is None else self.encoding.quantize(real).astype(self.encoding.dtype)


@dataclass(frozen=True)
class _Exposing:
    """A network that is compiled to show what is inside."""

    request: Any
    shown: tuple[_Shown, ...]


def _shown(package: Package) -> list[_Shown]:
    graph, nodes = package.graph, package.model.graph.node
    quantized = {node.output[0]: node.input[0] for node in nodes if node.op_type == "QuantizeLinear"}
    clipped = {node.output[0]: node.input[0] for node in nodes if node.op_type == "Clip"}
    outputs = {output.read.tensor: output.read.encoding for output in graph.outputs}
    found: dict[str, _Shown] = {}
    for node in nodes:
        source = quantized.get(node.input[0], "") if node.op_type == "DequantizeLinear" else ""
        for tensor in (source, clipped.get(source, "")):
            encoding = graph.grid_of(tensor) or outputs.get(tensor)
            if encoding is not None and not _is_added(graph, tensor) and not _is_factor(graph, tensor):
                found.setdefault(tensor, _Shown(tensor, node.output[0], encoding))
    for op in graph.ops if is_weight_only(graph) else ():
        if weight_in_blocks(graph, op) is not None:
            read = [] if op.type == "Gather" else [op.input_names[0]]
            found.update((name, _Shown(name, name, None)) for name in (*read, *op.outputs) if name not in graph.inputs)
    return list(found.values())


def _is_added(graph: Network, tensor: str) -> bool:
    """Whether an Add reads a tensor, or its product with a constant."""
    readers = [op for op, _ in graph.readers(tensor)]
    scaled = [op for op in readers if op.type == "Mul" and any(read.tensor in graph.constants for read in op.reads)]
    readers += [op for product in scaled for op, _ in graph.readers(product.outputs[0])]
    return any(op.type == "Add" for op in readers)


def _is_factor(graph: Network, tensor: str) -> bool:
    """Whether a product of two activations reads a tensor."""
    products = [op for op, _ in graph.readers(tensor) if op.type == "Mul"]
    return any(all(read.tensor not in graph.constants for read in op.reads) for op in products)


# --- what really ran -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kernel:
    """A node of the runtime's own graph: its name, the precision it computes in, and the operations it stands for."""

    name: str
    precision: str
    originals: tuple[str, ...]


def _kernels(compiled: Any) -> list[_Kernel]:
    def text(info: Any, key: str) -> str:
        return str(info[key].astype(str)) if key in info else ""

    found = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        originals = text(info, "originalLayersNames").split(",")
        found.append(_Kernel(node.get_friendly_name(), text(info, "runtimePrecision"), tuple(originals)))
    return found


def _placements(graph: Network, kernels: list[_Kernel]) -> list[Placement]:
    """The first operation of each kernel ran in its precision, and so did products behind it, as in attention."""
    kinds = {op.name: op.type for op in graph.ops}
    heads: dict[str, _Kernel] = {}
    for kernel in kernels:
        known = [name for original in kernel.originals if (name := _APPENDED.sub("", original)) in kinds]
        heads.update(
            (name, kernel) for index, name in enumerate(known) if index == 0 or kinds[name] in ops_with(Trait.WEIGHTED)
        )
    of_reals = is_weight_only(graph)  # there the precision is that of weights
    placed = []
    for op in graph.ops:
        head = heads.get(op.name)
        if head is None:
            placed.append(Placement(op.name, op.type, "folded"))
        elif head.precision in _INTEGERS and not of_reals:
            placed.append(Placement(op.name, op.type, "integer"))
        else:
            placed.append(Placement(op.name, op.type, "float", _why_float(graph, op)))
    return placed


def _why_float(graph: Network, op: Op) -> str:
    if is_weight_only(graph) and weight_in_blocks(graph, op) is not None:
        return "weights are integers, products are of real numbers"
    for read in op.inputs:
        if read is not None and read.encoding is None and read.tensor not in graph.constants:
            return f"its input {read.tensor!r} is not quantized"
    return f"the CPU plugin computes this {op.type} in float"
