"""The deployed weights and biases of a prepared module: codes with an encoding, or floats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from detent.errors import DeployError
from detent.graph import DerivedBias, FoldedBatchNorm
from detent.ir import Encoding
from detent.numerics import PerChannel, PerGroup, QParams, Rounding, Scheme
from detent.quantizers import Quantizer

__all__ = ["StoredParameter", "activation_encoding", "encoding_of", "operation_of", "stored_parameter"]

_MOST_PROBES = 2**16
_BETWEEN = {Rounding.FLOOR: 0.5, Rounding.CEIL: -0.5}


@dataclass(frozen=True, eq=False)
class StoredParameter:
    """A parameter: its real values on the grid, and how they are stored if as integers (of the grid's own type).

    `quantizer` is what put it on its grid, None if it is float.
    """

    values: Tensor
    codes: npt.NDArray[Any] | None = None
    encoding: Encoding | None = None
    quantizer: Quantizer | DerivedBias | None = None
    qparams: QParams | None = None


def encoding_of(scheme: Scheme, qparams: QParams, *, int4: bool = False) -> Encoding:
    """How ONNX stores a tensor of a scheme that it has: in the smallest type that has all of its codes.

    Fewer than 8 bits go into 8, which engines have kernels for; 4 bits in groups, or with `int4`, into 4.
    """
    grid = scheme.grid
    granularity = scheme.granularity
    axis = granularity.axis if isinstance(granularity, (PerChannel, PerGroup)) else None
    block = granularity.size if isinstance(granularity, PerGroup) else None
    dtype = grid.onnx_dtype(int4=int4 or block is not None)
    assert dtype is not None, grid
    scale = qparams.scale.detach().cpu().numpy().astype(np.float32)
    zero_point = qparams.zero_point.detach().cpu().numpy().astype(np.int64)
    return Encoding(scale, zero_point, dtype, axis, block, grid.qmin, grid.qmax)


def activation_encoding(quantizer: Quantizer) -> Encoding:
    """The encoding whose QuantizeLinear computes what an activation's quantizer does. A quantizer may not use all codes
    of its grid (if it clips symmetrically): the encoding has the codes in use. A quantizer that changes values before
    rounding is refused."""
    encoding = encoding_of(quantizer.scheme, quantizer.qparams())
    if not encoding.per_tensor:
        return encoding
    count = min(encoding.qmax - encoding.qmin + 1, _MOST_PROBES)
    codes = torch.linspace(encoding.qmin, encoding.qmax, count, dtype=torch.float64).round()
    # Between two codes where every number is rounded one way: at a code, the last bit of a quotient would decide.
    between = _BETWEEN.get(quantizer.scheme.rounding, 0.0)
    reals = (codes + between - float(encoding.zero_point)) * float(encoding.scale)
    given = quantizer.codes(reals.float()).double()
    least, most = int(given.min()), int(given.max())
    if not torch.equal(given, codes.clamp(least, most)):
        raise DeployError(
            f"deploy {quantizer.name!r}, which {type(quantizer).__name__} quantizes",
            "it moves values before it rounds them, and QuantizeLinear only rounds",
            "keep that method for weights, and choose another for activations",
        )
    return replace(encoding, qmin=least, qmax=most)


def operation_of(module: nn.Module) -> nn.Module:
    """The operation of a module: for a folded batch norm, its convolution or linear layer."""
    return module.op if isinstance(module, FoldedBatchNorm) else module


def stored_parameter(module: nn.Module, which: str, *, int4: bool = False) -> StoredParameter | None:
    """The parameter or buffer `which` of a module as it is deployed; None if it has none. `int4` as `encoding_of`."""
    value, quantizer = _original(module, which)
    if value is None:
        return None
    if quantizer is None:
        return StoredParameter(value.detach())
    if isinstance(quantizer, DerivedBias):
        qparams = quantizer.qparams_for(value)
        codes, scheme = quantizer.codes(value), quantizer.scheme
    else:
        qparams, scheme = quantizer.qparams(), quantizer.scheme
        if scheme.grid.onnx_dtype() is None or scheme.has_offset:
            return StoredParameter(_on_grid(quantizer, value), quantizer=quantizer, qparams=qparams)
        codes = quantizer.codes(value)
    encoding = encoding_of(scheme, qparams, int4=int4)
    return StoredParameter(value.detach(), codes.cpu().numpy(), encoding, quantizer, qparams)


def _original(module: nn.Module, which: str) -> tuple[Tensor | None, Any]:
    """The float value, and the quantizer it goes through."""
    if isinstance(module, FoldedBatchNorm):
        quantizer = getattr(module, f"{which}_quantizer", None)
        return getattr(module, which, None), None if isinstance(quantizer, nn.Identity) else quantizer
    if parametrize.is_parametrized(module, which):
        holder: Any = module.get_submodule("parametrizations")[which]  # type: ignore[index]
        return holder.original, holder[0]
    return getattr(module, which, None), None


def _on_grid(quantizer: Quantizer, value: Tensor) -> Tensor:
    training = quantizer.training
    quantizer.eval()
    try:
        with torch.no_grad():
            return quantizer.quantize(value).detach()
    finally:
        quantizer.train(training)
