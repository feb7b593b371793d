"""Sizes of every tensor of a network, with the free ones (the batch) found by trying two values."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from detent.errors import DeployError

__all__ = ["Sizes"]


@dataclass(frozen=True)
class Sizes:
    """`shape` is that of a batch of one, `signature` the same with -1 where the batch decides."""

    ones: dict[str, tuple[int, ...]]
    twos: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Sizes:
        return cls(_with(model, 1), _with(model, 2))

    def shape(self, tensor: str) -> tuple[int, ...]:
        if tensor not in self.ones or tensor not in self.twos:
            raise DeployError(
                f"write the tensor {tensor!r} as .tflite",
                "its shape is only known when the network runs",
                "give a network whose shapes depend on the batch size alone",
            )
        return self.ones[tensor]

    def signature(self, tensor: str) -> tuple[int, ...]:
        pairs = zip(self.shape(tensor), self.twos[tensor], strict=True)
        return tuple(one if one == two else -1 for one, two in pairs)


def _with(model: onnx.ModelProto, size: int) -> dict[str, tuple[int, ...]]:
    """The shapes that follow from giving every free size of the inputs one value."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    del fixed.graph.value_info[:]
    for value in fixed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = size
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        graph = onnx.shape_inference.infer_shapes(fixed, strict_mode=True, data_prop=True).graph
    except onnx.shape_inference.InferenceError as error:
        raise DeployError(
            "write the network as .tflite", f"its shapes do not fit: {error}", "check that it runs in ONNX Runtime"
        ) from None
    found: dict[str, tuple[int, ...]] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            found[value.name] = tuple(dim.dim_value for dim in dims)
    return found
