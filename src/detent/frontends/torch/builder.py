"""Collects the nodes and constants of an ONNX graph, and gives each its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from detent.frontends.torch.values import Free, Ref
from detent.ir import CLIPPED, TRANSPOSED, Encoding

__all__ = ["ONNX_TYPES", "Builder"]

ONNX_TYPES: dict[torch.dtype, int] = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.int16: TensorProto.INT16,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
}


class Builder:
    """An ONNX graph in the making.

    `current` is the fx node being written: the tensor it gives has its name, and so has the last ONNX node that is
    written for it; those before it get the name with a number. `result` is the shape and type it has.
    `quantizes_pools` says that the target has an integer kernel for global pooling, `before_squeeze` which tensors
    were pooled before they got their shape.
    """

    def __init__(self, opset: int):
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.values: dict[str, onnx.ValueInfoProto] = {}
        self.before_squeeze: dict[str, str] = {}
        self.quantizes_pools = True
        self.coded: dict[str, tuple[str, Encoding]] = {}  # real values to the initializer with their codes
        self.current = ""
        self.result: Any = None
        self._grids: dict[tuple[str, Encoding], list[str]] = {}
        self._constants: dict[str, str] = {}  # those that were asked for by a name, and the name they have
        self._counts: dict[str, int] = {}
        self.taken: set[str] = set()

    # --- names

    def fresh(self, stem: str) -> str:
        """A name that nothing has yet."""
        name, count = stem, self._counts.get(stem, 0)
        while name in self.taken:
            count += 1
            name = f"{stem}.{count}"
        self._counts[stem] = count
        self.taken.add(name)
        return name

    # --- constants

    def constant(self, value: Any, name: str | None = None, dtype: Any = None) -> str:
        """An initializer; one under a given name is made once."""
        if name is not None and name in self._constants:
            return self._constants[name]
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value, dtype)
        # The current node's own name is kept for it; what else has a name already is another tensor.
        made = self.current if name == self.current else self.fresh(name or f"{self.current}_constant")
        self.initializers[made] = numpy_helper.from_array(array, made)
        if name is not None:
            self._constants[name] = made
        return made

    def integers(self, values: Sequence[int]) -> str:
        return self.constant(np.array(values, np.int64))

    def codes(self, codes: npt.NDArray[Any], encoding: Encoding, name: str) -> str:
        """An initializer of the encoding's own integer type."""
        if name not in self.initializers:
            elem_type = getattr(TensorProto, encoding.dtype.upper())
            self.taken.add(name)
            if encoding.dtype in ("int4", "uint4", "int2", "uint2"):
                self.initializers[name] = helper.make_tensor(name, elem_type, codes.shape, codes.flatten().tolist())
            else:
                self.initializers[name] = numpy_helper.from_array(codes.astype(encoding.dtype), name)
        return name

    # --- nodes

    def emit(self, op: str, inputs: Sequence[str | Ref | Free | None], **attributes: Any) -> str:
        """A node inside of what the current fx node stands for: the name of what it gives."""
        name = self.fresh(f"{self.current}.{op.lower()}")
        self._add(op, inputs, [name], self.fresh(f"{self.current}/{op}"), attributes)
        return name

    def final(self, op: str, inputs: Sequence[str | Ref | Free | None], **attributes: Any) -> Ref:
        """The node that gives the tensor of the current fx node."""
        given = self.result
        assert isinstance(given, Ref), self.current
        self.taken.add(given.name)
        self._add(op, inputs, [given.name], given.name, attributes)
        self.note(given)
        return given

    def several(self, op: str, inputs: Sequence[str | Ref | Free | None], **attributes: Any) -> tuple[Ref, ...]:
        """A node that gives a list of tensors."""
        parts: tuple[Ref, ...] = tuple(self.result)
        self.taken.update(part.name for part in parts)
        self._add(op, inputs, [part.name for part in parts], self.current, attributes)
        for part in parts:
            self.note(part)
        return parts

    def _add(
        self,
        op: str,
        inputs: Sequence[str | Ref | Free | None],
        outputs: Sequence[str],
        name: str,
        attributes: dict[str, Any],
    ) -> None:
        names = ["" if i is None else i if isinstance(i, str) else i.name for i in inputs]
        while names and not names[-1]:
            names.pop()
        given = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(op, names, list(outputs), name=name, **given))

    def note(self, ref: Ref) -> None:
        """Write down the shape of a tensor."""
        elem_type = ONNX_TYPES.get(ref.dtype)
        if elem_type is not None:
            self.values[ref.name] = helper.make_tensor_value_info(ref.name, elem_type, list(ref.shape))

    # --- quantization

    def quantized(self, ref: Ref, encoding: Encoding) -> Ref:
        """`ref` through QuantizeLinear and DequantizeLinear; a constant is stored as codes."""
        if ref.name in self.initializers:
            held = numpy_helper.to_array(self.initializers[ref.name])
            given = self.fresh(f"{ref.name}_dequantized")
            return replace(ref, name=self.dequantized(encoding.quantize(held), encoding, ref.name, given=given))
        pooled = self.before_squeeze.pop(ref.name, None)
        if pooled is not None and self.quantizes_pools:
            self._quantize_pooled(pooled, encoding)
        source = self._clipped(ref.name, encoding)
        given = self.fresh(f"{ref.name}_dequantized")
        self._quantize(source, given, ref.name, encoding)
        self.note(Ref(given, ref.shape, ref.dtype))
        return Ref(given, ref.shape, ref.dtype)

    def _clipped(self, source: str, encoding: Encoding) -> str:
        """What goes into Q: where fewer codes are used than the type has, clipped to them."""
        if not encoding.full:
            bounds = [
                np.float32((code - encoding.zero_point) * encoding.scale) for code in (encoding.qmin, encoding.qmax)
            ]
            limits = [
                self.constant(bound, f"{source}_{end}") for bound, end in zip(bounds, ("least", "most"), strict=True)
            ]
            self._add("Clip", [source, *limits], [self.fresh(f"{source}{CLIPPED}")], f"{source}/Clip", {})
            source = self.nodes[-1].output[0]
        return source

    def _quantize(self, source: str, given: str, stem: str, encoding: Encoding) -> None:
        params = self._params(stem, encoding)
        codes = self.fresh(f"{stem}_quantized")
        attributes = _axis(encoding)
        self._add("QuantizeLinear", [source, *params], [codes], self.fresh(f"{stem}/QuantizeLinear"), attributes)
        self._add("DequantizeLinear", [codes, *params], [given], self.fresh(f"{stem}/DequantizeLinear"), attributes)

    def dequantized(self, codes: npt.NDArray[Any], encoding: Encoding, name: str, *, given: str | None = None) -> str:
        """A constant stored as codes; its real values have the name `given`, or else `name`. Made once."""
        given = given or name
        if given not in self.coded:
            self.taken.add(given)
            stored = self.codes(codes, encoding, f"{name}_quantized")
            self.coded[given] = stored, encoding
            inputs = [stored, *self._params(name, encoding)]
            self._add("DequantizeLinear", inputs, [given], self.fresh(f"{name}/DequantizeLinear"), _axis(encoding))
        return given

    def transposed(self, matrix: Ref) -> str:
        """A matrix the other way round; a constant one is stored so, because engines fuse what is next to them."""
        name = f"{matrix.name}{TRANSPOSED}"
        if matrix.name in self.coded:
            stored, encoding = self.coded[matrix.name]
            codes = numpy_helper.to_array(self.initializers[stored]).astype(np.int64)
            axis = None if encoding.axis is None else 1 - encoding.axis % 2
            turned = replace(encoding, axis=axis)
            if encoding.block is not None:
                turned = replace(turned, scale=encoding.scale.T, zero_point=encoding.zero_point.T)
            return self.dequantized(codes.T, turned, name)
        if matrix.name in self.initializers:
            return self.constant(numpy_helper.to_array(self.initializers[matrix.name]).T.copy(), name)
        return self.emit("Transpose", [matrix], perm=[1, 0])

    def _params(self, stem: str, encoding: Encoding) -> list[str]:
        """Scale and zero point as constants; a tensor that is put on two grids has two of them."""
        if (stem, encoding) not in self._grids:
            scale = self.constant(encoding.scale, self._unused(f"{stem}_scale"))
            zero_point = self.codes(encoding.zero_point, encoding, self._unused(f"{stem}_zero_point"))
            self._grids[stem, encoding] = [scale, zero_point]
        return self._grids[stem, encoding]

    def _unused(self, stem: str) -> str:
        return next(n for n in (stem, *(f"{stem}.{i}" for i in range(1, 1000))) if n not in self.taken)

    def _quantize_pooled(self, pooled: str, encoding: Encoding) -> None:
        """Put Q and DQ between a pooling and the squeeze behind it too: engines fuse only what is next to them."""
        squeeze = self.nodes.pop()
        given = self.fresh(f"{pooled}_dequantized")
        self._quantize(self._clipped(pooled, encoding), given, pooled, encoding)
        squeeze.input[0] = given
        self.nodes.append(squeeze)

    # --- the end

    def _prune(self) -> None:
        """Leave out what nothing needs, such as a weight that was stored transposed instead."""
        wanted = {value.name for value in self.outputs}
        kept = []
        for node in reversed(self.nodes):
            if wanted.intersection(node.output):
                kept.append(node)
                wanted.update(node.input)
        self.nodes = kept[::-1]
        self.initializers = {name: value for name, value in self.initializers.items() if name in wanted}

    def model(self, name: str) -> onnx.ModelProto:
        """The graph as a model, with nothing in it that no output needs."""
        self._prune()
        made = {output for node in self.nodes for output in node.output}
        ends = {value.name for value in self.outputs}
        values = [value for key, value in self.values.items() if key in made and key not in ends]
        graph = helper.make_graph(
            self.nodes, name, self.inputs, self.outputs, list(self.initializers.values()), value_info=values
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=8 if self.opset < 19 else 10,
            producer_name="detent",
        )


def _axis(encoding: Encoding) -> dict[str, Any]:
    attributes: dict[str, Any] = {} if encoding.axis is None else {"axis": encoding.axis}
    if encoding.block is not None:
        attributes["block_size"] = encoding.block
    return attributes
