"""A deployed network made by hand: two convolutions, an add, pooling and a linear layer.

    x -> conv1 -> relu1 -> conv2 -> add (with relu1) -> pool -> flat -> fc -> y

Every number is literal: scales are given, and weights are codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from detent.ir import DeployedTensor
from detent.ir.metadata import CODE_RANGE, ROLE
from detent.numerics import IntGrid, LogGrid, PerChannel, PerTensor, Scheme
from detent.targets import BACKENDS
from detent.targets.base import Deployment

INT8 = Scheme(IntGrid(8))
UINT8 = Scheme(IntGrid(8, signed=False), symmetric=False)
INT8_AFFINE = Scheme(IntGrid(8), symmetric=False)
PER_CHANNEL = Scheme(IntGrid(8), granularity=PerChannel(0))
POWER_OF_TWO = Scheme(IntGrid(8), scale="power_of_two")
BIAS = Scheme(IntGrid(32))

SCALES = {"x": 0.1, "relu1": 0.25, "conv2": 0.5, "add": 0.3, "pool": 0.2, "flat": 0.2, "y": 0.4}
POWERS = {"x": 2**-4, "relu1": 2**-3, "conv2": 2**-2, "add": 2**-2, "pool": 2**-3, "flat": 2**-3, "y": 2**-1}
ZERO_POINTS = {"x": 100, "relu1": 0, "conv2": 128, "add": 90, "pool": 10, "flat": 10, "y": 120}
READERS = {
    "x": ("conv1",),
    "relu1": ("conv2", "add"),
    "conv2": ("add",),
    "add": ("pool",),
    "pool": ("flat",),
    "flat": ("fc",),
}
KINDS = {
    "x": "input",
    "relu1": "relu",
    "conv2": "conv",
    "add": "add",
    "pool": "global_avgpool",
    "flat": "reshape",
    "y": "linear",
}

CODES = {
    "conv1.weight": (np.arange(36) * 7 % 255 - 127).reshape(2, 2, 3, 3),
    "conv2.weight": np.array([[64, -127], [127, 32]]).reshape(2, 2, 1, 1),
    "fc.weight": np.array([[127, -64], [5, 127], [-127, 100]]),
}
BIASES = {"conv1.bias": [40, -30], "conv2.bias": [7, -9], "fc.bias": [100, -200, 300]}
WEIGHT_SCALES = {"conv1.weight": [0.01, 0.02], "conv2.weight": [0.005, 0.004], "fc.weight": [0.03, 0.02, 0.01]}
INPUTS_OF = {"conv1": "x", "conv2": "relu1", "fc": "flat"}


def deployment(
    backend: str,
    *,
    activation: Scheme = INT8,
    weight: Scheme = PER_CHANNEL,
    bias: Scheme | None = BIAS,
    scales: Mapping[str, float] = SCALES,
    weight_scales: Mapping[str, object] = WEIGHT_SCALES,
    inputs_only: bool = False,
) -> Deployment:
    """The sample for a backend. With `bias=None` biases are float. A `LogGrid` gives a model without Q and DQ. With
    `inputs_only` nothing is on a grid but what convolutions and linear layers take in."""
    builder = _Builder(activation, weight, bias, scales, weight_scales, inputs_only)
    return Deployment(name="sample", backend=BACKENDS[backend], model=builder.model(), tensors=tuple(builder.tensors))


def power_of_two_deployment(backend: str, *, bias: Scheme | None = POWER_OF_TWO) -> Deployment:
    """All scales are powers of two, one for a tensor."""
    weights = {"conv1.weight": 2**-7, "conv2.weight": 2**-8, "fc.weight": 2**-6}
    return deployment(
        backend, activation=POWER_OF_TWO, weight=POWER_OF_TWO, bias=bias, scales=POWERS, weight_scales=weights
    )


class _Builder:
    def __init__(
        self,
        activation: Scheme,
        weight: Scheme,
        bias: Scheme | None,
        scales: Mapping[str, float],
        weight_scales: Mapping[str, object],
        inputs_only: bool,
    ):
        self._activation, self._weight, self._bias = activation, weight, bias
        self._inputs_only = inputs_only
        self._scales, self._weight_scales = scales, weight_scales
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self.tensors: list[DeployedTensor] = []

    def model(self) -> onnx.ModelProto:
        x = self._quantized("x", "")
        conv1 = self._layer("Conv", "conv1", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        relu1 = self._quantized(self._node("Relu", "relu1", [conv1]), "relu1")
        conv2 = self._quantized(self._layer("Conv", "conv2", relu1, kernel_shape=[1, 1]), "conv2")
        shortcut = "relu1" if self._inputs_only else relu1
        add = self._quantized(self._node("Add", "add", [shortcut, conv2]), "add")
        pool = self._quantized(self._node("GlobalAveragePool", "pool", [add]), "pool")
        flat = self._quantized(self._node("Flatten", "flat", [pool]), "flat")
        y = self._quantized(self._layer("Gemm", "fc", flat, output="y", transB=1), "fc")
        graph = helper.make_graph(
            self._nodes,
            "sample",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 4, 4])],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, ["batch", 3])],
            self._initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def _node(self, op: str, name: str, inputs: list[str], output: str | None = None, **attributes: object) -> str:
        self._nodes.append(helper.make_node(op, inputs, [output or name], name=name, **attributes))
        return output or name

    def _layer(self, op: str, name: str, data: str, *, output: str | None = None, **attributes: object) -> str:
        weight, bias = self._weight_of(name), self._bias_of(name)
        return self._node(op, name, [data, weight, bias], output, **attributes)

    def _quantized(self, tensor: str, op: str) -> str:
        if self._inputs_only and tensor not in INPUTS_OF.values():
            return tensor
        scheme, scale = self._activation, np.float32(self._scales[tensor])
        if isinstance(scheme.grid, LogGrid):
            scale = np.exp2(np.round(16 * np.log2(scale)) / 16, dtype=np.float32)
        zero = 0 if scheme.symmetric else ZERO_POINTS[tensor]
        if not scheme.symmetric and scheme.grid.signed:
            zero -= 128
        readers = tuple(name for name in READERS.get(tensor, ()) if name in INPUTS_OF or not self._inputs_only)
        self._record(tensor, "activation", scheme, scale, zero, op, KINDS[tensor], readers)
        if isinstance(scheme.grid, LogGrid):
            return tensor
        dtype = _dtype(scheme.grid)
        encoding = [self._constant(f"{tensor}_scale", scale), self._constant(f"{tensor}_zero_point", dtype(zero))]
        source = tensor
        if scheme.grid.narrow:
            ends = {"least": scheme.grid.qmin * scale, "most": scheme.grid.qmax * scale}
            bounds = [self._constant(f"{tensor}_{end}", np.float32(bound)) for end, bound in ends.items()]
            source = self._node("Clip", f"{tensor}_clip", [tensor, *bounds], f"{tensor}_clipped")
            self._nodes[-1].metadata_props.add(key=ROLE, value=CODE_RANGE)
        self._node("QuantizeLinear", f"{tensor}_quantize", [source, *encoding], f"{tensor}_quantized")
        return self._node(
            "DequantizeLinear", f"{tensor}_dequantize", [f"{tensor}_quantized", *encoding], f"{tensor}_dequantized"
        )

    def _weight_of(self, layer: str) -> str:
        name, scheme = f"{layer}.weight", self._weight
        scale = self._scale_of(name)
        zero = 0 if scheme.symmetric else 130
        self._record(name, "weight", scheme, scale, zero, layer, KINDS.get(layer, "conv"), ())
        if isinstance(scheme.grid, LogGrid):
            return self._constant(name, (CODES[name] / 127 * scale).astype(np.float32))
        dtype = _dtype(scheme.grid)
        zeros = np.full(scale.shape, zero, dtype)
        codes = CODES[name] if scheme.grid.signed else CODES[name] + 128
        encoding = [self._constant(f"{name}_scale", scale), self._constant(f"{name}_zero_point", zeros)]
        stored = self._constant(f"{name}_quantized", codes.astype(dtype))
        axis = {"axis": 0} if scale.ndim else {}
        return self._node("DequantizeLinear", f"{name}_dequantize", [stored, *encoding], name, **axis)

    def _bias_of(self, layer: str) -> str:
        name, scheme = f"{layer}.bias", self._bias
        codes = np.array(BIASES[name])
        if scheme is None:
            return self._constant(name, (codes * 0.01).astype(np.float32))
        grid = scheme.grid
        if grid.bits == 32:
            scale = np.float32(self._scales[INPUTS_OF[layer]]) * self._scale_of(f"{layer}.weight")
        else:
            scale, codes = np.float32(2**-5), np.clip(codes, grid.qmin, grid.qmax)
        scale = np.asarray(scale, np.float32)
        if scale.ndim:
            scheme = replace(scheme, granularity=PerChannel(0))
        self._record(name, "bias", scheme, scale, 0, layer, KINDS.get(layer, "conv"), ())
        dtype = _dtype(grid)
        encoding = [
            self._constant(f"{name}_scale", scale),
            self._constant(f"{name}_zero", np.zeros(scale.shape, dtype)),
        ]
        stored = self._constant(f"{name}_quantized", codes.astype(dtype))
        axis = {"axis": 0} if scale.ndim else {}
        return self._node("DequantizeLinear", f"{name}_dequantize", [stored, *encoding], name, **axis)

    def _scale_of(self, weight: str) -> np.ndarray:
        given = np.asarray(self._weight_scales[weight], np.float32)
        per_tensor = isinstance(self._weight.granularity, PerTensor)
        return np.asarray(given.max() if per_tensor and given.ndim else given, np.float32)

    def _constant(self, name: str, value: object) -> str:
        self._initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _record(
        self,
        tensor: str,
        role: str,
        scheme: Scheme,
        scale: object,
        zero: int,
        op: str,
        kind: str,
        users: tuple[str, ...],
    ) -> None:
        scale = np.asarray(scale, np.float32)
        self.tensors.append(
            DeployedTensor(
                tensor=tensor,
                role=role,
                kind=kind,
                op=op,
                scheme=scheme,
                scale=scale,
                zero_point=np.full(scale.shape, zero, np.int64),
                users=users,
                shares="pool" if tensor == "flat" else None,
            )
        )


def _dtype(grid: IntGrid) -> type[np.generic]:
    name = f"{'' if grid.signed else 'u'}int{8 if grid.bits <= 8 else 16 if grid.bits <= 16 else 32}"
    return getattr(np, name)
