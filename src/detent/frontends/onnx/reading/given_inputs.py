"""The inputs of a file as the user specifies them: every free size named, some sizes fixed, some inputs constant."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from detent.errors import OnnxError
from detent.frontends.onnx.reading.files import check_text
from detent.frontends.onnx.reading.sizes import MOST_ELEMENTS
from detent.frontends.onnx.reading.tensors import TORCH_TYPES
from detent.ir.protos import without_initializers

__all__ = ["set_inputs"]

_MOST_AXES = 32


def set_inputs(model: ModelProto, sizes: Mapping[str, int], values: Mapping[str, float]) -> ModelProto:
    """`model` with `sizes` in the place of free ones of these names, and `values` in the place of inputs.

    A size that is free and has no name (also -1, which some exporters write) is called after its axis, `size0`, and
    where there are several inputs after its input too, `x_size0`.
    """
    check_text(model)
    held = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in held]
    named = {value.name: _with_names(value, alone=len(inputs) == 1) for value in inputs}
    free = {dim.dim_param for value in named.values() for dim in value.type.tensor_type.shape.dim if dim.dim_param}
    _require_known("size", sizes, free)
    _require_known("input", values, named.keys())
    fixed = [_with_sizes(value, sizes) for name, value in named.items() if name not in values]
    for value in fixed:
        _check(value)
    if not sizes and fixed == inputs:
        return model
    made = without_initializers(model)
    del made.graph.input[:]
    made.graph.input.extend([*fixed, *(value for value in model.graph.input if value.name in held)])
    made.graph.initializer.extend(model.graph.initializer)
    for name, number in values.items():
        made.graph.initializer.add().CopyFrom(_constant(named[name], number))
    if sizes:  # shapes inferred before have other sizes
        del made.graph.value_info[:]
        outputs = [_with_sizes(value, sizes) for value in made.graph.output]
        del made.graph.output[:]
        made.graph.output.extend(outputs)
    return made


def _with_names(value: ValueInfoProto, *, alone: bool) -> ValueInfoProto:
    made = ValueInfoProto()
    made.CopyFrom(value)
    for axis, dim in enumerate(made.type.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value < 0:
            dim.ClearField("dim_value")
        if not dim.HasField("dim_value") and dim.dim_param in ("", "?"):
            dim.dim_param = f"size{axis}" if alone else f"{value.name}_size{axis}"
    return made


def _with_sizes(value: ValueInfoProto, sizes: Mapping[str, int]) -> ValueInfoProto:
    made = ValueInfoProto()
    made.CopyFrom(value)
    for dim in made.type.tensor_type.shape.dim:
        if dim.dim_param in sizes:
            dim.dim_value = sizes[dim.dim_param]
    return made


def _require_known(what: str, given: Mapping[str, object], known: Collection[str]) -> None:
    names = sorted(known)
    for name in given:
        if name not in names:
            raise OnnxError(
                f"set the {what} {name!r}",
                f"the model has no such {what}",
                f"name one of {', '.join(map(repr, names))}" if names else f"it has no {what} to set",
            )


def _check(value: ValueInfoProto) -> None:
    """No network takes what would not fit into memory."""
    dims = value.type.tensor_type.shape.dim
    if len(dims) > _MOST_AXES:
        found = f"it has {len(dims)} axes"
    elif math.prod(dim.dim_value for dim in dims if dim.dim_value) > MOST_ELEMENTS:
        found = f"it has {math.prod(dim.dim_value for dim in dims if dim.dim_value)} elements"
    else:
        return
    raise OnnxError(f"the input {value.name!r}", found, "check the file: no tensor is that large")


def _constant(value: ValueInfoProto, number: float) -> TensorProto:
    kind = value.type.tensor_type
    if kind.elem_type not in TORCH_TYPES or any(dim.dim_value != 1 for dim in kind.shape.dim):
        raise OnnxError(
            f"set the input {value.name!r} to {number}", "it is not a single number", "set inputs of one number"
        )
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    made = np.full([1] * len(kind.shape.dim), number, dtype)
    if not np.array_equal(made, np.full(made.shape, number)):
        raise OnnxError(f"set the input {value.name!r} to {number}", f"it is of the type {dtype}", "set a number of it")
    return numpy_helper.from_array(made, value.name)
