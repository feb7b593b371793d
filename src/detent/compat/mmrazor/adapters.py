"""A user's observers and fake quantizers, written for MMRazor, as Detent's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from detent.compat.mmrazor.modules import FakeQuantizeBase, MinMaxObserver
from detent.errors import RegistrationError
from detent.numerics import QParams, Scheme
from detent.observers import OBSERVERS, Observer
from detent.quantizers import QUANTIZERS, Quantizer, Role
from detent.registry import Registry

__all__ = ["observer_name", "quantizer_name"]


def observer_name(cls: type) -> str:
    """The name under which Detent knows a user's observer; it is registered the first time."""
    if issubclass(cls, Observer):
        return _name(OBSERVERS, cls, cls)
    if not issubclass(cls, MinMaxObserver):
        raise _foreign(cls, "MinMaxObserver")
    return _name(OBSERVERS, cls, type(cls.__name__, (_AdaptedObserver,), {"theirs": cls}))


def quantizer_name(cls: type) -> str:
    """The name under which Detent knows a user's fake quantizer; it is registered the first time."""
    if issubclass(cls, Quantizer):
        return _name(QUANTIZERS, cls, cls)
    if not issubclass(cls, FakeQuantizeBase):
        raise _foreign(cls, "FakeQuantizeBase")
    return _name(QUANTIZERS, cls, type(cls.__name__, (_AdaptedQuantizer,), {"theirs": cls}))


def _foreign(cls: type, base: str) -> RegistrationError:
    return RegistrationError(f"use {cls.__name__}", f"it is no {base}", f"derive it from detent.compat.mmrazor.{base}")


def _name(table: Registry[Any], cls: type, adapted: type) -> str:
    for known, one in table.items():
        if one is cls or getattr(one, "theirs", None) is cls:
            return known
    name, count = f"mmrazor.{cls.__name__}", 1
    while name in table:
        count += 1
        name = f"mmrazor.{cls.__name__}-{count}"
    table.register(name, adapted)
    return name


class _AdaptedObserver(Observer):
    theirs: type[MinMaxObserver]

    def __init__(self, scheme: Scheme, *, name: str = "tensor"):
        super().__init__(scheme, name=name)
        self._observer = self.theirs(scheme=scheme)

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:  # noqa: ARG002
        self._observer(x)

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:  # noqa: ARG002
        scale, zero_point = self._observer.calculate_qparams()
        return QParams(scale, zero_point.to(torch.int64).expand(scale.shape).clone())


class _AdaptedQuantizer(Quantizer):
    """Holds the tensors of the user's module, which itself stands beside the tree so that they are there once."""

    theirs: type[FakeQuantizeBase]

    def __init__(self, scheme: Scheme, shape: Sequence[int], *, role: Role = "activation", name: str = "tensor"):
        super().__init__(scheme, shape, role=role, name=name)
        made: Any = self.theirs(
            observer=MinMaxObserver, quant_min=scheme.grid.qmin, quant_max=scheme.grid.qmax, scheme=scheme
        )
        made.scale.data, made.zero_point.data = self._unset(), torch.zeros(self.scale_shape)
        self.__dict__["_made"] = made
        for key, parameter in made.named_parameters(recurse=False):
            self.register_parameter(key, parameter)
        for key, buffer in made.named_buffers(recurse=False):
            self.register_buffer(key, buffer)

    def qparams(self) -> QParams:
        scale, zero_point = self._with_our_tensors().calculate_qparams()
        return QParams(scale.detach(), zero_point.detach().round().to(torch.int64))

    def _initialise(self, observed: QParams) -> None:
        made = self._with_our_tensors()
        made.scale.copy_(observed.scale)
        made.zero_point.copy_(observed.zero_point)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        value: Tensor = self._with_our_tensors()(x)
        return value

    def _with_our_tensors(self) -> Any:
        """Moving a module to a device gives it new buffers: hand them on."""
        made = self.__dict__["_made"]
        made._parameters.update(self._parameters)
        made._buffers.update(self._buffers)
        made.training = self.training
        return made
