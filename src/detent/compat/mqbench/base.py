"""`QuantizeBase` and `ObserverBase`: classes of a user's own, and how the core's tables come to hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from detent import observers, quantizers
from detent.compat.users_code import users_code
from detent.errors import RangeError, SchemeError
from detent.numerics import IntGrid, PerChannel, PerTensor, QParams, Scheme, choose_qparams
from detent.observers import Observer
from detent.quantizers import Quantizer, Role

__all__ = ["ObserverBase", "QuantizeBase", "Simulating", "register_pair"]


class ObserverBase(nn.Module):
    """Collects statistics in `forward`; `calculate_qparams` gives scale and zero point, first of whatever it gives.

    Unless a subclass says otherwise, that of the least and greatest value in `min_val` and `max_val`.
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
        ch_axis: int = -1,
        pot_scale: bool = False,
        factory_kwargs: Any = None,  # noqa: ARG002
    ):
        super().__init__()
        self.dtype, self.qscheme, self.ch_axis, self.pot_scale = dtype, qscheme, ch_axis, pot_scale
        signed = dtype == torch.qint8
        bits = 7 if reduce_range else 8
        self.quant_min = (-(2 ** (bits - 1)) if signed else 0) if quant_min is None else quant_min
        self.quant_max = self.quant_min + 2**bits - 1 if quant_max is None else quant_max
        self.register_buffer("min_val", torch.tensor(torch.inf))
        self.register_buffer("max_val", torch.tensor(-torch.inf))

    @property
    def scheme(self) -> Scheme:
        """What qscheme, range and `pot_scale` say, as the core says it."""
        span = self.quant_max - self.quant_min + 1
        bits = max(2, (span - 1).bit_length())
        signed = self.quant_min < 0
        grid = IntGrid(bits, signed=signed, narrow=signed and span == 2**bits - 1)
        symmetric = self.qscheme in (torch.per_tensor_symmetric, torch.per_channel_symmetric)
        granularity = PerTensor() if self.ch_axis == -1 else PerChannel(self.ch_axis)
        return Scheme(grid, symmetric, granularity, "power_of_two" if self.pot_scale else "float")

    def calculate_qparams(self) -> tuple[Tensor, ...]:
        found = choose_qparams(self.min_val, self.max_val, self.scheme)
        return found.scale, found.zero_point


class QuantizeBase(nn.Module):
    """Has an observer, `activation_post_process`, and two flags that say what `forward` does.

    A subclass holds `scale` and `zero_point`. In a prepared model the core sets both flags: the observer runs while
    the model is calibrated, the fake quantization afterward.
    """

    observer_enabled: Tensor
    fake_quant_enabled: Tensor

    def __init__(self, observer: Any, **observer_kwargs: Any):
        super().__init__()
        self.activation_post_process = observer(**observer_kwargs)
        made = self.activation_post_process
        self.quant_min, self.quant_max = made.quant_min, made.quant_max
        self.dtype, self.qscheme, self.ch_axis = made.dtype, made.qscheme, made.ch_axis
        self.pot_scale, self.ada_sign = made.pot_scale, False
        self.is_per_channel = self.ch_axis != -1
        self.bitwidth = max(2, (self.quant_max - self.quant_min).bit_length())
        self.register_buffer("observer_enabled", torch.tensor([1], dtype=torch.uint8))
        self.register_buffer("fake_quant_enabled", torch.tensor([1], dtype=torch.uint8))


def register_pair(fake_quantize: type[QuantizeBase], observer: type[ObserverBase]) -> tuple[str, str]:
    """Put both into the core's tables, under the names that are given back. The same classes have the same names."""
    measured = _free_name(f"mqbench.{observer.__name__}", observers.OBSERVERS, made_of=observer)
    simulated = _free_name(
        f"mqbench.{fake_quantize.__name__}.{observer.__name__}",
        quantizers.QUANTIZERS,
        made_of=fake_quantize,
        observed_by=observer,
    )
    if measured not in observers.OBSERVERS:
        observers.register(measured, type(observer.__name__, (_Observing,), {"made_of": observer}))
    if simulated not in quantizers.QUANTIZERS:
        parts = {"made_of": fake_quantize, "observed_by": observer, "default_observer": measured}
        quantizers.register(simulated, type(fake_quantize.__name__, (Simulating,), parts))
    return simulated, measured


def _free_name(name: str, table: Mapping[str, Any], **parts: type) -> str:
    """`name`, or with a number where another class of that name has it."""
    numbered = (name if number == 1 else f"{name}_{number}" for number in count(1))
    return next(
        one
        for one in numbered
        if one not in table or all(getattr(table[one], key) is part for key, part in parts.items())
    )


def _arguments(scheme: Scheme) -> dict[str, Any]:
    per_channel = isinstance(scheme.granularity, PerChannel)
    kind = f"per_{'channel' if per_channel else 'tensor'}_{'symmetric' if scheme.symmetric else 'affine'}"
    return {
        "dtype": torch.qint8 if scheme.grid.signed else torch.quint8,
        "qscheme": getattr(torch, kind),
        "quant_min": scheme.grid.qmin,
        "quant_max": scheme.grid.qmax,
        "ch_axis": scheme.granularity.axis if isinstance(scheme.granularity, PerChannel) else -1,
        "pot_scale": scheme.scale == "power_of_two",
    }


class _Observing(Observer):
    """One of the user's observers, in the place of the core's."""

    made_of: ClassVar[type[ObserverBase]]

    def __init__(self, scheme: Scheme, *, name: str = "tensor"):
        super().__init__(scheme, name=name)
        with users_code(f"make {self.made_of.__name__} for {name!r}"):
            self._observer = self.made_of(**_arguments(scheme))

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:
        with users_code(f"run {self.made_of.__name__} on {self.name!r}"):
            self._observer(x)
        self._shape = torch.maximum(low, high).shape

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:  # noqa: ARG002
        with users_code(f"calculate_qparams of {self.made_of.__name__} for {self.name!r}"):
            scale, zero_point = self._observer.calculate_qparams()[:2]
        for name, value in (("scales", scale), ("zero points", zero_point)):
            if value.numel() != self._shape.numel():
                raise SchemeError(
                    f"{type(self._observer).__name__} for {self.name!r}, which is {self.scheme}",
                    f"calculate_qparams gives {value.numel()} {name} where there are {self._shape.numel()}",
                    "let it look at ch_axis, or say per_channel=False in the qscheme",
                )
        return QParams(scale.float().reshape(self._shape), zero_point.round().long().reshape(self._shape))


class Simulating(Quantizer):
    """One of the user's fake quantizers, in the place of the core's."""

    made_of: ClassVar[type[QuantizeBase]]
    observed_by: ClassVar[type[ObserverBase]]

    measured: Tensor

    def __init__(
        self,
        scheme: Scheme,
        shape: Sequence[int],
        *,
        role: Role = "activation",
        name: str = "tensor",
        ada_sign: bool = False,
    ):
        super().__init__(scheme, shape, role=role, name=name)
        with users_code(f"make {self.made_of.__name__} for {name!r}"):
            self.inner: Any = self.made_of(self.observed_by, **_arguments(scheme))
        self.inner.ada_sign = ada_sign
        self._shrinking = 1.0  # of steps, since the observer began with another range
        self.inner.observer_enabled[0] = 0
        for held in ("scale", "zero_point"):
            getattr(self.inner, held).data = torch.zeros(self.scale_shape or (1,))
        self.register_buffer("measured", torch.tensor(torch.nan))  # being calibrated is read off the state

    def forward(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        if self.mode.watch is not None and self.inner.ada_sign:
            with torch.no_grad():
                self._run(x if factor is None else x * factor)  # which chooses its range by what it sees
            self._take_range()
        return super().forward(x, factor)

    def qparams(self) -> QParams:
        scale = self.inner.scale.detach().abs().reshape(self.scale_shape)
        if self.scheme.scale == "power_of_two":
            scale = torch.exp2(torch.round(torch.log2(scale)))  # as `pot_quantization` of the benchmark has it
        return QParams(scale, self.inner.zero_point.detach().round().long().reshape(self.scale_shape))

    def _initialize(self, observed: QParams) -> None:
        self.inner.scale.data.copy_(observed.scale * self._shrinking)
        self.inner.zero_point.data.copy_(observed.zero_point.float())
        self.measured.fill_(1.0)
        self._shrinking = 1.0

    def _fake_quantize(self, x: Tensor) -> Tensor:
        values = self._run(x)
        scale = self.inner.scale.detach()
        if not bool((scale > 0).all()):  # `qparams` would deploy its magnitude, which is not what ran
            raise RangeError(
                f"{self.made_of.__name__} for {self.name!r} with the scale {float(scale.min()):g}",
                "a step of the optimizer made it so, and its forward computes with it",
                "begin its forward with self.scale.data.abs_().clamp_(min=1e-8), or scale the gradient of self.scale",
            )
        return values

    def _run(self, x: Tensor) -> Tensor:
        with users_code(f"run {self.made_of.__name__} on {self.name!r}"):
            given: Tensor = self.inner(x)
        return given

    def _take_range(self) -> None:
        """Of a fake quantizer that has switched to unsigned integers."""
        before = self.scheme.grid
        if self.inner.quant_min == 0 and before.signed:
            self.scheme = replace(self.scheme, grid=IntGrid(before.bits, signed=False))
            self._shrinking = before.qmax / self.scheme.grid.qmax
