"""Writes small QDQ ONNX models by hand, with scales that are random, near ties, or powers of two.

The builder computes every value in float as it goes, only to choose scales that fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import helper, numpy_helper

from detent.ir import Network, Op, Operand
from detent.ir.qparams import BOUNDS
from detent.twin.float_ops import float_kernel

Array = npt.NDArray[Any]
f32 = np.float32

_TYPES = {
    "uint8": onnx.TensorProto.UINT8,
    "int8": onnx.TensorProto.INT8,
    "uint16": onnx.TensorProto.UINT16,
    "int16": onnx.TensorProto.INT16,
}
# A tensor of next to nothing has a grid as others have: OpenVINO takes a range that ends below 1e-6 for another one.
_LEAST_REACH = 1e-4
_EMPTY = Network({}, (), (), {}, frozenset(), {}, 21)


@dataclass(frozen=True)
class Style:
    """How the tensors of a net are stored.

    - `scales`: "random"; "tie", where products of scales over the output's are within rounding of 1/(2*odd), so that
      many results lie on a tie or next to one; or "pot", powers of two.
    - `symmetric`: zero point 0 for signed activations, also after a ReLU.
    - `weight_range`: the greatest weight code.
    """

    activation: str = "uint8"
    symmetric: bool = False
    scales: Literal["random", "tie", "pot"] = "random"
    per_channel: bool = True
    bias: Literal["int32", "float", "none"] = "int32"
    weight: str = "int8"
    weight_range: int = 127
    batch: int = 2
    seed: int = 0

    def __str__(self) -> str:
        words = [self.activation, "symmetric" * self.symmetric, self.scales, "per-tensor" * (not self.per_channel)]
        words += [f"{self.bias}-bias" * (self.bias != "int32"), f"{self.weight}-weights" * (self.weight != "int8")]
        words += [f"w{self.weight_range}" * (self.weight_range != 127)]
        return "-".join(word for word in words if word)


@dataclass(frozen=True)
class Net:
    """A model and inputs for it."""

    model: onnx.ModelProto
    feeds: dict[str, Array]


@dataclass(frozen=True)
class T:
    """A tensor on a grid (`name_quantized`, read as `name_dequantized`), or in float with `scale` None."""

    name: str
    value: torch.Tensor
    scale: np.float32 | None = None
    zero_point: int = 0
    as_name: str | None = None

    @property
    def read(self) -> str:
        """The name of its real numbers."""
        return self.as_name or (self.name if self.scale is None else f"{self.name}_dequantized")


class Builder:
    def __init__(self, style: Style):
        self.style = style
        self.random = np.random.default_rng(style.seed)
        self.low, self.high = BOUNDS[style.activation]
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.feeds: dict[str, Array] = {}
        self._count = 0

    # --- pieces ---------------------------------------------------------------------------------------------

    def name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def constant(self, name: str, array: Any) -> str:
        self.initializers.append(numpy_helper.from_array(np.array(array), name))
        return name

    def weight_constant(self, name: str, codes: Any) -> str:
        """Of the type of weights, which numpy may not have."""
        if self.style.weight != "int4":
            return self.constant(name, np.asarray(codes, self.style.weight))
        shape = np.shape(codes)
        self.initializers.append(helper.make_tensor(name, onnx.TensorProto.INT4, shape, np.ravel(codes).tolist()))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=f"{output}.{kind}", **attributes))
        return output

    def odd(self, near: float) -> int:
        """A random odd number of that size, at least 3."""
        least = max(1, int(near / 2))
        return int(self.random.integers(least, 2 * least + 2)) * 2 + 1

    def input(self, name: str, *shape: int, spread: float | None = None) -> T:
        """An input of the network whose values are near its codes, all codes alike."""
        scale = self.any_scale(0.01, 0.05) if spread is None else f32(spread)
        zero_point = self.zero_point(relu=False)
        codes = self.random.integers(self.low, self.high + 1, size=shape)
        noise = self.random.uniform(-0.4, 0.4, size=shape)
        self.feeds[name] = ((codes - zero_point + noise) * float(scale)).astype(f32)
        sizes: list[str | int] = ["batch", *shape[1:]]
        self.inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes))
        return self.on_grid(name, torch.from_numpy(self.feeds[name]), scale, zero_point)

    def any_scale(self, low: float, high: float) -> np.float32:
        scale = float(np.exp(self.random.uniform(np.log(low), np.log(high))))
        return f32(2.0 ** round(np.log2(scale))) if self.style.scales == "pot" else f32(scale)

    def zero_point(self, *, relu: bool) -> int:
        if self.style.symmetric:
            return 0
        middle = (self.low + self.high + 1) // 2
        return self.low if relu else middle + int(self.random.integers(-20, 20))

    def on_grid(self, name: str, value: torch.Tensor, scale: np.float32, zero_point: int) -> T:
        s = self.constant(f"{name}_scale", np.asarray(scale, f32))
        z = self.constant(f"{name}_zero_point", np.asarray(zero_point, self.style.activation))
        self.node("QuantizeLinear", [name, s, z], f"{name}_quantized")
        self.node("DequantizeLinear", [f"{name}_quantized", s, z], f"{name}_dequantized")
        codes = (value / float(scale)).round().add(zero_point).clamp(self.low, self.high)
        return T(name, (codes - zero_point) * float(scale), scale, zero_point)

    def quantized(self, tensor: T, *, relu: bool = False, unit: float | None = None, like: T | None = None) -> T:
        """Put what an operation gives on a grid that fits; `unit` is the real number of one step of its accumulator,
        from which a "tie" scale is made; `like` takes the grid of another tensor."""
        if like is not None:
            assert like.scale is not None
            return self.on_grid(tensor.name, tensor.value, like.scale, like.zero_point)
        half = self.style.symmetric or (not relu)
        reach = (
            float(tensor.value.abs().quantile(0.999))
            if tensor.value.numel() < 2**24
            else float(tensor.value.abs().max())
        )
        reach = max(reach, _LEAST_REACH)
        levels = (self.high - self.low) / 2 if half else self.high - self.low
        scale = reach / levels * float(self.random.uniform(0.8, 1.1))
        if relu and not half and float(tensor.value.max()) == reach:
            scale = reach / levels  # a clipped activation: its bound is the greatest code
        if self.style.scales == "pot":
            scale = 2.0 ** np.floor(np.log2(scale))
        elif self.style.scales == "tie" and unit is not None:
            scale = unit * 2 * self.odd(scale / unit / 2)
        return self.on_grid(tensor.name, tensor.value, f32(scale), self.zero_point(relu=relu))

    def float_op(
        self, kind: str, *inputs: T | str | None, constants: dict[str, Array] | None = None, **attributes: Any
    ) -> T:
        """An operation on what the tensors give; strings name constants."""
        held = constants or {}
        name = self.name(kind.lower())
        reads = ["" if each is None else each if isinstance(each, str) else each.read for each in inputs]
        values = [
            None if each is None else torch.from_numpy(held[each]) if isinstance(each, str) else each.value
            for each in inputs
        ]
        for constant, array in held.items():
            self.constant(constant, array)
        self.node(kind, reads, name, **attributes)
        op = Op(kind, name, tuple(Operand(read) for read in reads), (name,), attributes)
        result = float_kernel(_EMPTY, op)(*values)
        return T(name, result if isinstance(result, torch.Tensor) else result[0])

    def on_the_grid_of(self, x: T, moved: T) -> T:
        """What only moves values of `x`, read without a Q and DQ of its own."""
        return T(moved.name, moved.value, x.scale, x.zero_point, as_name=moved.name)

    def split(self, x: T, axis: int) -> tuple[T, T]:
        """Two halves."""
        names = [self.name("split"), self.name("split")]
        self.nodes.append(helper.make_node("Split", [x.read], names, name=names[0], axis=axis, num_outputs=2))
        low, high = x.value.chunk(2, axis)
        return T(names[0], low), T(names[1], high)

    def coded_constant(self, name: str, *shape: int) -> T:
        """Integers that are dequantized when the network runs."""
        scale, zero_point = self.any_scale(0.01, 0.05), self.zero_point(relu=False)
        codes = self.random.integers(self.low, self.high + 1, size=shape)
        q = self.constant(f"{name}_quantized", codes.astype(self.style.activation))
        s = self.constant(f"{name}_scale", np.asarray(scale, f32))
        z = self.constant(f"{name}_zero_point", np.asarray(zero_point, self.style.activation))
        self.node("DequantizeLinear", [q, s, z], name)
        value = torch.from_numpy(np.asarray((codes - zero_point) * float(scale), f32))
        return T(name, value, scale, zero_point, as_name=name)

    # --- layers with weights --------------------------------------------------------------------------------

    def weighted(
        self,
        kind: str,
        x: T,
        shape: tuple[int, ...],
        *,
        axis: int,
        then: str | None = None,
        grid: bool = True,
        **attributes: Any,
    ) -> T:
        """A Conv, ConvTranspose, Gemm or MatMul with quantized weights, perhaps an activation, and a grid."""
        assert x.scale is not None
        name = self.name(kind.lower())
        channels = shape[axis] * (attributes.get("group", 1) if kind == "ConvTranspose" else 1)
        codes = self._weight_codes(shape)
        scales = np.array(
            [self.any_scale(0.001, 0.01) for _ in range(shape[axis] if self.style.per_channel else 1)], f32
        )
        output_scale = None
        if self.style.scales == "tie" and grid:
            scales, output_scale = self._tie_scales(x, codes, shape, axis, scales)
        unit = (f32(x.scale) * scales).astype(f32)
        bias = self.random.integers(-3000, 3000, size=channels) if self.style.bias != "none" else None
        w = codes.astype(np.float64) * scales.reshape(
            [-1 if d == axis and scales.size > 1 else 1 for d in range(codes.ndim)]
        )
        inputs = [x.read, self._weight(name, codes, scales, axis)]
        values: list[torch.Tensor | None] = [x.value, torch.from_numpy(w.astype(f32))]
        if bias is not None and kind != "MatMul":
            inputs.append(self._bias(name, bias, unit if unit.size > 1 else np.repeat(unit, 1)))
            values.append(torch.from_numpy((bias * unit).astype(f32)))
        self.node(kind, inputs, name, **attributes)
        op = Op(kind, name, tuple(Operand(each) for each in inputs), (name,), attributes)
        made = T(name, float_kernel(_EMPTY, op)(*values))
        if bias is not None and kind == "MatMul":
            made = self._matmul_bias(made, name, (bias * unit).astype(f32))
        if then is not None:
            # The bound of a clipped activation is the greatest code, as calibration makes it.
            bound = None if output_scale is None else float(output_scale) * (self.high - self.low)
            made = self.activation(then, made, bound)
        if not grid:
            return made
        if output_scale is not None:
            return self.on_grid(made.name, made.value, output_scale, self.zero_point(relu=then is not None))
        return self.quantized(made, relu=then is not None)

    def activation(self, kind: str, x: T, bound: float | None = None) -> T:
        """`kind` is an ONNX operation, or "Relu6" for a Clip from 0 to `bound`."""
        if kind == "Relu6":
            low, high = self.name("low"), self.name("high")
            most = float(x.value.abs().quantile(0.9)) if bound is None else bound
            bounds = {low: np.array(0, f32), high: np.array(most, f32)}
            return self.float_op("Clip", x, low, high, constants=bounds)
        return self.float_op(kind, x)

    def _weight_codes(self, shape: tuple[int, ...]) -> Array:
        if self.style.weight == "uint8":
            return self.random.integers(0, 256, size=shape)
        return self.random.integers(-self.style.weight_range, self.style.weight_range + 1, size=shape)

    def _tie_scales(
        self, x: T, codes: Array, shape: tuple[int, ...], axis: int, scales: Array
    ) -> tuple[Array, np.float32]:
        """Weight scales such that sx * sw / sy is 1/(2*odd) up to rounding, for each channel."""
        assert x.scale is not None
        terms = int(np.prod(shape)) // shape[axis]
        spread = np.sqrt(terms) * float(np.abs(codes).std() + 1) * float(x.value.std()) / float(x.scale)
        output_scale = f32(self.random.uniform(0.02, 0.2))
        odds = np.array([self.odd(spread / 60 / 2) for _ in scales])
        return (np.float64(output_scale) / np.float64(x.scale) / (2 * odds)).astype(f32), output_scale

    def _weight(self, name: str, codes: Array, scales: Array, axis: int) -> str:
        zero = 128 if self.style.weight == "uint8" else 0
        q = self.weight_constant(f"{name}.weight_quantized", codes)
        s, z = scales if scales.size > 1 else scales.reshape(()), np.full(scales.shape, zero)
        inputs = [
            q,
            self.constant(f"{name}.weight_scale", s),
            self.weight_constant(f"{name}.weight_zero_point", z.reshape(np.shape(s))),
        ]
        return self.node("DequantizeLinear", inputs, f"{name}.weight", axis=axis)

    def _bias(self, name: str, codes: Array, unit: Array) -> str:
        if self.style.bias == "float":
            return self.constant(f"{name}.bias", (codes * unit).astype(f32))
        q = self.constant(f"{name}.bias_quantized", codes.astype(np.int32))
        scale = unit if unit.size > 1 else unit.reshape(())
        s = self.constant(f"{name}.bias_scale", scale)
        z = self.constant(f"{name}.bias_zero_point", np.zeros(np.shape(scale), np.int32))
        return self.node("DequantizeLinear", [q, s, z], f"{name}.bias", axis=0)

    def _matmul_bias(self, product: T, name: str, bias: Array) -> T:
        constant = f"{name}.bias"
        return self.float_op("Add", product, constant, constants={constant: bias})

    # --- the result -----------------------------------------------------------------------------------------

    def with_float_weights(self) -> None:
        """Replace what the weights and biases of all layers are dequantized from by what they are dequantized to."""
        held = {tensor.name: numpy_helper.to_array(tensor) for tensor in self.initializers}
        for node in [node for node in self.nodes if node.output[0].endswith((".weight", ".bias"))]:
            codes, scale, zero = (held[name].astype(np.float64) for name in node.input)
            shape = [-1 if scale.ndim and dim == node.attribute[0].i else 1 for dim in range(codes.ndim)]
            self.constant(node.output[0], ((codes - zero.reshape(shape)) * scale.reshape(shape)).astype(f32))
            self.nodes.remove(node)

    def output(self, tensor: T) -> None:
        sizes: list[str | int] = ["batch", *tensor.value.shape[1:]]
        self.outputs.append(helper.make_tensor_value_info(tensor.read, onnx.TensorProto.FLOAT, sizes))

    def net(self) -> Net:
        graph = helper.make_graph(self.nodes, "net", self.inputs, self.outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.checker.check_model(model)
        return Net(model, self.feeds)
