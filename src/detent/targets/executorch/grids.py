"""Q and DQ as ExecuTorch's compilers look for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.errors import DeployError
from detent.ir import Encoding
from detent.ir.qparams import BOUNDS
from detent.ir.torch_module import FloatGrids, Grids

__all__ = ["DecomposedGrids", "GroupGrids"]


class DecomposedGrids(Grids):
    """The operators of torch's `quantized_decomposed` library: signed 8 bits, weights kept as codes."""

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        grid = _signed(encoding)
        found: Tensor = torch.ops.quantized_decomposed.quantize_per_tensor(values, *grid)
        return found

    def dequantize(self, codes: Tensor, encoding: Encoding) -> Tensor:
        grid = _signed(encoding)
        found: Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor(codes, *grid)
        return found

    def constant(self, codes: npt.NDArray[Any], encoding: Encoding) -> Mapping[str, Tensor]:
        if not _is_weight(encoding):
            return {"values": torch.from_numpy(encoding.dequantize(codes))}
        held = {"codes": torch.from_numpy(codes.astype(np.int8))}
        if encoding.axis is not None:
            held["scale"] = torch.from_numpy(encoding.scale.copy())
            held["zero_point"] = torch.from_numpy(encoding.zero_point.copy())
        return held

    def restore(self, buffers: Mapping[str, Tensor], encoding: Encoding) -> Tensor:
        if "values" in buffers:
            return buffers["values"]
        library, bounds = torch.ops.quantized_decomposed, (encoding.qmin, encoding.qmax, torch.int8)
        if encoding.axis is None:
            scale, zero_point = float(encoding.scale), int(encoding.zero_point)
            return library.dequantize_per_tensor(buffers["codes"], scale, zero_point, *bounds)  # type: ignore[no-any-return]
        parts = (buffers["codes"], buffers["scale"], buffers["zero_point"])
        return library.dequantize_per_channel(*parts, encoding.axis, *bounds)  # type: ignore[no-any-return]


class GroupGrids(FloatGrids):
    """Codes of weights in groups of 4 bits, or of 8 bits with a scale for each output."""

    def constant(self, codes: npt.NDArray[Any], encoding: Encoding) -> Mapping[str, Tensor]:
        held = {"codes": torch.from_numpy(np.ascontiguousarray(codes, np.int8))}
        held["scale"] = torch.from_numpy(np.ascontiguousarray(encoding.scale))
        # The delegate takes zero points of the scales' type beside groups, and whole numbers else.
        zeros = torch.zeros_like(held["scale"], dtype=torch.int64 if encoding.block is None else None)
        return {**held, "zero_point": zeros}

    def restore(self, buffers: Mapping[str, Tensor], encoding: Encoding) -> Tensor:
        library, parts = torch.ops.quantized_decomposed, (buffers["codes"], buffers["scale"], buffers["zero_point"])
        if encoding.block is None:
            bounds = (encoding.qmin, encoding.qmax, torch.int8)
            return library.dequantize_per_channel(*parts, encoding.axis, *bounds)  # type: ignore[no-any-return]
        grid = (encoding.qmin, encoding.qmax, torch.int8, encoding.block, torch.float32)
        return library.dequantize_per_channel_group(*parts, *grid)  # type: ignore[no-any-return]


def _is_weight(encoding: Encoding) -> bool:
    """Codes that fit 8 signed bits; a bias becomes a float, which the delegate rounds again."""
    least, greatest = BOUNDS[encoding.dtype]
    return least >= -128 and greatest <= 127 and encoding.block is None


def _signed(encoding: Encoding) -> tuple[float, int, int, int, torch.dtype]:
    if not encoding.per_tensor or not encoding.full or encoding.dtype not in ("int8", "uint8"):
        raise DeployError(
            f"write {encoding.dtype} activations with codes {encoding.qmin} to {encoding.qmax} to a .pte file",
            "the delegate has 8 bits, all of their codes and one scale",
            "quantize activations with 8 bits, not narrow, one scale for each tensor",
        )
    offset = 128 if encoding.dtype == "uint8" else 0
    zero_point, low, high = int(encoding.zero_point) - offset, encoding.qmin - offset, encoding.qmax - offset
    return float(encoding.scale), zero_point, low, high, torch.int8
