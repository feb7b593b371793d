"""The base class of simulated quantizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from detent.errors import NotCalibratedError, SchemeError, TensorError
from detent.numerics import Granularity, Pairs, QParams, Requirement, Rounding, Scheme, quantize
from detent.quantizers.mode import QUANTIZE, Mode

__all__ = ["Quantizer", "Role"]

Role = Literal["weight", "activation", "bias"]

Measuring = tuple[str, Mapping[str, Any]]
"""The name of an observer, and options."""

_FEW_BITS = 6


class Quantizer(nn.Module, ABC):
    """Moves a tensor to its grid in the forward pass and says how the gradient goes back.

    An ordinary module: what it learns are parameters, what it measured are buffers, both with their final
    shape from the start and NaN until they are initialized, so that being calibrated is a fact about the
    state and travels with it. In eval mode the output lies exactly on the grid that `qparams` describes.
    What a call does is its `mode`: set it by `in_modes`, which restores it.

    Subclasses say which schemes and roles they have a meaning for (`requires`, `roles`) and whether a second pass over
    the same tensor gives the same again and changes nothing, in training too (`repeatable`: the backward pass then
    quantizes a weight again instead of keeping the quantized one). They implement:

        class Halves(Quantizer):
            '''Clips at half of the calibrated range.'''
            def __init__(self, scheme, shape, *, role="activation", name="tensor"):
                super().__init__(scheme, shape, role=role, name=name)
                self.register_buffer("scale", self._unset())
            def _initialize(self, observed):
                self.scale.copy_(observed.scale / 2)
            def qparams(self):
                return QParams.symmetric(self.scale)
            def _fake_quantize(self, x):
                return on_grid(x, self.scale, torch.tensor(0), self.scheme)

        detent.quantizers.register("halves", Halves)
    """

    requires: ClassVar[Requirement] = Requirement()
    roles: ClassVar[tuple[Role, ...]] = get_args(Role)
    default_observer: ClassVar[str | None] = None  # what sets its start; None is what `observer_of` chooses
    moves: ClassVar[bool] = False  # whether its range follows the data in training, by itself, and stands still in eval
    repeatable: ClassVar[bool] = False
    gives_new: ClassVar[bool] = False  # whether it gives a new tensor each time, which nothing keeps: only pairs ask
    plain: ClassVar[bool] = False  # whether it is what a tensor on its grid gets when no method is asked for
    trains: ClassVar[bool] = (
        True  # with the network; False: its numbers are calibrated, or reconstructed block by block
    )

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if "qparams" in vars(cls):
            setattr(cls, "qparams", _if_calibrated(vars(cls)["qparams"]))  # noqa: B010

    def __init__(self, scheme: Scheme, shape: Sequence[int], *, role: Role = "activation", name: str = "tensor"):
        super().__init__()
        method = type(self).__name__
        self.requires.check(method, scheme)
        if role not in self.roles:
            raise SchemeError(
                f"{method!r} for {name!r} in the role {role!r}",
                f"it is a method for {' and '.join(self.roles)}",
                "choose another method for this tensor",
            )
        self.scheme, self.role, self.name = scheme, role, name
        self.mode: Mode = QUANTIZE
        self.scale_shape = scheme.granularity.scale_shape(shape)
        self.observer: Measuring = self.observer_of(scheme)
        self.pairs: Pairs | None = None
        self.widening: float | None = None
        self.starts: tuple[QParams, ...] = ()
        self.guards_zero = False
        self._calibrated = False
        self.register_load_state_dict_post_hook(_refresh_calibrated)  # type: ignore[no-untyped-call]

    # `observer` is what measures it when a prepared model is calibrated: a name, and options. `pairs`, of a weight, is
    # which codes are kept from saturating where they are multiplied and added in pairs, and `widening` by how much its
    # scales were enlarged for that, on average. `starts` are what it may start from if the observer left a choice.
    # `guards_zero` says that roots or quotients are taken of the tensor, which have no slope where it is rounded to 0.

    @classmethod
    def observer_of(cls, scheme: Scheme, target: Measuring = ("minmax", {})) -> Measuring:
        """What sets the start of a tensor on `scheme` that no observer is asked for; `target` is the target's own.

        A range starts where plain calibration leaves it; on few codes, where the whole range is a bad start, at `start`
        (docs/training.md has the numbers).
        """
        if cls.default_observer is not None:
            return cls.default_observer, {}
        few = scheme.grid.bits <= _FEW_BITS and not cls.plain
        return ("start", {}) if few and target[0] == "minmax" else target

    @property
    def scheme(self) -> Scheme:
        """The scheme that it was made for; in eval mode without chance, as it is deployed."""
        return self._training_scheme if self.training else self._eval_scheme

    @scheme.setter
    def scheme(self, scheme: Scheme) -> None:
        self._training_scheme = scheme
        self._eval_scheme = scheme.without_chance()

    @property
    def start_scheme(self) -> Scheme:
        """The scheme on which its start is measured: with only the codes that it uses."""
        return self.scheme

    @property
    def calibrated(self) -> bool:
        """Whether every value the quantizer needs has been measured or loaded."""
        return self._calibrated

    def initialize(self, observed: QParams) -> None:
        """Start from measured qparams. Parameters keep their identity, so optimizers hold the right ones."""
        if tuple(observed.scale.shape) != self.scale_shape:
            raise TensorError(
                f"initialize {self.name!r} with a scale of shape {tuple(observed.scale.shape)}",
                f"the quantizer was made for {self.scale_shape}",
                "observe the tensor it was made for",
            )
        with torch.no_grad():
            self._initialize(observed)
        _refresh_calibrated(self)

    def widened(self, observed: QParams, x: Tensor) -> QParams:
        """`observed` of the tensor `x`, with scales enlarged as far as its pairs need it."""
        return observed if self.pairs is None else self.pairs.widened(observed, x, self.scheme)

    def forward(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        """What the mode says; by default `quantize`. With a `factor`, of `x * factor`, divided by it again: what a
        batch norm that is folded into a weight asks for."""
        mode = self.mode
        if factor is not None and (mode.watch is not None or self.guards_zero or not mode.quantizes):
            return Quantizer.forward(self, x * factor) / factor
        if mode.watch is not None:
            mode.watch(x)
        if not mode.quantizes:
            return x
        values = self.quantize(x, factor)
        if self.guards_zero and values.requires_grad:
            hook = partial(_without_slope_at, values.detach() == 0)
            values.register_hook(hook)  # type: ignore[no-untyped-call]
        return values

    def quantize(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        """`x` on the grid, in its own dtype, in any mode; an error if the quantizer is not calibrated."""
        self._require_calibrated(f"quantize {self.name!r}")
        if not x.is_floating_point():
            raise TensorError(
                f"quantize {self.name!r} of dtype {x.dtype}", "it contains no real numbers", "give floats"
            )
        return self.simulate(x) if factor is None else self.simulate_scaled(x, factor)

    def simulate(self, x: Tensor) -> Tensor:
        """`quantize` without its checks."""
        values = self._fake_quantize(x)
        if self.pairs is None:
            return values
        return self._bounded(values, self.qparams().scale, self.scheme.granularity)

    def _bounded(self, values: Tensor, scale: Tensor, granularity: Granularity) -> Tensor:
        """The output of `_fake_quantize`, with pairs within their limit."""
        if self.pairs is None:
            return values
        inplace = self.gives_new and self.scheme.rounding is not Rounding.STOCHASTIC
        return self.pairs.bounded(values, scale, granularity, inplace=inplace)

    def simulate_scaled(self, x: Tensor, factor: Tensor) -> Tensor:
        """`simulate(x * factor) / factor`. Where only the steps depend on the size of `x`, divide these instead."""
        return self.simulate(x * factor) / factor

    @torch.no_grad()
    def codes(self, x: Tensor) -> Tensor:
        """The integers that are deployed for `x`: those whose values `quantize` gives in eval mode."""
        training = self.training
        self.eval()
        try:
            # Grids past 2**24 need the codes of float64 values; the others those of the values as simulated.
            values = self.quantize(x.to(self.scheme.grid.compute_dtype(x.dtype)))
        finally:
            self.train(training)
        # The values are on the grid, so rounding to nearest recovers the code whatever the scheme's rounding.
        nearest = replace(self.scheme, rounding=Rounding.HALF_EVEN)
        return quantize(values, self.qparams(), nearest)

    @abstractmethod
    def qparams(self) -> QParams:
        """The scale and zero point that are deployed, detached; an error if the quantizer is not calibrated."""

    @abstractmethod
    def _initialize(self, observed: QParams) -> None:
        """Set parameters and buffers in place; called without gradients."""

    @abstractmethod
    def _fake_quantize(self, x: Tensor) -> Tensor:
        """The forward pass of a calibrated quantizer."""

    def _require_calibrated(self, asked: str) -> None:
        if not self._calibrated:
            raise NotCalibratedError(asked, "its scale was never measured", "calibrate, or load a calibrated state")

    def extra_repr(self) -> str:
        return f"{self.name!r}, {self.scheme}, {self.role}{'' if self._calibrated else ', not calibrated'}"

    def _unset(self) -> Tensor:
        """A tensor of the scale's shape that says "not measured yet"."""
        return torch.full(self.scale_shape, torch.nan)


def _without_slope_at(zeros: Tensor, gradient: Tensor) -> Tensor:
    """The gradient, with 0 where it is not finite and the tensor is 0."""
    return torch.where(zeros, torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0), gradient)


def _if_calibrated(qparams: Callable[[Any], QParams]) -> Callable[[Any], QParams]:
    """`qparams` of a subclass, which would otherwise say that NaN is no scale, and not whose."""

    @wraps(qparams)
    def checked(self: Any) -> QParams:
        self._require_calibrated(f"the scale of {self.name!r}")
        return qparams(self)

    return checked


def _refresh_calibrated(quantizer: Any, *_: Any) -> None:
    """Update `calibrated` from the state, so that the forward pass need not look at numbers."""
    tensors = (*quantizer.parameters(recurse=False), *quantizer.buffers(recurse=False))
    quantizer._calibrated = all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point())
