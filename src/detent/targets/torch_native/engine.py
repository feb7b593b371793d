"""Torch's own integer kernels: runs the file of `detent.targets.torch_native.writer` with `torch.ops.quantized`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.errors import EngineError
from detent.ir import Op, Operand, Package, Trait, ops_with
from detent.ir.torch_functions import call
from detent.ir.torch_module import FloatGrids, TorchGraph
from detent.targets.base import Engine, Placement
from detent.targets.base.engine import Arrays
from detent.targets.base.ports import given
from detent.targets.torch_native.program import ProgramGrid, ProgramStep, TorchProgram
from detent.targets.torch_native.writer import read_torch_native

__all__ = ["Kernels", "TorchNative"]

Kernels = Literal["fbgemm", "qnnpack", "x86"]
"""FBGEMM, QNNPACK, or what torch takes on x86 unless told otherwise: oneDNN's convolutions and FBGEMM's linear layers,
on CPUs without VNNI FBGEMM for both. Torch's fourth, oneDNN for both, is not on offer: its linear layers end the
process on CPUs that hide some of AMX. So do its transposed convolutions, which are FBGEMM's here as well."""
Values = dict[str, Tensor]
Run = Callable[[Values], "Tensor | tuple[Tensor, ...]"]

_QTYPES = {"uint8": torch.quint8, "int8": torch.qint8}


class TorchNative(Engine):
    """The deployed network on one of torch's four kernel libraries.

    Quantized tensors of four dimensions are kept channels last, as the convolutions give them.
    """

    name: ClassVar[str] = "torch"
    arithmetic = "fbgemm"

    def __init__(self, package: Package, program: TorchProgram, kernels: Kernels, threads: int, as_float: bool):
        self._graph, self._program, self._kernels, self._threads = package.graph, program, kernels, threads
        self._float = TorchGraph(package.graph, FloatGrids()) if as_float else None
        with self._settings():
            self._tensors = {name: torch.from_numpy(np.array(array)) for name, array in program.tensors.items()}
            self._runs = [] if as_float else [self._prepared(step) for step in program.steps]

    @classmethod
    def version(cls) -> str | None:
        return str(torch.__version__)

    @classmethod
    def options_for(cls, arithmetic: str) -> dict[str, Any]:
        kernels = {"onednn": "x86"}.get(arithmetic, arithmetic)
        return {"kernels": kernels} if kernels in get_args(Kernels) else {}

    @classmethod
    def load(
        cls, package: Package, *, threads: int = 1, as_float: bool = False, kernels: Kernels = "fbgemm"
    ) -> TorchNative:
        """`kernels` names the library; fbgemm is the one that Detent's backend for x86 is planned for."""
        known = [name for name in get_args(Kernels) if name in torch.backends.quantized.supported_engines]
        if kernels not in known:
            raise EngineError(f"torch kernels {kernels!r}", f"there are {', '.join(known)}", "choose one of them")
        return cls(package, read_torch_native(package.folder), kernels, threads, as_float)

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        arrays = self._given(inputs)
        with self._settings():
            if self._float is not None:
                results = self._float(*arrays.values())
                return {name: value.numpy() for name, value in zip(self._program.outputs, results, strict=True)}
            values = self._computed(arrays)
            return {name: self._output(name, values[value]) for name, value in self._program.outputs.items()}

    def tensors(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Codes for tensors that are on one grid only, otherwise floats."""
        with self._settings():
            values = self._computed(self._given(inputs))
            found = {
                name: value.numpy()
                for name, value in values.items()
                if name not in self._program.grids and name not in self._tensors
            }
            for name, grid in self._program.grids.items():
                if grid.tensor not in found or self._graph.grid_of(grid.tensor) is not None:
                    found[grid.tensor] = values[name].int_repr().numpy()
        return found

    def explain(self) -> list[Placement]:
        found = []
        for step in self._program.steps:
            on_codes = any(name in self._program.grids for name in step.outputs)
            for index, (name, kind) in enumerate(step.ops):
                head = kind == step.call.removeprefix("onnx.") or index == _head(step)
                if self._float is not None or not on_codes:
                    found.append(Placement(name, kind, "float", step.why or "the float network was asked for"))
                else:
                    found.append(Placement(name, kind, "integer" if head else "folded"))
        return found

    def _given(self, inputs: Arrays) -> Values:
        arrays = given(self._program.inputs, inputs, engine=self.name)
        return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}

    def _computed(self, given: Values) -> Values:
        values = {**self._tensors, **given}
        for step, run in zip(self._program.steps, self._runs, strict=True):
            made = run(values)
            for name, value in zip(step.outputs, made if isinstance(made, tuple) else (made,), strict=True):
                values[name] = value
        return values

    def _output(self, name: str, value: Tensor) -> npt.NDArray[Any]:
        if value.is_quantized:
            value = value.int_repr() if name in self._program.codes else value.dequantize()
        return value.contiguous().numpy()

    def _prepared(self, step: ProgramStep) -> Run:
        """The step as a function of the values so far, with its weights packed."""
        grid = self._program.grids.get(step.outputs[0])
        run = _kernel(step, grid, self._tensors, self._program.tensors)
        clamp = step.attributes.get("clamp")
        if grid is None:
            return run

        def on_codes(values: Values) -> Tensor | tuple[Tensor, ...]:
            made = run(values)
            parts = made if isinstance(made, tuple) else (made,)
            if clamp is not None:
                low, high = ((code - grid.zero_point) * grid.scale for code in clamp)
                parts = tuple(_clamped(part, low, high) for part in parts)
            return tuple(_laid_out(part) for part in parts)

        return on_codes

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """A context with the global torch settings that this engine needs; restores the previous ones."""
        kernels, threads = torch.backends.quantized.engine, torch.get_num_threads()
        torch.backends.quantized.engine = self._kernels
        torch.set_num_threads(self._threads)
        try:
            with warnings.catch_warnings(), torch.no_grad():
                # Torch says that quantized tensors will go; there is no other way to its kernels.
                warnings.filterwarnings("ignore", message="(?s).*deprecated", category=UserWarning)
                yield
        finally:
            torch.backends.quantized.engine = kernels
            torch.set_num_threads(threads)


def _head(step: ProgramStep) -> int:
    """The operation of a step that the others are fused into."""
    heads = ops_with(Trait.WEIGHTED) | {"Mul", "Concat"}
    kinds = [kind for _, kind in step.ops]
    return next((kinds.index(kind) for kind in heads if kind in kinds), 0)


def _laid_out(value: Tensor) -> Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value.contiguous()


def _clamped(value: Tensor, low: float, high: float) -> Tensor:
    # QNNPACK's kernel mixes up the elements of tensors that are channels last: it gets another view of them.
    if value.ndim != 4:
        return torch.clamp(value, low, high)
    return torch.clamp(_laid_out(value).permute(0, 2, 3, 1), low, high).permute(0, 3, 1, 2)


def _kernel(
    step: ProgramStep, grid: ProgramGrid | None, tensors: Values, arrays: Mapping[str, npt.NDArray[Any]]
) -> Run:
    namespace, _, name = step.call.partition(".")
    if namespace == "onnx":
        return _onnx(step, name, arrays)
    if namespace == "dequantize":
        return lambda values: values[_only(step)].dequantize()
    if grid is None:
        raise EngineError(f"run the step {step.call}", "its output has no grid", "deploy the model again")
    scale, zero_point = grid.scale, grid.zero_point
    if namespace == "quantize":
        dtype = _QTYPES[grid.dtype]
        return lambda values: torch.quantize_per_tensor(values[_only(step)], scale, zero_point, dtype)
    if namespace == "clamp":
        return lambda values: values[_only(step)]
    if namespace == "aten" and name in ("hardsigmoid", "tanh"):
        function = torch.tanh if name == "tanh" else torch.nn.functional.hardsigmoid
        return lambda values: function(values[_only(step)])
    if namespace == "quantized" and name.removesuffix("_relu") in ("conv1d", "conv2d", "conv_transpose2d", "linear"):
        return _weighted(step, name, scale, zero_point, tensors)
    operator = getattr(torch.ops.quantized, name)
    names = [value for value in step.inputs if value is not None]
    if name == "cat":
        return lambda values: operator([values[n] for n in names], step.attributes["dim"], scale, zero_point)
    if name.removesuffix("_relu") in ("add", "mul"):
        return lambda values: operator(*_broadcast(values[names[0]], values[names[1]]), scale, zero_point)
    if name == "leaky_relu":
        return lambda values: operator(values[names[0]], step.attributes["slope"], False, scale, zero_point)
    if name == "elu":
        return lambda values: operator(values[names[0]], scale, zero_point, step.attributes["alpha"], 1.0, 1.0)
    if name in ("hardswish", "sigmoid"):
        return lambda values: operator(values[names[0]], scale, zero_point)
    raise EngineError(f"run the step {step.call}", "this engine does not know the call", "deploy the model again")


def _only(step: ProgramStep) -> str:
    name = step.inputs[0]
    assert name is not None, step
    return name


def _onnx(step: ProgramStep, kind: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Run:
    names = step.inputs
    reads = tuple(None if name is None else Operand(name) for name in names)
    op = Op(kind, step.ops[0][0] if step.ops else kind, reads, step.outputs, step.attributes)
    return lambda values: call(op, [None if name is None else values[name] for name in names], arrays)


def _broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors in one shape and layout, so that the kernel runs over them in memory order."""
    if a.shape != b.shape:
        shape = np.broadcast_shapes(a.shape, b.shape)
        a, b = _laid_out(a.expand(shape)), _laid_out(b.expand(shape))
    return a, b


def _weighted(step: ProgramStep, name: str, scale: float, zero_point: int, tensors: Values) -> Run:
    """A convolution or linear layer with packed weights."""
    x, codes, scales, bias = step.inputs
    assert x is not None
    assert codes is not None
    assert scales is not None
    weight = _weight(tensors[codes], tensors[scales])
    held = None if bias is None else tensors[bias]
    given = step.attributes
    library = torch.ops.quantized
    kernel = name.removesuffix("_relu")
    if kernel == "linear":
        packed = library.linear_prepack(weight, held)
    elif kernel == "conv_transpose2d":
        packed = _packed_transposed(tensors[codes], tensors[scales], held, given)
    else:
        prepack = library.conv1d_prepack if kernel == "conv1d" else library.conv2d_prepack
        packed = prepack(weight, held, given["strides"], given["padding"], given["dilations"], given["groups"])
    operator = getattr(library, name)
    return lambda values: operator(values[x], packed, scale, zero_point)


def _packed_transposed(codes: Tensor, scale: Tensor, bias: Tensor | None, given: Mapping[str, Any]) -> Any:
    """The weights of a transposed convolution, packed for the library that is set, or FBGEMM in place of oneDNN."""
    framed = _meets_direct_kernel(codes, given)
    library = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm" if library == "x86" else library
    try:
        return torch.ops.quantized.conv_transpose2d_prepack(
            _weight(torch.nn.functional.pad(codes, (0, 0, 1, 1)) if framed else codes, scale),
            bias,
            given["strides"],
            [1, 0] if framed else given["padding"],
            given["output_padding"],
            given["dilations"],
            given["groups"],
        )
    finally:
        torch.backends.quantized.engine = library


def _meets_direct_kernel(codes: Tensor, given: Mapping[str, Any]) -> bool:
    """Whether fbgemm would run its direct kernel for transposed convolutions, which adds to memory that it never
    cleared (in torch 2.13: two runs give other numbers, up to 200 codes off).

    It takes kernels two rows high that cut nothing off. A row of zeros on either side, cut off again, is the same
    convolution for the general kernel.
    """
    inputs, outputs, rows, _ = codes.shape
    uncut = given["padding"] == [0, 0] and given["dilations"] == [1, 1] and given["groups"] == 1
    return rows == 2 and inputs % 8 == 0 and outputs % 8 == 0 and uncut and max(given["strides"]) <= 2


def _weight(codes: Tensor, scale: Tensor) -> Tensor:
    """Codes as a quantized tensor: real numbers on a grid come back as the codes they were."""
    shape = [-1] + [1] * (codes.ndim - 1)
    if scale.ndim == 0:
        made = torch.quantize_per_tensor(codes.float() * scale, float(scale), 0, torch.qint8)
    else:
        zeros = torch.zeros(len(scale), dtype=torch.long)
        made = torch.quantize_per_channel(codes.float() * scale.reshape(shape), scale, zeros, 0, torch.qint8)
    if not torch.equal(made.int_repr(), codes):
        raise EngineError("pack weights for torch", "a scale is too small for float32", "calibrate the weights again")
    return made
