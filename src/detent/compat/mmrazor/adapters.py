"""A user's observers and fake quantizers, written for MMRazor, as Detent's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from detent.compat.mmrazor.modules import FakeQuantizeBase
from detent.compat.mmrazor.observers import MinMaxObserver, arguments_of, sync_tensor
from detent.compat.users_code import users_code
from detent.errors import RangeError, RegistrationError
from detent.numerics import QParams, Scheme
from detent.observers import OBSERVERS, Observer
from detent.quantizers import QUANTIZERS, Quantizer, Role
from detent.registry import Registry

__all__ = ["observer_name", "quantizer_name"]


def observer_name(cls: type, options: Mapping[str, Any]) -> str:
    """The name under which Detent knows a user's observer; it is registered the first time."""
    if issubclass(cls, Observer):
        return _name(OBSERVERS, cls, cls)
    if not issubclass(cls, MinMaxObserver):
        raise _foreign(cls, "MinMaxObserver")
    made_of = {"theirs": cls, "options": dict(options)}
    return _name(OBSERVERS, cls, type(cls.__name__, (_AdaptedObserver,), made_of))


def quantizer_name(cls: type, observer: type, options: Mapping[str, Any]) -> str:
    """The name under which Detent knows a user's fake quantizer with an observer; it is registered the first time."""
    if issubclass(cls, Quantizer):
        return _name(QUANTIZERS, cls, cls)
    if not issubclass(cls, FakeQuantizeBase):
        raise _foreign(cls, "FakeQuantizeBase")
    if not issubclass(observer, MinMaxObserver):
        raise _foreign(observer, "MinMaxObserver")
    made_of = {"theirs": cls, "options": {"observer": observer, **options}}
    return _name(QUANTIZERS, cls, type(cls.__name__, (_AdaptedQuantizer,), made_of))


def _foreign(cls: type, base: str) -> RegistrationError:
    return RegistrationError(
        f"use {cls.__name__}", f"it is not a {base}", f"derive it from detent.compat.mmrazor.{base}"
    )


def _name(table: Registry[Any], cls: type, adapted: Any) -> str:
    for known, one in table.items():
        if one is cls or (getattr(one, "theirs", None) is cls and one.options == adapted.options):
            return known
    name, count = f"mmrazor.{cls.__name__}", 1
    while name in table:
        count += 1
        name = f"mmrazor.{cls.__name__}-{count}"
    table.register(name, adapted)
    return name


class _AdaptedObserver(Observer):
    theirs: ClassVar[type[MinMaxObserver]]
    options: ClassVar[dict[str, Any]]

    def __init__(self, scheme: Scheme, *, name: str = "tensor"):
        super().__init__(scheme, name=name)
        with _code_of(self, f"make it for {name!r}"):
            self._observer = self.theirs(**arguments_of(scheme), **self.options)

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:  # noqa: ARG002
        with _code_of(self, f"observe {self.name!r}"):
            self._observer.to(x.device)(x)

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:  # noqa: ARG002
        with _code_of(self, f"calculate_qparams for {self.name!r}"):
            given = self._observer.calculate_qparams()
        scale, zero_point = (_shaped(found.detach().double(), low.shape) for found in given)
        return QParams(sync_tensor(scale).float(), sync_tensor(zero_point).round().to(torch.int64))


class _AdaptedQuantizer(Quantizer):
    """Holds the tensors and parts of the user's module, which itself stands beside the tree so that they are there
    once."""

    theirs: ClassVar[type[FakeQuantizeBase]]
    options: ClassVar[dict[str, Any]]

    def __init__(self, scheme: Scheme, shape: Sequence[int], *, role: Role = "activation", name: str = "tensor"):
        super().__init__(scheme, shape, role=role, name=name)
        with _code_of(self, f"make it for {name!r}"):
            made: Any = self.theirs(**arguments_of(scheme), **self.options)
        # As torch has them: a tensor with one scale has one of shape (1,).
        made.scale.data = self._unset().reshape(-1)
        made.zero_point.data = torch.zeros_like(made.scale.data, dtype=made.zero_point.dtype)
        self.__dict__["_made"] = made
        for key, parameter in made.named_parameters(recurse=False):
            self.register_parameter(key, parameter)
        for key, buffer in made.named_buffers(recurse=False):
            self.register_buffer(key, buffer)
        for key, part in made.named_children():
            self.add_module(key, part)

    def qparams(self) -> QParams:
        with _code_of(self, f"calculate_qparams for {self.name!r}"):
            scale, zero_point = self._with_our_tensors().calculate_qparams()
        if bool((scale <= 0).any()):
            raise RangeError(
                f"{self.theirs.__name__}.calculate_qparams for {self.name!r} gives the scale {float(scale.min()):g}",
                "scales are positive; a step of the optimizer has changed the sign",
                "begin it, and forward, with self.scale.data.abs_().clamp_(min=1e-8)",
            )
        zeros = zero_point.detach().round().to(torch.int64)
        return QParams(_shaped(scale.detach(), self.scale_shape), _shaped(zeros, self.scale_shape))

    def apply(self, fn: Callable[[nn.Module], None]) -> Any:
        """The user's module is asked too: its switches are turned this way."""
        fn(self._with_our_tensors())
        return super().apply(fn)

    def _initialize(self, observed: QParams) -> None:
        made = self._with_our_tensors()
        made.scale.copy_(observed.scale.reshape(-1))
        made.zero_point.copy_(observed.zero_point.reshape(-1))
        for switch in ("enable_param_learning", "disable_observer"):
            if hasattr(made, switch):
                getattr(made, switch)()
                return

    def _fake_quantize(self, x: Tensor) -> Tensor:
        with _code_of(self, f"quantize {self.name!r}"):
            value: Tensor = self._with_our_tensors()(x)
        return value

    def _with_our_tensors(self) -> Any:
        """Moving a module to a device gives it new buffers: hand them on."""
        made = self.__dict__["_made"]
        made._parameters.update(self._parameters)
        made._buffers.update(self._buffers)
        made.training = self.training
        return made


def _code_of(adapter: _AdaptedObserver | _AdaptedQuantizer, asked: str) -> AbstractContextManager[None]:
    """Mistakes of a user's class are answered with the line."""
    return users_code(f"{adapter.theirs.__name__}: {asked}", package=sys.modules[__package__])


def _shaped(values: Tensor, shape: Sequence[int]) -> Tensor:
    """One value, or one for each channel, in the shape that Detent's scales have."""
    return values.reshape(tuple(shape)) if values.numel() == torch.Size(shape).numel() else values.expand(shape).clone()
