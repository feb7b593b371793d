"""LiteRT (TensorFlow Lite): .tflite files, with XNNPACK's kernels or with its own."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from detent.errors import EngineError
from detent.ir import Encoding, Network, Package, Port
from detent.rewrites import float_model
from detent.targets.base import Engine, Placement
from detent.targets.base.engine import Arrays
from detent.targets.base.ports import given
from detent.targets.litert.file import TfliteModel, model_to_tflite, origin_of, read_tflite, to_bytes

__all__ = ["Kernels", "LiteRT"]

Array = npt.NDArray[Any]

Kernels = Literal["xnnpack", "builtin", "reference"]
"""XNNPACK, which LiteRT uses unless told otherwise; its own optimized kernels (ruy); its reference kernels."""

_RESOLVERS = {"xnnpack": "AUTO", "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "reference": "BUILTIN_REF"}


class LiteRT(Engine):
    """Runs `model.tflite`. The files have channels last; inputs and outputs here have channels first, as in ONNX."""

    name = "litert"
    extra = "litert"
    arithmetic = "xnnpack"

    def __init__(self, content: bytes, *, graph: Network | None = None, threads: int = 1, kernels: Kernels = "xnnpack"):
        """`content` is any .tflite file; `graph` the network it was made from, for the types of its codes."""
        self.require()
        if kernels not in _RESOLVERS:
            raise EngineError(f"run LiteRT's {kernels!r} kernels", "it has no such", f"use {', '.join(_RESOLVERS)}")
        self._model = read_tflite(content)
        self._origin = origin_of(self._model)
        self._graph, self._threads, self._kernels = graph, threads, kernels
        self._network = _Network(self._model, content, threads, kernels)
        self._opened: _Network | None = None

    @classmethod
    def version(cls) -> str | None:
        try:
            return importlib.metadata.version("ai-edge-litert")
        except importlib.metadata.PackageNotFoundError:
            return None

    @classmethod
    def options_for(cls, arithmetic: str) -> dict[str, Any]:
        kernels = {"tflite_reference": "reference", "ruy": "builtin"}.get(arithmetic, "xnnpack")
        return {"kernels": kernels}

    @classmethod
    def load(
        cls, package: Package, *, threads: int = 1, as_float: bool = False, kernels: Kernels = "xnnpack"
    ) -> LiteRT:
        cls.require()
        if as_float:
            return cls(model_to_tflite(float_model(package.model)), threads=threads, kernels=kernels)
        content = package.path(".tflite").read_bytes()
        return cls(content, graph=package.graph, threads=threads, kernels=kernels)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        given = self._given(inputs)
        found = self._network.run(given, [self._batch_axis(index) for index in self._model.outputs])
        return {
            name: self._shown(index, array)
            for name, index, array in zip(self._origin.outputs, self._model.outputs, found, strict=True)
        }

    def tensors(self, inputs: Arrays) -> dict[str, Array]:
        """Includes tensors inside XNNPACK: the file is run with every tensor as an output."""
        wanted = self._telling()
        if self._opened is None:
            opened = replace(self._model, outputs=tuple(wanted.values()))
            self._opened = _Network(opened, to_bytes(opened), self._threads, self._kernels)
        given, axes = self._given(inputs), [self._batch_axis(index) for index in wanted.values()]
        found = self._opened.run(given, axes)
        # Where an axis holds samples and more, those that ran alone cannot be put in order again.
        alone = self._opened.runs_alone(given)
        kept = [
            not alone or axis is None or a.shape[axis] == len(given[0]) for axis, a in zip(axes, found, strict=True)
        ]
        told = zip(wanted.items(), found, kept, strict=True)
        return {name: self._inside(name, index, array) for (name, index), array, keep in told if keep}

    def explain(self) -> list[Placement]:
        """An operation of the ONNX network runs on integers if the operators that stand for it give codes."""
        standing: dict[str, list[int]] = {}
        part_of: dict[str, str] = {}
        for number, names in enumerate(self._origin.operations):
            if names:
                standing.setdefault(names[0], []).append(number)
                part_of.update(dict.fromkeys(names[1:], names[0]))
        delegated = self._network.delegated(self._model) if self._kernels == "xnnpack" else None
        if self._graph is None or not standing.keys() & {op.name for op in self._graph.ops}:  # not a file of ours
            return [self._placed(name, "", numbers, delegated) for name, numbers in standing.items()]
        found = []
        for op in self._graph.ops:
            if op.name in standing:
                found.append(self._placed(op.name, op.type, standing[op.name], delegated))
            else:
                why = f"part of {part_of[op.name]}" if op.name in part_of else "computed beforehand, or nothing to do"
                found.append(Placement(op.name, op.type, "folded", why))
        return found

    def _placed(self, name: str, kind: str, numbers: list[int], delegated: set[int] | None) -> Placement:
        operators = [self._model.operators[number] for number in numbers]
        kind = kind or operators[-1].kind
        if any(self._model.tensors[operator.outputs[0]].encoding is None for operator in operators):
            why = "what it reads or gives is not on a grid, or LiteRT has no integer kernel for it"
            return Placement(name, kind, "float", why)
        own = delegated is not None and not delegated.issuperset(numbers)
        return Placement(name, kind, "integer", "in LiteRT's own kernel, not XNNPACK's" if own else "")

    def _given(self, inputs: Arrays) -> list[Array]:
        """The inputs in the order, layout and type of the file."""
        indices = dict(zip(self._origin.inputs, self._model.inputs, strict=True))
        ports = {
            name: Port(self._type(name, index), _shape(self._model, index, self._last(index)))
            for name, index in indices.items()
        }
        arrays = given(ports, inputs, engine=self.name)
        return [
            _channels_last(_typed(arrays[name], self._model.tensors[index].dtype), self._last(index))
            for name, index in indices.items()
        ]

    def _type(self, name: str, index: int) -> str:
        """The type of a network input: codes that are uint8 in the network are int8 in the file."""
        return self._model.tensors[index].dtype if self._graph is None else self._graph.inputs[name].dtype

    def _last(self, index: int) -> bool:
        return self._origin.tensors[index][1]

    def _batch_axis(self, index: int) -> int | None:
        """The axis along which samples that ran separately are joined; None if the tensor is the same for all of
        them."""
        shape = None if self._graph is None else self._graph.shapes.get(self._origin.tensors[index][0])
        return 0 if shape is None else next((axis for axis, size in enumerate(shape) if isinstance(size, str)), None)

    def _shown(self, index: int, array: Array) -> Array:
        """A tensor of the file as it is in the ONNX network; codes in the type they have there."""
        turned = np.ascontiguousarray(np.moveaxis(array, -1, 1)) if self._last(index) else array
        encoding = self._model.tensors[index].encoding
        if encoding is None or self._graph is None:
            return turned
        tensor = self._origin.tensors[index][0]
        grids = self._graph.encodings(tensor)
        grid = next((grid for grid in grids if grid is not None and _same(grid, encoding)), encoding)
        return (turned.astype(np.int32) + int(grid.zero_point - encoding.zero_point)).astype(grid.dtype)

    def _inside(self, tensor: str, index: int, array: Array) -> Array:
        """Real numbers where not everybody reads the tensor on one grid, though the file may hold codes."""
        shown = self._shown(index, array)
        encoding = self._model.tensors[index].encoding
        if encoding is None or self._graph is None or self._graph.grid_of(tensor) is not None:
            return shown
        return encoding.dequantize(np.moveaxis(array, -1, 1) if self._last(index) else array)

    def _telling(self) -> dict[str, int]:
        """For each tensor of the network, the most informative tensor of the file: codes if all readers read those."""
        found: dict[str, int] = {}
        for index, (name, _) in self._origin.tensors.items():
            encoding = self._model.tensors[index].encoding
            grid = None if self._graph is None else self._graph.grid_of(name)
            fits = encoding is not None and grid is not None and _same(grid, encoding)
            if name not in found or fits:
                found[name] = index
        made = {index for operator in self._model.operators for index in operator.outputs}
        return {name: index for name, index in found.items() if index in made}


class _Network:
    """An interpreter that is resized to each batch; samples run one after another if the file fixes the batch size."""

    def __init__(self, model: TfliteModel, content: bytes, threads: int, kernels: Kernels):
        from ai_edge_litert import interpreter as litert

        resolver = getattr(litert.OpResolverType, _RESOLVERS[kernels])
        try:
            self._interpreter = litert.Interpreter(
                model_content=content, num_threads=threads, experimental_op_resolver_type=resolver
            )
            self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise EngineError("load a .tflite file", f"LiteRT refuses it: {error}", "deploy it again") from None
        self._inputs = [detail["index"] for detail in self._interpreter.get_input_details()]
        self._outputs = [detail["index"] for detail in self._interpreter.get_output_details()]
        self._shapes = [model.tensors[index].shape for index in model.inputs]
        self._fixed = all(-1 not in model.tensors[index].signature for index in model.inputs)

    def run(self, inputs: list[Array], batch_axes: list[int | None]) -> list[Array]:
        """The outputs of the file; `batch_axes` are where samples lie in them."""
        if self.runs_alone(inputs):
            parts = [self._once([array[i : i + 1] for array in inputs]) for i in range(len(inputs[0]))]
            columns = zip(batch_axes, zip(*parts, strict=True), strict=True)
            return [arrays[0] if axis is None else np.concatenate(arrays, axis) for axis, arrays in columns]
        return self._once(inputs)

    def runs_alone(self, inputs: list[Array]) -> bool:
        """Whether each sample is run by itself."""
        return self._fixed and [array.shape for array in inputs] != self._shapes

    def _once(self, inputs: list[Array]) -> list[Array]:
        shapes = [array.shape for array in inputs]
        if shapes != self._shapes:
            for index, shape in zip(self._inputs, shapes, strict=True):
                self._interpreter.resize_tensor_input(index, shape)
            self._interpreter.allocate_tensors()
            self._shapes = shapes
        for index, array in zip(self._inputs, inputs, strict=True):
            self._interpreter.set_tensor(index, array)
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(index) for index in self._outputs]

    def delegated(self, model: TfliteModel) -> set[int]:
        """The operators that a delegate replaced: those between its inputs and its outputs."""
        makers = {index: number for number, operator in enumerate(model.operators) for index in operator.outputs}
        found: set[int] = set()
        for detail in self._interpreter._get_ops_details():
            if detail["op_name"] != "DELEGATE":
                continue
            given, wanted = set(detail["inputs"]), list(detail["outputs"])
            while wanted:
                number = makers.get(int(wanted.pop()))
                if number is not None and number not in found:
                    found.add(number)
                    wanted += [index for index in model.operators[number].inputs if index not in given]
        return found


def _same(grid: Encoding, held: Encoding) -> bool:
    """Whether two encodings are equal but for the shift from uint8 to int8."""
    shift = 128 if grid.dtype == "uint8" else 0
    return bool(grid.scale == held.scale and grid.zero_point - shift == held.zero_point)


def _typed(array: Array, dtype: str) -> Array:
    if dtype == "int8" and array.dtype == np.uint8:
        return (array.astype(np.int16) - 128).astype(np.int8)
    return np.ascontiguousarray(array.astype(dtype, copy=False))


def _channels_last(array: Array, last: bool) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if last else array


def _shape(model: TfliteModel, index: int, last: bool) -> tuple[int | str, ...]:
    sizes: list[int | str] = ["batch" if size < 0 else size for size in model.tensors[index].signature]
    if all(size >= 0 for size in model.tensors[index].signature):
        sizes[0] = "batch"
    return (sizes[0], sizes[-1], *sizes[1:-1]) if last else tuple(sizes)
