"""Expands operators on codes (QLinearConv, QGemm ...) into DequantizeLinear, the float operator, QuantizeLinear.

The float operator has the name of the node it stands for. Pooling, padding and moving of codes is done to the real
numbers instead, which gives the same codes; an interpolation cuts codes off, and rounds the real numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

from detent.errors import OnnxError
from detent.frontends.onnx.call import label
from detent.ir import Trait, ops_with
from detent.ir.protos import without_initializers

__all__ = ["expand_qoperators"]

_VENDOR = "com.microsoft"
_MOVING = ops_with(Trait.MOVES_VALUES) | {"MaxPool", "Pad", "Resize"}
"""Operators that give only values they were given, or such between them, so that codes stay codes of the same grid."""
_ORDERING = frozenset({"ArgMax", "ArgMin"})
"""Operators that ask only which of the values is larger."""


def expand_qoperators(model: ModelProto) -> ModelProto:
    """`model` itself if it has no such operators."""
    codes = {node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    if not any(_writer(node) or (_moves(node) and node.input[0] in codes) for node in model.graph.node):
        return model
    try:
        return _Writing(model).result()
    except OnnxError:
        raise
    except Exception as error:  # inputs that are not there, scales that do not fit
        raise OnnxError(
            "import a model of operators on codes",
            f"{type(error).__name__}: {error}",
            "the model is inconsistent: quantize it again",
        ) from error


def _moves(node: NodeProto) -> bool:
    return node.op_type in _MOVING and (len(node.output) == 1 or node.op_type == "Split")


def _writer(node: NodeProto) -> Callable[[_Writing, NodeProto], None] | None:
    standard = _STANDARD.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    return _VENDORS.get(node.op_type) if node.domain == _VENDOR else standard


Grid = tuple[str, str]
"""The names of a scale and of a zero point ("" where there is none)."""


class _Writing:
    def __init__(self, model: ModelProto):
        self._model = model
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._taken = {name for node in model.graph.node for name in (*node.input, *node.output)}
        self._grids: dict[str, Grid] = {}  # of tensors that are codes
        self._asked = {tensor: grid for node in model.graph.node for tensor, grid in _code_reads(node).items()}
        self._reals: dict[tuple[str, Grid], str] = {}
        self.nodes: list[NodeProto] = []

    def result(self) -> ModelProto:
        for node in self._model.graph.node:
            writer = _writer(node)
            if writer is not None:
                writer(self, node)
            elif _moves(node) and (grid := self._grid_of(node)) is not None:
                self._move(node, grid)
            elif node.op_type in _ORDERING and node.input[0] in self._grids:
                self.write(
                    node, node.op_type, [self.real(node.input[0], self._grids[node.input[0]])], None, node.attribute
                )
            else:
                self.nodes.append(node)
                if node.op_type == "QuantizeLinear" and not node.attribute:
                    self._grids[node.output[0]] = (node.input[1], node.input[2] if len(node.input) > 2 else "")
        made = without_initializers(self._model)
        made.graph.initializer.extend(self._constants.values())
        del made.graph.node[:]
        made.graph.node.extend(self.nodes)
        domains = [entry for entry in made.opset_import if entry.domain in {"", "ai.onnx", *_domains(self.nodes)}]
        del made.opset_import[:]
        made.opset_import.extend(domains)
        _forget_types(made.graph, self._taken)
        return made

    def _move(self, node: NodeProto, grid: Grid) -> None:
        inputs = [self.real(node.input[0], grid), *node.input[1:]]
        if node.op_type == "Pad" and not any(a.s not in (b"", b"constant") for a in node.attribute if a.name == "mode"):
            inputs[2:3] = [self._padding(node, grid)]
        self.write(node, node.op_type, inputs, grid, list(node.attribute))

    def _padding(self, node: NodeProto, grid: Grid) -> str:
        """The padding value, which is the code 0 by default."""
        given = _given(node, 2)
        if given in self._grids:
            return self.real(given, self._grids[given])
        zero = self.array(grid[1], node) if grid[1] else np.zeros((), np.uint8)
        code = self.array(given, node) if given else np.zeros((), zero.dtype)
        value = (code.astype(np.int64) - zero.astype(np.int64)) * self.array(grid[0], node)
        name = self.fresh(f"{label(node)}_value")
        self._constants[name] = numpy_helper.from_array(value.astype(np.float32).reshape(()), name)
        return name

    def _grid_of(self, node: NodeProto) -> Grid | None:
        """The grid of the codes that a node moves; that of a constant is stated by its reader."""
        asked = self._asked.get(node.output[0]) if node.input[0] in self._constants else None
        return self._grids.get(node.input[0], asked)

    def fresh(self, stem: str) -> str:
        name = next(n for n in (stem, *(f"{stem}.{i}" for i in range(1, 10_000))) if n not in self._taken)
        self._taken.add(name)
        return name

    def real(self, codes: str, grid: Grid, axis: int | None = None) -> str:
        """The dequantized codes: the output of one DequantizeLinear for all readers."""
        key = (codes, grid)
        if key not in self._reals:
            made = self.fresh(f"{codes}_dequantized")
            inputs = [codes, *(name for name in grid if name)]
            several = axis is not None and self._count(grid[0]) > 1
            self.nodes.append(helper.make_node("DequantizeLinear", inputs, [made], name=made))
            if axis is not None and several:
                self.nodes[-1].attribute.append(helper.make_attribute("axis", axis % self._rank(codes)))
            self._reals[key] = made
        return self._reals[key]

    def write(
        self,
        node: NodeProto,
        op_type: str,
        inputs: Sequence[str],
        grid: Grid | None,
        attributes: Sequence[AttributeProto] = (),
    ) -> None:
        """Replace `node` by the float operator, followed by a QuantizeLinear if the node returns codes."""
        made = [codes if grid is None else self.fresh(f"{codes}_real") for codes in node.output]
        self.nodes.append(helper.make_node(op_type, list(inputs), made, name=label(node)))
        self.nodes[-1].attribute.extend(attributes)
        if grid is not None:
            if not grid[1]:
                raise OnnxError(
                    f"import the {node.op_type} node {label(node)!r}",
                    "the zero point of what it gives is left out, and with it the type",
                    "store a zero point",
                )
            for at, (real, codes) in enumerate(zip(made, node.output, strict=True)):
                name = f"{label(node)}_quantize" + (f"_{at}" if at else "")
                self.nodes.append(helper.make_node("QuantizeLinear", [real, *grid], [codes], name=name))
                self._grids[codes] = grid

    def array(self, name: str, node: NodeProto) -> np.ndarray:
        if name not in self._constants:
            raise OnnxError(
                f"import the {node.op_type} node {label(node)!r}",
                f"its scale {name!r} is computed by the network",
                "store a constant scale",
            )
        return numpy_helper.to_array(self._constants[name])

    def _count(self, name: str) -> int:
        return int(np.prod(self._constants[name].dims)) if name in self._constants else 1

    def _rank(self, name: str) -> int:
        return len(self._constants[name].dims) if name in self._constants else 2

    def bias(self, node: NodeProto, codes: str, scales: tuple[str, str], factor: float = 1.0) -> str:
        """An int32 bias, whose scale is the product of those of the input and the weight."""
        product = (self.array(scales[0], node) * self.array(scales[1], node) * np.float32(factor)).astype(np.float32)
        name = self.fresh(f"{codes}_scale")
        self._constants[name] = numpy_helper.from_array(product.reshape(()) if product.size == 1 else product, name)
        return self.real(codes, (name, ""), axis=0)


def _code_reads(node: NodeProto) -> dict[str, Grid]:
    """The tensors that a node reads as codes, with the grids that it states for them."""
    if _writer(node) is None:
        return {node.input[0]: _grid(node, 1)} if node.op_type == "DequantizeLinear" else {}
    starts = range(2, len(node.input), 3) if node.op_type == "QLinearConcat" else (0, 3)
    return {node.input[at]: _grid(node, at + 1) for at in starts if at + 2 < len(node.input)}


def _domains(nodes: Sequence[NodeProto]) -> set[str]:
    return {node.domain for node in nodes}


def _forget_types(graph: GraphProto, taken: set[str]) -> None:
    """Drops type information, except for tensors that still exist: those that were codes are codes."""
    kept = [value for value in graph.value_info if value.name in taken]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def _given(node: NodeProto, index: int) -> str:
    return node.input[index] if index < len(node.input) else ""


def _grid(node: NodeProto, index: int) -> Grid:
    return _given(node, index), _given(node, index + 1)


def _others(node: NodeProto, *names: str) -> list[AttributeProto]:
    return [attribute for attribute in node.attribute if attribute.name not in names]


def _integer(node: NodeProto, name: str, default: int = 0) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)


def _conv(writing: _Writing, node: NodeProto) -> None:
    inputs = [writing.real(node.input[0], _grid(node, 1)), writing.real(node.input[3], _grid(node, 4), axis=0)]
    if _given(node, 8):
        inputs.append(writing.bias(node, node.input[8], (node.input[1], node.input[4])))
    writing.write(node, "Conv", inputs, _grid(node, 6), list(node.attribute))


def _gemm(writing: _Writing, node: NodeProto) -> None:
    axis = 0 if _integer(node, "transB") else 1
    alpha = next((attribute.f for attribute in node.attribute if attribute.name == "alpha"), 1.0)
    inputs = [writing.real(node.input[0], _grid(node, 1)), writing.real(node.input[3], _grid(node, 4), axis=axis)]
    if _given(node, 6):
        inputs.append(writing.bias(node, node.input[6], (node.input[1], node.input[4]), alpha))
    writing.write(node, "Gemm", inputs, _grid(node, 7) if _given(node, 7) else None, list(node.attribute))


def _two(op_type: str, axis: int | None = None) -> Callable[[_Writing, NodeProto], None]:
    """An operator of two tensors on codes. `axis` is the one that a matrix has a scale for each index of."""

    def write(writing: _Writing, node: NodeProto) -> None:
        inputs = [writing.real(node.input[0], _grid(node, 1)), writing.real(node.input[3], _grid(node, 4), axis=axis)]
        writing.write(node, op_type, inputs, _grid(node, 6))

    return write


def _one(op_type: str, *own: str) -> Callable[[_Writing, NodeProto], None]:
    """An operator of one tensor on codes; `own` are attributes that the float operator does not have."""

    def write(writing: _Writing, node: NodeProto) -> None:
        if _integer(node, "channels_last"):
            raise OnnxError(
                f"import the {node.op_type} node {label(node)!r}",
                "its channels come last",
                "quantize the model without layout optimization",
            )
        real = writing.real(node.input[0], _grid(node, 1))
        writing.write(node, op_type, [real], _grid(node, 3), _others(node, "channels_last", *own))

    return write


def _concat(writing: _Writing, node: NodeProto) -> None:
    inputs = [writing.real(node.input[at], _grid(node, at + 1)) for at in range(2, len(node.input), 3)]
    writing.write(node, "Concat", inputs, _grid(node, 0), list(node.attribute))


_STANDARD: dict[str, Callable[[_Writing, NodeProto], None]] = {
    "QLinearConv": _conv,
    "QLinearMatMul": _two("MatMul", axis=-1),
}
_VENDORS: dict[str, Callable[[_Writing, NodeProto], None]] = {
    "QGemm": _gemm,
    "QLinearAdd": _two("Add"),
    "QLinearMul": _two("Mul"),
    "QLinearAveragePool": _one("AveragePool"),
    "QLinearGlobalAveragePool": _one("GlobalAveragePool"),
    "QLinearLeakyRelu": _one("LeakyRelu"),
    "QLinearSigmoid": _one("Sigmoid"),
    "QLinearSoftmax": _one("Softmax", "opset"),
    "QLinearConcat": _concat,
}
