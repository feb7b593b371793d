"""The state of translating one .tflite file to ONNX operations.

Of images (four axes) the channels come second, as ONNX has them. A tensor of the file that is not constant is one of
the network, of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DeployError
from detent.ir import Encoding, Network, Op, Operand, Output, Port
from detent.targets.litert.file.container import Operator, TfliteModel, TfliteTensor
from detent.targets.litert.file.padding import SAME
from detent.targets.litert.file.writer import tensor_names

__all__ = ["FROM_LAST", "TO_LAST", "Translation"]

Array = npt.NDArray[Any]

TO_LAST, FROM_LAST = (0, 2, 3, 1), (0, 3, 1, 2)
_OPSET = 21
_ACTIVATIONS: Mapping[int, tuple[float, float] | None] = {0: None, 1: (0.0, np.inf), 2: (-1.0, 1.0), 3: (0.0, 6.0)}


class Translation:
    """The operations so far, and what their makers need: names, reads, constants."""

    def __init__(self, model: TfliteModel):
        self.model = model
        self.names = tensor_names(model)
        self.ops: list[Op] = []
        self.constants: dict[str, Array] = {}
        self._coded: set[str] = set()

    def graph(self) -> Network:
        """The network translated so far."""
        model = self.model
        inputs = {self.names[index]: Port(self.tensor(index).dtype, self.sizes(index)) for index in model.inputs}
        coded = {self.names[index] for index in model.inputs if self.tensor(index).encoding is not None}
        outputs = tuple(
            Output(self.names[index], self.read(index), as_codes=self.tensor(index).encoding is not None)
            for index in model.outputs
        )
        shapes = {self.names[index]: self.sizes(index) for index, t in enumerate(model.tensors) if t.data is None}
        held = frozenset(self._coded | coded)
        return Network(inputs, outputs, tuple(self.ops), self.constants, held, shapes, _OPSET)

    def tensor(self, index: int) -> TfliteTensor:
        return self.model.tensors[index]

    def rank(self, index: int) -> int:
        return len(self.tensor(index).shape)

    def sizes(self, index: int) -> tuple[int | str, ...]:
        sizes: list[int | str] = ["batch" if size < 0 else size for size in self.tensor(index).signature]
        return (sizes[0], sizes[3], sizes[1], sizes[2]) if len(sizes) == 4 else tuple(sizes)

    def read(self, index: int) -> Operand:
        """The operand that an operator reads; a constant with four axes is transposed as activations are."""
        tensor = self.tensor(index)
        if tensor.data is not None:
            data = tensor.data.transpose(FROM_LAST) if tensor.data.ndim == 4 else tensor.data
            return self.constant(self.names[index], data, tensor.encoding)
        return Operand(self.names[index], tensor.encoding)

    def constant(self, name: str, data: Array, encoding: Encoding | None) -> Operand:
        if encoding is None:
            self.constants[name] = data
        else:
            self.constants[name] = data.astype(np.int64)
            self._coded.add(name)
        return Operand(name, encoding)

    def integers(self, index: int) -> list[int]:
        data = self.tensor(index).data
        if data is None:
            raise DeployError(
                f"read the tensor {self.names[index]!r}",
                "it is a shape or an axis, and is computed",
                "give constants",
            )
        return [int(value) for value in data.reshape(-1)]

    def emit(self, kind: str, operator: Operator, *inputs: Operand | None, **attributes: Any) -> None:
        """An operation, followed by the activation function that the operator is fused with."""
        name = self.names[operator.outputs[0]]
        bounds = _ACTIVATIONS[int(operator.options.get("fusedActivationFunction", 0))]
        made = name if bounds is None else f"{name}_linear"
        self.ops.append(Op(kind, f"{name}.{kind}", inputs, (made,), attributes))
        if bounds is not None:
            self.clip(name, Operand(made), bounds)

    def clip(self, name: str, read: Operand, bounds: tuple[float, float]) -> None:
        if bounds == (0.0, np.inf):
            self.ops.append(Op("Relu", f"{name}.Relu", (read,), (name,)))
            return
        limits = [
            self.constant(f"{name}_{side}", np.array(bound, np.float32), None)
            for side, bound in zip(("low", "high"), bounds, strict=True)
        ]
        self.ops.append(Op("Clip", f"{name}.Clip", (read, *limits), (name,)))

    def window(self, operator: Operator) -> dict[str, Any]:
        options = operator.options
        return {
            "strides": [int(options["strideH"]), int(options["strideW"])],
            "auto_pad": "SAME_UPPER" if options["padding"] == SAME else "VALID",
        }

    def bias(self, operator: Operator, position: int = 2) -> tuple[Operand, ...]:
        if len(operator.inputs) <= position or operator.inputs[position] < 0:
            return ()
        return (self.read(operator.inputs[position]),)

    def weight(self, index: int, order: tuple[int, ...]) -> Operand:
        tensor = self.tensor(index)
        if tensor.data is None:
            raise DeployError(f"read the weight {self.names[index]!r}", "it is computed", "give constant weights")
        encoding = tensor.encoding
        if encoding is not None and encoding.axis is not None:
            encoding = Encoding(encoding.scale, encoding.zero_point, encoding.dtype, order.index(encoding.axis))
        return self.constant(self.names[index], tensor.data.transpose(order), encoding)

    def in_file_order(self, index: int) -> Operand:
        """A tensor with its channels last, if it is an image in which that matters."""
        read, shape = self.read(index), self.tensor(index).shape
        if len(shape) != 4 or shape[3] == 1 or shape[1] * shape[2] == 1:
            return read
        made = f"{read.tensor}_channels_last"
        if not any(op.outputs[0] == made for op in self.ops):
            self.ops.append(Op("Transpose", f"{made}.Transpose", (read,), (made,), {"perm": list(TO_LAST)}))
        return Operand(made, read.encoding)

    def reshaped(self, read: Operand, name: str, shape: list[int]) -> Operand:
        target = self.constant(f"{name}_shape", np.array(shape, np.int64), None)
        self.ops.append(Op("Reshape", f"{name}.Reshape", (read, target), (name,)))
        return Operand(name, read.encoding)
