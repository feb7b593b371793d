"""Which of torch's integer kernels runs what: a QDQ network to a list of calls, with a reason for each float one."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DeployError
from detent.ir import Encoding, Network, Op, Operand, constant_values, sole_float_reader
from detent.ir.qparams import BOUNDS
from detent.ir.torch_functions import FUNCTIONS
from detent.targets.torch_native.program import ProgramGrid, ProgramStep, TorchProgram

__all__ = ["Lowered", "Maker", "NoKernelError", "TorchLowering"]

Array = npt.NDArray[Any]

_TURNS = "it turns a constant"


@dataclass(frozen=True)
class Lowered:
    """A step with the operations it stands for, and the operands it reads and writes (constants left out)."""

    step: ProgramStep
    ops: tuple[Op, ...]
    reads: tuple[Operand | None, ...]
    writes: tuple[Operand, ...]


class NoKernelError(Exception):
    """Why an operation has no integer kernel. `TorchLowering` catches it: it becomes the reason of a float step."""


Maker = Callable[["TorchLowering", Op], None]
"""Adds the step of an operation, or raises NoKernelError before it added anything."""


class TorchLowering:
    """A walk over a network. `lowered` holds the steps that stand for operations; `program` all of them."""

    def __init__(self, graph: Network, makers: Mapping[str, Maker]):
        self.graph = graph
        self._makers = makers
        self.lowered: list[Lowered] = []
        self._steps: list[ProgramStep] = []
        self._grids: dict[str, ProgramGrid] = {}
        self._tensors: dict[str, Array] = {}
        self._values: dict[Operand, str] = {Operand(name): name for name in graph.inputs}
        self._pending: dict[str, Op] = {}
        self._taken: set[str] = set()
        for op in graph.ops:
            self._take(op)
        for output in graph.outputs:
            self.value(output.read)
        for op in tuple(self._pending.values()):
            self._in_float(op, _TURNS)

    @property
    def program(self) -> TorchProgram:
        outputs = {output.name: self.value(output.read) for output in self.graph.outputs}
        codes = tuple(output.name for output in self.graph.outputs if output.as_codes)
        return TorchProgram(self.graph.inputs, outputs, codes, self._grids, tuple(self._steps), self._tensors)

    def _take(self, op: Op) -> None:
        if op.outputs[0] in self._taken:
            return
        if op.type == "Transpose" and self.is_constant(op.inputs[0]):
            self._pending[op.outputs[0]] = op  # a linear layer may take it in
            return
        why = "torch has no integer kernel for it"
        if op.type in self._makers:
            try:
                self._makers[op.type](self, op)
                return
            except NoKernelError as reason:
                why = str(reason)
        self._in_float(op, why)

    # --- what makers look at -----------------------------------------------------------------------------

    def is_constant(self, read: Operand | None) -> bool:
        return self.graph.is_constant(read)

    def constant(self, read: Operand) -> Array:
        """The value of a constant: real numbers, or integers that are not codes."""
        values = constant_values(self.graph, read)
        assert values is not None
        return values

    def pending(self, read: Operand | None) -> Op | None:
        """The operation on constants that gives what is read, if nothing has asked for it yet."""
        return None if read is None else self._pending.get(read.tensor)

    def grid(self, read: Operand | None) -> Encoding:
        """The uint8 grid a computed tensor is read on."""
        if read is None or read.encoding is None:
            raise NoKernelError("it reads floats")
        if not is_grid(read.encoding, "uint8"):
            raise NoKernelError("torch's kernels take unsigned 8 bit activations with one scale")
        return read.encoding

    def output_grid(self, tensor: str) -> Encoding:
        """The uint8 grid everybody reads a tensor on."""
        found = self.graph.grid_of(tensor)
        if found is None:
            raise NoKernelError("its output is read in float, or on several grids")
        return self.grid(Operand(tensor, found))

    def behind(self, op: Op, types: Container[str]) -> Op | None:
        """The only operation that reads the output of `op`, in float and as its first input, if it has one of these
        types."""
        follower = sole_float_reader(self.graph, op.outputs[0])
        if follower is None or follower.inputs[0] != Operand(op.outputs[0]):
            return None
        return follower if follower.type in types else None

    # --- what makers do ----------------------------------------------------------------------------------

    def value(self, read: Operand) -> str:
        """The name of an operand's value, converted if necessary."""
        if read in self._values:
            return self._values[read]
        if read.tensor in self._pending:
            self._in_float(self._pending[read.tensor], _TURNS)
        if self.is_constant(read):
            if read.encoding is not None:
                raise AssertionError(read)  # kernels hold codes themselves, float operations ask for real numbers
            self._values[read] = self.hold(read.tensor, self.constant(read))
            return self._values[read]
        if read.tensor in self.graph.coded:
            raise DeployError(
                f"write the network input {read.tensor!r} for torch", "it is given as integers", "give it in float"
            )
        source = Operand(read.tensor)
        if source not in self._values:
            codes = next(value for operand, value in self._values.items() if operand.tensor == read.tensor)
            self._convert("dequantize", codes, source, read.tensor)
        if read.encoding is not None:
            value = self._value(read.tensor, read.encoding)
            self._convert("quantize", self._values[source], read, value)
        return self._values[read]

    def hold(self, name: str, array: Array) -> str:
        """Store a constant in the file; returns its name there."""
        while name in self._tensors and not np.array_equal(self._tensors[name], array):
            name += "_"
        self._tensors[name] = array
        return name

    def add(
        self,
        call: str,
        ops: tuple[Op, ...],
        reads: tuple[Operand | None, ...],
        writes: tuple[Operand, ...],
        *,
        constants: tuple[str | None, ...] = (),
        attributes: Mapping[str, Any] | None = None,
        why: str = "",
    ) -> None:
        """A step behind the last one; `constants` come behind what is computed."""
        inputs = tuple(None if read is None else self.value(read) for read in reads)
        outputs = []
        for write in writes:
            value = write.tensor if write.encoding is None else self._value(write.tensor, write.encoding)
            self._values[write] = value
            outputs.append(value)
        names = tuple((op.name, op.type) for op in ops)
        step = ProgramStep(call, (*inputs, *constants), tuple(outputs), dict(attributes or {}), names, why)
        self._steps.append(step)
        computed = tuple(read for read in reads if read is None or not self.is_constant(read))
        self.lowered.append(Lowered(step, ops, computed, writes))
        self._taken.update(op.outputs[0] for op in ops)
        for op in ops:
            self._pending.pop(op.outputs[0], None)

    def _in_float(self, op: Op, why: str) -> None:
        if op.type not in FUNCTIONS or op.domain not in ("", "ai.onnx"):
            raise DeployError(
                f"write {op.type} {op.name!r} for torch",
                "Detent knows no torch function for this type",
                "change the network, or deploy for another target",
            )
        self._pending.pop(op.outputs[0], None)
        reads = tuple(None if read is None else self._real(read) for read in op.inputs)
        writes = tuple(Operand(name) for name in op.outputs if name)
        self.add(f"onnx.{op.type}", (op,), reads, writes, attributes=op.attributes, why=why)

    def _real(self, read: Operand) -> Operand:
        """The floats of what is read: of the codes, if it is read on a grid."""
        if read.encoding is None:
            return read
        if self.is_constant(read):
            real = Operand(f"{read.tensor}_dequantized")
            self._values[real] = self.hold(real.tensor, self.constant(read))
            return real
        value = self.value(read)
        real = Operand(f"{value}_dequantized")
        if real not in self._values:
            self._convert("dequantize", value, real, real.tensor)
        return real

    def _convert(self, call: str, source: str, operand: Operand, value: str) -> None:
        clamp = {}
        if call == "quantize" and not self._grids[value].full:
            clamp = {"clamp": [self._grids[value].low, self._grids[value].high]}
        self._steps.append(ProgramStep(call, (source,), (value,), clamp))
        self._values[operand] = value

    def _value(self, tensor: str, encoding: Encoding) -> str:
        """A name for the codes of a tensor; the first grid gets the plain one."""
        if not (is_grid(encoding, "uint8") or is_grid(encoding, "int8")):
            raise DeployError(
                f"write the tensor {tensor!r} for torch",
                f"its codes are {encoding.dtype}" + ("" if encoding.per_tensor else " with a scale for each channel"),
                "quantize activations with at most 8 bits and one scale",
            )
        taken = sum(1 for operand in self._values if operand.tensor == tensor and operand.encoding is not None)
        value = f"{tensor}_quantized" + (f"_{taken + 1}" if taken else "")
        dtype = "uint8" if is_grid(encoding, "uint8") else "int8"
        scale, zero_point = float(encoding.scale), int(encoding.zero_point)
        self._grids[value] = ProgramGrid(tensor, scale, zero_point, dtype, encoding.qmin, encoding.qmax)
        return value


def is_grid(encoding: Encoding, dtype: str) -> bool:
    """Whether codes fit into "uint8" or "int8" with one scale."""
    low, high = BOUNDS[encoding.dtype]
    least, greatest = BOUNDS[dtype]
    signed = encoding.dtype.startswith("int") == dtype.startswith("int")
    return encoding.per_tensor and signed and least <= low and high <= greatest
