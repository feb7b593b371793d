"""What torch's quantized kernels have in common, whichever library does the sums: the parts that ATen itself computes.

ATen runs element by element in blocks, and what is left at the end one by one, and the two round differently: in blocks
`rne(f32(x * f32(1/s))) + z`, one by one `rne(f32(f32(x * f32(1/s)) + z))`. The order is that of memory, which is
channels last for four dimensions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from detent import cpus
from detent.cpus import Cpu
from detent.ir import Encoding, Network, Op, Operand, Trait, constant_values, ops_with
from detent.ir.torch_functions import call
from detent.targets.torch_native.kernels import MAKERS, lower
from detent.targets.torch_native.lowering import Lowered
from detent.twin import Arithmetic, Step
from detent.twin.accumulate import Accumulator, accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import dequantize, fma

__all__ = ["AtenArithmetic", "TorchArithmetic", "inverse", "rounded_after", "rounded_inside"]

Pointwise = Callable[..., Tensor]

_BLOCK = 64
"""How many elements ATen takes at once: measured with AVX2 and with AVX-512."""
_FUSED_RELU = ("d_relu", "linear_relu", "add_relu", "mul_relu")


def rounded_after(values: Tensor, factor: float | Tensor, zero_point: int) -> Tensor:
    """`rne(f32(values * factor)) + zero_point`."""
    return (values * factor).round_().add_(zero_point)


def rounded_inside(values: Tensor, factor: float | Tensor, zero_point: int) -> Tensor:
    """`rne(f32(f32(values * factor) + zero_point))`: ties go to even codes, the zero point included."""
    return (values * factor).add_(zero_point).round_()


def inverse(scale: Any) -> float:
    """`f32(1 / scale)`."""
    return float(np.float32(1) / np.float32(scale))


class TorchArithmetic(Arithmetic):
    """One of torch's kernel libraries."""

    @classmethod
    def local_cpu(cls) -> Cpu:
        """ATEN_CPU_CAPABILITY=avx2 shortens ATen's vectors and leaves the libraries their own instructions.

        Not known are ATEN_CPU_CAPABILITY=default, which rounds some ties of additions, concatenations and leaky ReLUs
        otherwise, and on CPUs with VNNI FBGEMM_ENABLE_INSTRUCTIONS and ONEDNN_MAX_CPU_ISA, which take VNNI from some
        kernels of a library only.
        """
        found = cpus.here()
        if found.register <= 32 or torch.backends.cpu.get_cpu_capability() == "AVX512":
            return found
        return replace(found, register=32)

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        """Times the reciprocal and plus the zero point in one operation, then ties to even."""
        shifted = fma(values, torch.tensor(inverse(encoding.scale)), torch.tensor(float(encoding.zero_point)))
        return shifted.round_().clamp_(encoding.qmin, encoding.qmax)

    @property
    def integer_operators(self) -> frozenset[str]:
        return frozenset(MAKERS)

    def lower(self, graph: Network) -> list[Step]:
        return [self._step(graph, lowered) for lowered in lower(graph).lowered]

    @property
    def saturates(self) -> bool:
        """Whether FBGEMM adds products in pairs that saturate: it looks for the VNNI of AVX-512 alone, and so does
        torch before it takes oneDNN."""
        return self.cpu.saturates or self.cpu.name == "avx_vnni"

    # --- what the libraries do differently ---------------------------------------------------------------

    @abstractmethod
    def _summed(self, op: Op, sums: Accumulator, bias: Tensor | None, output: Encoding) -> Kernel:
        """The kernel of a convolution or linear layer; its output is not clamped yet."""

    @abstractmethod
    def _added(self, grids: list[Encoding], output: Encoding) -> Kernel:
        """The kernel of an addition; its output is not clamped yet."""

    @abstractmethod
    def _averaged(self, sums: Tensor, count: int, grid: Encoding, *, whole: bool) -> Tensor:
        """The codes of averages from the sums of shifted codes; `whole` if all of the image was averaged."""

    @abstractmethod
    def _function(self, name: str, function: Callable[[Tensor], Tensor], grid: Encoding, output: Encoding) -> Kernel:
        """The kernel of an activation function."""

    # --- steps --------------------------------------------------------------------------------------------

    def _step(self, graph: Network, lowered: Lowered) -> Step:
        ops, writes, step = lowered.ops, lowered.writes, lowered.step
        output = writes[0].encoding
        if output is None:
            return _float_step(graph, ops[0], writes)
        room, _, name = step.call.partition(".")
        attributes = step.attributes
        if room == "onnx":
            return self._on_codes(graph, ops[0], writes, output)
        grids = [read.encoding for read in lowered.reads if read is not None and read.encoding is not None]
        if name.removesuffix("_relu") in ("conv1d", "conv2d", "conv_transpose2d", "linear"):
            kernel = self._weighted(graph, ops, output)
        elif name.removesuffix("_relu") == "add":
            kernel = self._added(grids, output)
        elif name.removesuffix("_relu") == "mul":
            kernel = _multiplied(grids, output)
        elif name == "cat":
            kernel = self._concatenated(grids, output, attributes["dim"])
        elif room == "clamp":
            kernel = _same
        else:
            kernel = self._function(name, _FUNCTIONS[name](attributes), grids[0], output)
        low, high = attributes.get("clamp", (0, 255))
        low = max(low, int(output.zero_point)) if name.endswith(_FUSED_RELU) else low
        return Step(ops, lowered.reads, writes, _clamped(kernel, low, high))

    def _on_codes(self, graph: Network, op: Op, writes: tuple[Operand, ...], grid: Encoding) -> Step:
        """Operations that keep the grid."""
        zero_point = int(grid.zero_point)
        assert op.inputs[0] is not None
        reads = (Operand(op.inputs[0].tensor, grid), *op.inputs[1:])

        def moved(codes: Tensor, *others: Tensor | None) -> Any:
            made = call(op, [codes - zero_point, *others], graph.constants)
            return tuple(each + zero_point for each in made)

        def averaged(codes: Tensor) -> Tensor:
            shifted = codes - zero_point
            if op.type == "GlobalAveragePool":
                count = shifted.shape[2] * shifted.shape[3]
                return self._averaged(shifted.sum((2, 3), keepdim=True), count, grid, whole=True)
            kernel, pads, strides = (op.attribute(name) for name in ("kernel_shape", "pads", "strides"))
            sums = F.avg_pool2d(shifted, kernel, strides, pads[:2], divisor_override=1)
            return self._averaged(sums, int(np.prod(kernel)), grid, whole=False)

        if op.type in ops_with(Trait.AVERAGE_POOL):
            return Step((op,), reads, writes, _clamped(averaged, 0, 255))
        return Step((op,), reads, writes, moved, "integer" if op.type == "Relu" else "moved")

    def _weighted(self, graph: Network, ops: tuple[Op, ...], output: Encoding) -> Kernel:
        op, bias = _as_weighted(graph, ops)
        sums = accumulator(graph, op)
        assert sums is not None, op
        held = None if bias is None else torch.from_numpy(bias).reshape(sums.channels)
        return self._summed(op, sums, held, output)

    def _concatenated(self, grids: list[Encoding], output: Encoding, dim: int) -> Kernel:
        lanes = 8  # on every CPU

        def one(codes: Tensor, grid: Encoding) -> Tensor:
            if (grid.scale, grid.zero_point) == (output.scale, output.zero_point):
                return codes
            if dim != 1 or codes.ndim != 4:
                return self.quantize(dequantize(codes, grid), output)
            head = codes.shape[1] // lanes * lanes
            factor, zero_point = inverse(output.scale), int(output.zero_point)
            blocks = rounded_after(in_blocks(codes[:, :head], grid), factor, zero_point)
            rest = rounded_inside(dequantize(codes[:, head:], grid), factor, zero_point)
            return torch.cat([blocks, rest], 1)

        return lambda *parts: torch.cat([one(codes, grid) for codes, grid in zip(parts, grids, strict=True)], dim)

    def _pointwise(self, compute: Pointwise, grids: list[Encoding], output: Encoding) -> Kernel:
        """`compute` on real numbers, element by element: in blocks, and one by one at the end."""
        factor, zero_point = inverse(output.scale), int(output.zero_point)

        def kernel(*codes: Tensor) -> Tensor:
            shape = np.broadcast_shapes(*(tuple(each.shape) for each in codes))
            codes = tuple(each.expand(shape) for each in codes)
            real = [in_blocks(each, grid) for each, grid in zip(codes, grids, strict=True)]
            made = rounded_after(compute(*real), factor, zero_point)
            rest = last_in_memory(shape, _BLOCK)
            if rest is not None:
                real = [dequantize(each[rest], grid) for each, grid in zip(codes, grids, strict=True)]
                made[rest] = rounded_inside(compute(*real), factor, zero_point)
            return made

        return kernel


class AtenArithmetic(TorchArithmetic):
    """A library that only computes sums of products; everything else is ATen's."""

    def _added(self, grids: list[Encoding], output: Encoding) -> Kernel:
        return self._pointwise(torch.add, grids, output)

    def _averaged(self, sums: Tensor, count: int, grid: Encoding, *, whole: bool) -> Tensor:
        zero_point = int(grid.zero_point)
        share = np.float32(1) / np.float32(count)
        again = inverse(np.float32(1) / share)
        if whole:
            return rounded_inside(sums, again, zero_point)
        lanes = self.cpu.register // 4
        head = sums.shape[1] // lanes * lanes
        blocks = rounded_after(sums[:, :head], float(share), zero_point)
        return torch.cat([blocks, rounded_inside(sums[:, head:], again, zero_point)], 1)

    def _function(self, name: str, function: Callable[[Tensor], Tensor], grid: Encoding, output: Encoding) -> Kernel:
        del name
        return self._pointwise(function, [grid], output)


def in_blocks(codes: Tensor, grid: Encoding) -> Tensor:
    """Dequantize as ATen's vector code does: `fma(s, q, f32(-s * z))`."""
    scale = torch.tensor(np.float32(grid.scale))
    return fma(codes, scale, -(scale * float(grid.zero_point)))


def last_in_memory(shape: tuple[int, ...], block: int) -> tuple[Any, ...] | None:
    """The indices, one for each dimension, of the elements at the end of a tensor that fill no whole block.

    >>> last_in_memory((1, 3, 1, 22), 64)
    (tensor([0, 0]), tensor([1, 2]), tensor([0, 0]), tensor([21, 21]))
    """
    count = int(np.prod(shape))
    rest = count % block
    if not rest:
        return None
    order = (0, 2, 3, 1) if len(shape) == 4 else tuple(range(len(shape)))
    found = np.unravel_index(np.arange(count - rest, count), [shape[dim] for dim in order])
    return tuple(torch.from_numpy(np.array(found[order.index(dim)])) for dim in range(len(shape)))


def _same(codes: Tensor) -> Tensor:
    return codes


def _clamped(kernel: Kernel, low: int, high: int) -> Kernel:
    return lambda *codes: kernel(*codes).clamp(low, high)


def _multiplied(grids: list[Encoding], output: Encoding) -> Kernel:
    """The kernel of a product: both libraries multiply codes less their zero points, in integers."""
    a, b = grids
    factor = float(np.float32(np.float32(a.scale) * np.float32(b.scale)) * np.float32(inverse(output.scale)))

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return rounded_after((x - int(a.zero_point)) * (y - int(b.zero_point)), factor, int(output.zero_point))

    return kernel


_FUNCTIONS: dict[str, Callable[[Any], Callable[[Tensor], Tensor]]] = {
    "hardswish": lambda _: lambda x: x * (x + 3).clamp_(0, 6) / 6,
    "hardsigmoid": lambda _: lambda x: (x + 3).clamp_(0, 6) / 6,
    "leaky_relu": lambda given: lambda x: torch.where(x > 0, x, x * given["slope"]),
    "elu": lambda given: lambda x: torch.where(x > 0, x, (x.exp() - 1) * given["alpha"]),
    "sigmoid": lambda _: lambda x: 1 / (1 + (-x).exp()),
    "tanh": lambda _: torch.tanh,
}
"""By the name of the kernel, from the attributes of its step."""


def _as_weighted(graph: Network, ops: tuple[Op, ...]) -> tuple[Op, np.ndarray[Any, np.dtype[np.float32]] | None]:
    """The convolution or linear layer of a fused step, with the constant weights as its second input, and its bias."""
    head = next(op for op in ops if op.type in ops_with(Trait.WEIGHTED))
    bias = head.optional(2)
    if head.type == "MatMul":
        adds = [op for op in ops if op.type == "Add"]
        bias = adds[0].inputs[1] if adds else None
        turned = next((op for op in ops if op.type == "Transpose"), None)
        if turned is not None:
            head = Op("Gemm", head.name, (head.inputs[0], turned.inputs[0]), head.outputs, {"transB": 1})
    if bias is None:
        return head, None
    return head, np.array(constant_values(graph, bias), np.float32).reshape(-1)


def _float_step(graph: Network, op: Op, writes: tuple[Operand, ...]) -> Step:
    """A float step with the functions and the memory layout of the engine, so that float sums are rounded alike."""
    encodings = [None if read is None else read.encoding for read in op.inputs]

    def real(value: Tensor, encoding: Encoding | None) -> Tensor:
        if encoding is None:
            return value
        found = dequantize(value, encoding)
        return found.contiguous(memory_format=torch.channels_last) if found.ndim == 4 else found

    def kernel(*values: Tensor | None) -> Any:
        given = [None if v is None else real(v, encoding) for v, encoding in zip(values, encodings, strict=True)]
        return call(op, given, graph.constants)

    return Step((op,), op.inputs, writes, kernel, "float")
