"""Runs a deployed QDQ model under an arithmetic, and shows every tensor inside."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import Tensor

from detent.errors import DeployError, DetentError, RunError, TensorError, refusing
from detent.frontends.onnx import expand_qoperators
from detent.frontends.onnx.reading.files import read_model
from detent.graph import TORCH_ERRORS, described
from detent.ir import Encoding, Network, Operand, Package, Port, read_qdq
from detent.twin.arithmetic import Arithmetic, Step
from detent.twin.program import Instruction, Program
from detent.twin.requantize import dequantize

__all__ = ["Model", "Twin", "graph_of"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Model = Network | Package | onnx.ModelProto | str | Path

_STORED = {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"}


def graph_of(model: Model) -> Network:
    """The network of a deployed folder, an ONNX model or file, a file that a target reads (.tflite), or the network
    itself.

    Operators on codes (QLinearConv ...) are expanded into a DequantizeLinear, the operator, and a QuantizeLinear.
    """
    if isinstance(model, Network):
        return model
    if isinstance(model, Package):
        return model.graph
    if isinstance(model, onnx.ModelProto):
        return _with_one_axis(read_qdq(expand_qoperators(model)))
    path = Path(model)
    with refusing(DeployError, f"read {path}", "its content is damaged: get the file, or deploy the model, again"):
        return _graph_at(path)


def _graph_at(path: Path) -> Network:
    if path.is_dir():
        return graph_of(Package.load(path))
    from detent.targets import TARGETS  # which stand above, and know how their own files are read

    read = TARGETS.reader(path.suffix)
    if read is None:
        return graph_of(read_model(path))
    if not path.is_file():
        raise DeployError(f"read {path}", "there is no such file", f"give the path of a {path.suffix} file")
    return read(path.read_bytes())


def _with_one_axis(graph: Network) -> Network:
    """Refuse a softmax before opset 13 that is over its axis and all behind it: no kernel computes that."""
    for op in graph.ops if graph.opset < 13 else ():
        data = op.inputs[0] if op.type in ("Softmax", "LogSoftmax") else None
        if data is None:
            continue
        axis, rank = int(op.attribute("axis")), len(graph.shapes.get(data.tensor, ()))
        if axis not in (-1, rank - 1):
            found = f"before opset 13 it is over axis {axis} and all axes after it"
            raise DeployError(f"run {op.type} {op.name!r}", found, "convert the model to opset 13 or above")
    return graph


class Twin:
    """A network compiled once for an arithmetic, to be run often.

    >>> from detent.ir import Op, Output, Port
    >>> from detent.twin import OnnxSpec
    >>> grid = Encoding(np.float32(0.5), np.int64(10), "uint8")
    >>> ops = (Op("Relu", "relu", (Operand("x", grid),), ("y",)),)
    >>> outputs = (Output("out", Operand("y", grid)),)
    >>> twin = Twin(Network({"x": Port("float32", (3,))}, outputs, ops, {}, frozenset(), {}, 21), OnnxSpec())
    >>> twin.run({"x": np.array([-1.0, 0.6, 2.0], np.float32)})["out"].tolist()
    [0.0, 0.5, 2.0]
    >>> {name: codes.tolist() for name, codes in twin.tensors({"x": np.array([-1.0, 0.6, 2.0])}).items()}
    {'x': [8, 11, 14], 'y': [10, 11, 14]}
    >>> print(twin)
    x:uint8 = Convert(x) [quantize]
    y = Relu(x:uint8) [float]
    y:uint8 = Convert(y) [quantize]
    """

    def __init__(self, model: Model, arithmetic: Arithmetic):
        self.graph, self.arithmetic = graph_of(model), arithmetic
        self._program = Program(self.graph, arithmetic)

    @property
    def steps(self) -> list[Step]:
        """The steps in order, including conversions between real numbers and codes."""
        return self._program.steps

    def __str__(self) -> str:
        return "\n".join(str(step) for step in self.steps)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """The outputs of the network by name: real numbers, or codes if the network returns codes."""
        return self._outputs(self._compute(inputs, {}, ()))

    def run_and_show(self, inputs: Arrays) -> tuple[dict[str, Array], dict[str, Array]]:
        """The results of `run` and `tensors` from one computation."""
        program = self._program
        values = self._compute(inputs, {}, (program.slots[operand] for operand in program.shown.values()))
        shown = program.shown.items()
        inside = {name: _array(values[program.slots[operand]], operand.encoding) for name, operand in shown}
        return self._outputs(values), inside

    def _outputs(self, values: Mapping[int, Tensor]) -> dict[str, Array]:
        found = {}
        for output in self._program.graph.outputs:
            value, encoding = _held(values[self._program.slots[output.read]], output.read), output.read.encoding
            if output.as_codes:
                found[output.name] = _array(value, encoding)
            else:
                found[output.name] = _array(value if encoding is None else dequantize(value, encoding), None)
        return found

    @property
    def rewritten(self) -> Network:
        """The network as the arithmetic rewrites it before it chooses kernels."""
        return self._program.graph

    def tensors(
        self, inputs: Arrays, given: Arrays | None = None, *, before_grids: Container[str] = ()
    ) -> dict[str, Array]:
        """Every tensor that exists in the engine, by its name in the ONNX graph: codes of an integer type where
        everybody reads it on one grid, else floats. Of those in `before_grids`, the real numbers that are put on the
        grid, where the engine makes them.

        `given` holds values of tensors inside, as an engine computed them: codes if they are integers, else real
        numbers. Operations then read these in place of what the twin computed, and the answer still is what the twin
        computed: each operation is compared alone, and a difference does not spread.
        """
        return dict(self.each_tensor(inputs, given, before_grids=before_grids))

    def each_tensor(
        self, inputs: Arrays, given: Arrays | None = None, *, before_grids: Container[str] = ()
    ) -> Iterator[tuple[str, Array]]:
        """The output of `tensors`, one at a time: a tensor is freed after its last reader."""
        program, shown = self._program, self._program.shown
        real = {name for name in shown if name in before_grids and Operand(name) in program.slots}
        wanted = {program.slots[Operand(name) if name in real else operand]: name for name, operand in shown.items()}
        operands = {program.slots[operand]: operand for operand in program.slots}
        values = self._entered(inputs)
        for number in list(values):
            if number in wanted:
                yield wanted[number], _array(values[number], operands[number].encoding)
        for instruction in program.instructions:
            self._execute(instruction, values, given or {})
            for number in instruction.writes:
                if number in wanted:
                    yield wanted[number], _array(values[number], operands[number].encoding)
            for number in instruction.last_use:
                del values[number]

    def given_operand(self, operand: Operand, given: Arrays) -> Tensor | None:
        """The value of `operand` according to `given` (see `tensors`); None if that does not determine it."""
        return self._as_operand(given[operand.tensor], operand) if self.is_given(operand, given) else None

    def step(self, tensor: str, given: Arrays) -> Array:
        """The output of the step that produces `tensor`, for given values of its inputs; in the form of `tensors`."""
        program = self._program
        if tensor not in program.shown:
            to_do = f"use one of {', '.join(program.shown)}"
            raise TensorError(f"the step that makes {tensor!r}", "the engine makes no tensor of that name", to_do)
        making = [each for each in program.instructions if any(made.tensor == tensor for made in each.step.writes)]
        read = {operand.tensor for each in making for operand in each.step.reads if operand is not None} - {tensor}
        missing = sorted(read - given.keys() - program.graph.constants.keys())
        if missing or tensor in program.entries:
            raise TensorError(
                f"the step that makes {tensor!r} from {', '.join(sorted(given)) or 'nothing'}",
                f"it reads {', '.join(missing)}" if missing else "it is an input of the network",
                "give the values of what it reads",
            )
        values = dict(program.constants)
        for instruction in making:
            self._execute(instruction, values, given)
        operand = program.shown[tensor]
        return _array(values[program.slots[operand]], operand.encoding)

    def _compute(self, inputs: Arrays, given: Arrays, keep: Iterable[int]) -> dict[int, Tensor]:
        values, kept = self._entered(inputs), set(keep)
        for instruction in self._program.instructions:
            self._execute(instruction, values, given)
            for number in instruction.last_use:
                if number not in kept:
                    del values[number]
        return values

    def _entered(self, inputs: Arrays) -> dict[int, Tensor]:
        """The values that exist before the first step."""
        if not isinstance(inputs, Mapping) or set(inputs) != set(self.graph.inputs):
            named = ", ".join(sorted(inputs)) if isinstance(inputs, Mapping) else f"as a {type(inputs).__name__}"
            raise TensorError(
                f"run with inputs {named or 'none'}",
                f"the network takes {', '.join(sorted(self.graph.inputs))}",
                "give a dict of arrays, named as the network's inputs",
            )
        values = dict(self._program.constants)
        for name, operand in self._program.entries.items():
            array = _typed(name, self.graph.inputs[name], inputs[name])
            values[self._program.slots[operand]] = _tensor(array, coded=operand.encoding is not None)
        return values

    def _execute(self, instruction: Instruction, values: dict[int, Tensor], given: Arrays) -> None:
        made = {operand.tensor for operand in instruction.step.writes}
        arguments: list[Tensor | None] = []
        for number, operand in zip(instruction.reads, instruction.step.reads, strict=True):
            value = None if operand is None or operand.tensor in made else self.given_operand(operand, given)
            if value is None and number is not None and operand is not None:
                value = _held(values[number], operand)
            arguments.append(value)
        try:
            with torch.no_grad():
                result = instruction.step.kernel(*arguments)
        except DetentError:
            raise
        except TORCH_ERRORS as error:
            raise _run_error(error, instruction.step, arguments) from error
        results: Sequence[Tensor] = (result,) if isinstance(result, Tensor) else result
        values.update(zip(instruction.writes, results, strict=True))

    def is_given(self, operand: Operand, given: Arrays) -> bool:
        """Whether a given value determines that operand. Codes of a tensor that is also read in float determine only
        the value on the grid."""
        if operand.tensor not in given or operand.tensor not in self._program.shown:
            return False
        if np.issubdtype(np.asarray(given[operand.tensor]).dtype, np.floating):
            return True
        grids = [grid for grid in self.graph.encodings(operand.tensor) if grid is not None]
        return not grids or self._program.shown[operand.tensor].encoding is not None or operand.encoding == grids[0]

    def _as_operand(self, array: Array, operand: Operand) -> Tensor:
        """An engine's value of a tensor, converted to the operand that a step reads."""
        grid = self._program.shown[operand.tensor].encoding or operand.encoding
        if np.issubdtype(np.asarray(array).dtype, np.floating) or grid is None:
            real = _tensor(array, coded=False)
        elif grid == operand.encoding:
            return _tensor(array, coded=True)
        else:
            real = dequantize(_tensor(array, coded=True), grid)
        return real if operand.encoding is None else self.arithmetic.quantize(real, operand.encoding)


def _run_error(error: Exception, step: Step, values: Sequence[Tensor | None]) -> RunError:
    """The error for an operation that does not fit its inputs, by its name in the network."""
    read = [
        described(value)
        + ("" if value.is_floating_point() or not value.numel() else f" of {value.min()} to {value.max()}")
        for value in values
        if value is not None
    ]
    named = ", ".join(f"{op.name!r} ({op.type})" for op in step.ops) or str(step)
    message = (str(error).strip().splitlines() or [""])[0]
    found = f"{type(error).__name__}: {message}"
    return RunError(f"run {named} on {', '.join(read) or 'nothing'}", found, "give inputs that fit the network")


def _typed(name: str, port: Port, array: Array) -> Array:
    typed = port.cast(array)
    if typed is None:
        raise TensorError(
            f"run with {name!r} of {np.asarray(array).dtype}",
            f"the network takes {port.dtype}, which does not hold these numbers",
            f"give it as {port.dtype}",
        )
    return typed


def _tensor(array: Array, *, coded: bool) -> Tensor:
    given = np.asarray(array)
    return torch.from_numpy(np.array(given, np.float32 if coded or given.dtype.kind == "f" else given.dtype))


def _held(value: Tensor, operand: Operand) -> Tensor:
    """The value of an operand as steps read it: constant codes are stored as integers."""
    return value if operand.encoding is None or value.is_floating_point() else value.to(torch.float32)


def _array(value: Tensor, encoding: Encoding | None) -> Array:
    array: Array = value.numpy()
    return array if encoding is None else array.astype(_STORED.get(encoding.dtype, encoding.dtype))
