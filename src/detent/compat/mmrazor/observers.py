"""Observers as modules, with the arguments and attributes that torch's have: what fake quantizers of one's own make."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from detent.errors import SchemeError
from detent.numerics import IntGrid, PerChannel, PerTensor, Scheme, choose_qparams
from detent.observers import OBSERVERS
from detent.observers.ranks import over_ranks

__all__ = [
    "TORCH_OBSERVERS",
    "HistogramObserver",
    "LSQObserver",
    "LSQPerChannelObserver",
    "MinMaxObserver",
    "MovingAverageMinMaxObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "PerChannelMinMaxObserver",
    "arguments_of",
    "sync_tensor",
]

_PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_symmetric)
_SYMMETRIC = (torch.per_tensor_symmetric, torch.per_channel_symmetric)


def sync_tensor(tensor: Tensor) -> Tensor:
    """The mean over all processes, in place."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        tensor.copy_(over_ranks(tensor, "sum") / torch.distributed.get_world_size())
    return tensor


def arguments_of(scheme: Scheme) -> dict[str, Any]:
    """The arguments that torch's observers and fake quantizers take, for a scheme.

    >>> arguments_of(Scheme(IntGrid(4), granularity=PerChannel(0)))["quant_max"]
    7
    """
    channel = isinstance(scheme.granularity, PerChannel)
    kind = f"per_{'channel' if channel else 'tensor'}_{'symmetric' if scheme.symmetric else 'affine'}"
    found: dict[str, Any] = {
        "dtype": torch.qint8 if scheme.grid.qmin < 0 else torch.quint8,
        "qscheme": getattr(torch, kind),
        "quant_min": scheme.grid.qmin,
        "quant_max": scheme.grid.qmax,
        "reduce_range": False,
    }
    if isinstance(scheme.granularity, PerChannel):
        found["ch_axis"] = scheme.granularity.axis
    if scheme.scale == "power_of_two":
        found["is_pot_scale"] = True
    return found


class MinMaxObserver(nn.Module):
    """Running minimum and maximum of what it sees; derive from it and override `forward` or `calculate_qparams`.

    Symmetric unsigned codes have zero point 0: they are for what cannot be negative.
    """

    min_val: Tensor
    max_val: Tensor

    def __init__(
        self,
        dtype: torch.dtype = torch.quint8,
        qscheme: torch.qscheme = torch.per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        *,
        ch_axis: int | None = None,
        is_pot_scale: bool = False,
    ) -> None:
        super().__init__()
        grid = _grid(dtype, reduce_range, quant_min, quant_max)
        self.dtype, self.qscheme, self.reduce_range = dtype, qscheme, reduce_range
        self.quant_min, self.quant_max = grid.qmin, grid.qmax
        if ch_axis is not None:
            self.ch_axis = ch_axis
        self.scheme = Scheme(
            grid,
            symmetric=qscheme in _SYMMETRIC,
            granularity=PerChannel(ch_axis or 0) if qscheme in _PER_CHANNEL else PerTensor(),
            scale="power_of_two" if is_pot_scale else "float",
        )
        for name in ("min_val", "max_val"):
            self.register_buffer(name, torch.empty(0), persistent=False)
        self.reset_min_max_vals()

    def reset_min_max_vals(self) -> None:
        """Forget what was seen."""
        none = torch.empty(0) if self.qscheme in _PER_CHANNEL else torch.tensor(math.inf)
        self.min_val, self.max_val = none.to(self.min_val.device), -none.to(self.max_val.device)

    def forward(self, x_orig: Tensor) -> Tensor:
        low, high = self._extremes(x_orig)
        seen = self.min_val.numel() > 0
        self.min_val = torch.minimum(low, self.min_val) if seen else low
        self.max_val = torch.maximum(high, self.max_val) if seen else high
        return x_orig

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point, of shape (1,) or one for each channel."""
        found = choose_qparams(self.min_val, self.max_val, self.scheme)
        return found.scale.reshape(-1), found.zero_point.reshape(-1)

    def _extremes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        granularity, x = self.scheme.granularity, x.detach().float()
        return granularity.reduce(x, torch.amin), granularity.reduce(x, torch.amax)


class PerChannelMinMaxObserver(MinMaxObserver):
    """Minimum and maximum of each channel along `ch_axis`; `min_val` is empty before the first batch, as in torch."""

    ch_axis: int

    def __init__(
        self,
        ch_axis: int = 0,
        dtype: torch.dtype = torch.quint8,
        qscheme: torch.qscheme = torch.per_channel_affine,
        **options: Any,
    ):
        super().__init__(dtype=dtype, qscheme=qscheme, ch_axis=ch_axis, **options)


class MovingAverageMinMaxObserver(MinMaxObserver):
    """Each batch moves the range by `averaging_constant` of the way to its own."""

    def __init__(self, averaging_constant: float = 0.01, **options: Any):
        super().__init__(**options)
        self.averaging_constant = averaging_constant

    def forward(self, x_orig: Tensor) -> Tensor:
        low, high = self._extremes(x_orig)
        first = not (self.min_val.numel() and bool(torch.isfinite(self.min_val).all()))
        self.min_val = low if first else self.min_val.lerp(low, self.averaging_constant)
        self.max_val = high if first else self.max_val.lerp(high, self.averaging_constant)
        return x_orig


class MovingAveragePerChannelMinMaxObserver(MovingAverageMinMaxObserver):
    def __init__(self, ch_axis: int = 0, qscheme: torch.qscheme = torch.per_channel_affine, **options: Any):
        super().__init__(ch_axis=ch_axis, qscheme=qscheme, **options)


class HistogramObserver(MinMaxObserver):
    """The range of least squared error."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._observer = OBSERVERS["mse"](self.scheme)

    def forward(self, x_orig: Tensor) -> Tensor:
        self._observer.observe(x_orig)
        return super().forward(x_orig)

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        found = self._observer.qparams()
        return found.scale.reshape(-1), found.zero_point.reshape(-1)


class LSQObserver(MinMaxObserver):
    """Where LSQ starts: 2 mean|x| / sqrt(quant_max), of the batch seen last."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.tensor_norm = torch.tensor(math.nan)

    def forward(self, x_orig: Tensor) -> Tensor:
        self.tensor_norm = self.scheme.granularity.reduce(x_orig.detach().float().abs(), torch.mean)
        return super().forward(x_orig)

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        _, zero_point = super().calculate_qparams()
        return sync_tensor(2 * self.tensor_norm / math.sqrt(self.quant_max)).reshape(-1), zero_point


class LSQPerChannelObserver(LSQObserver):
    def __init__(self, ch_axis: int = 0, qscheme: torch.qscheme = torch.per_channel_affine, **options: Any):
        super().__init__(ch_axis=ch_axis, qscheme=qscheme, **options)


TORCH_OBSERVERS: Mapping[str, type[MinMaxObserver]] = {
    cls.__name__: cls
    for cls in (
        MinMaxObserver,
        PerChannelMinMaxObserver,
        MovingAverageMinMaxObserver,
        MovingAveragePerChannelMinMaxObserver,
        HistogramObserver,
        LSQObserver,
        LSQPerChannelObserver,
    )
}


def _grid(dtype: torch.dtype, reduce_range: bool, quant_min: int | None, quant_max: int | None) -> IntGrid:
    signed = dtype == torch.qint8
    usual = IntGrid(7 if reduce_range else 8, signed=signed)
    low, high = (usual.qmin if quant_min is None else quant_min), (usual.qmax if quant_max is None else quant_max)
    grid = IntGrid((high + 1).bit_length() if low < 0 else high.bit_length(), signed=low < 0, narrow=0 > low == -high)
    if (grid.qmin, grid.qmax) != (low, high):
        raise SchemeError(
            f"quant_min {low} with quant_max {high}", "no number of bits has these ends", "give the ends of a bit width"
        )
    return grid
