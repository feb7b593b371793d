"""The inputs of an imported network: their shapes by name, and example inputs of these shapes."""

from __future__ import annotations

import math

import torch
from onnx import TensorProto
from torch import Tensor, nn

from detent.errors import OnnxError
from detent.frontends.onnx.reading.tensors import TORCH_TYPES, stored_type
from detent.frontends.onnx.source import source_of

__all__ = ["example_inputs", "ports_of", "refuse_other_reals", "types_of"]

_MOST_AXES, _MOST_ELEMENTS = 64, 2**30  # what torch has, and 4 GB of float32


def ports_of(network: nn.Module) -> dict[str, tuple[int | str, ...]]:
    """Input name to shape, with names for sizes that the file leaves free."""
    graph = source_of(network).model.graph
    held = {tensor.name for tensor in graph.initializer}
    found: dict[str, tuple[int | str, ...]] = {}
    for value in graph.input:
        if value.name not in held:
            dims = value.type.tensor_type.shape.dim
            found[value.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"size{axis}"
                for axis, dim in enumerate(dims)
            )
    return found


def types_of(network: nn.Module) -> dict[str, str]:
    """Input name to numpy type, where numpy has it."""
    types = {value.name: value.type.tensor_type.elem_type for value in source_of(network).model.graph.input}
    found = {name: stored_type(number) for name, number in types.items() if number in TORCH_TYPES}
    return {name: kind for name, kind in found.items() if kind != "bfloat16"}


def refuse_other_reals(network: nn.Module) -> None:
    """Refuse an imported network whose floats are not float32, which the scales of Q and DQ are."""
    graph = source_of(network).model.graph
    held: list[tuple[str, torch.dtype | None]] = [(name, held.dtype) for name, held in network.named_parameters()]
    held += [(value.name, TORCH_TYPES.get(value.type.tensor_type.elem_type)) for value in graph.input]
    for name, dtype in held:
        if dtype is not None and dtype.is_floating_point and dtype != torch.float32:
            raise OnnxError(
                "quantize an ONNX model",
                f"{name!r} is {str(dtype).removeprefix('torch.')}",
                "export the model in float32: its weights become integers anyway",
            )


def example_inputs(network: nn.Module, *, free: int = 1) -> tuple[Tensor, ...]:
    """Random numbers, or zeros for integers, of the shapes the file states; `free` stands in for the others."""
    graph = source_of(network).model.graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    generator = torch.Generator().manual_seed(0)
    made = []
    for name, shape in ports_of(network).items():
        sizes = [size if isinstance(size, int) else free for size in shape]
        if min(sizes, default=1) < 0 or len(sizes) > _MOST_AXES or math.prod(sizes) > _MOST_ELEMENTS:
            raise OnnxError(
                f"an example for the input {name!r}",
                f"its shape is {str(sizes)[:80]}",
                f"give sizes from 0 on, at most {_MOST_AXES} of them, of at most {_MOST_ELEMENTS:,} numbers in all",
            )
        dtype = TORCH_TYPES.get(types[name], torch.float32)
        if types[name] in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16):
            made.append(torch.rand(sizes, generator=generator).to(dtype))
        else:
            made.append(torch.zeros(sizes, dtype=dtype))
    return tuple(made)
