"""MQBench's switches as phases of one model: observing, quantized, float."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from detent.algorithms.common.floating import only_quantizing
from detent.calibrating import observing
from detent.compat.mqbench.example_inputs import find_example_inputs
from detent.errors import NotCalibratedError, NotQuantizedWarning, RecipeError
from detent.graph import Inputs, PreparedModel, QuantizedTensor, quantizers_of, warning_if_trained
from detent.quantizers import Quantizer
from detent.training.synced_norms import batch_norms_of

__all__ = [
    "PlatformModel",
    "disable_all",
    "enable_calibration",
    "enable_calibration_quantization",
    "enable_calibration_woquantization",
    "enable_quantization",
]

Phase = Literal["quantized", "observing", "observing quantized", "float"]
_NOT_TRACED = (
    "the sizes of its inputs are not known before its first batch",
    "give prepare_by_platform example_inputs=(batch,), or run a batch through it before",
)
_ROLES = {
    "fake_quant": ("weight", "bias", "activation"),
    "act_fake_quant": ("activation",),
    "weight_fake_quant": ("weight", "bias"),
}


class PlatformModel(nn.Module):
    """What `prepare_by_platform` gives: `prepared` is the core's model, whose parameters it has from the start.

    It is traced with `example_inputs` or, without them, with tensors of sizes that the model takes; its first batch
    then gives the sizes that are deployed. A model whose sizes are not found out is traced by its first batch, and has
    no parameters to hand to an optimizer before. One that is called uncalibrated is calibrated by that batch.
    """

    def __init__(
        self,
        model: nn.Module,
        trace: Callable[[nn.Module, Inputs], PreparedModel],
        *,
        example_inputs: Sequence[Any] | None = None,
        concrete_args: Collection[str] = (),
    ):
        super().__init__()
        self.training = model.training
        self.model = model
        self._trace = trace
        self._phase: Phase = "quantized"
        self._roles = _ROLES["fake_quant"]
        self._open = ExitStack()
        self._unmeasured: list[Quantizer] = []
        self._guessed = example_inputs is None
        found = find_example_inputs(model, concrete_args) if example_inputs is None else tuple(example_inputs)
        if found is not None:
            self._prepare(found, {})

    @property
    def prepared(self) -> PreparedModel:
        if not isinstance(self.model, PreparedModel):
            raise NotCalibratedError("the prepared model", *_NOT_TRACED)
        return self.model

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        if not isinstance(self.model, PreparedModel):
            raise NotCalibratedError("the parameters of a prepared model", *_NOT_TRACED)
        return super().named_parameters(*args, **kwargs)

    def enter(self, phase: Phase, quantizer_type: str = "fake_quant") -> None:
        """End the phase before, which sets the scales it observed, and begin another."""
        if quantizer_type not in _ROLES:
            raise RecipeError(f"quantizer_type {quantizer_type!r}", f"allowed are {', '.join(_ROLES)}", "use one")
        before, self._open = self._open, ExitStack()
        before.close()
        self._phase, self._roles = phase, _ROLES[quantizer_type]
        if isinstance(self.model, PreparedModel):
            _keep_schemes(self.model)
            self._begin(self.model)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.model, PreparedModel):
            self._prepare(args, kwargs)
        elif self._guessed:
            self.model.take_example(*args, **kwargs)
        self._guessed = False
        if self._phase == "quantized" and self._unmeasured and not any(one.calibrated for one in self._unmeasured):
            self._calibrate_by(args, kwargs)
        return self.model(*args, **kwargs)

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        prepared = self._trace(self.model, Inputs(args, kwargs))
        self.model = prepared
        # Others, as DoReFa's with the paper's bound, have their range without any data.
        self._unmeasured = [one for one in quantizers_of(prepared) if not one.calibrated]
        self._begin(prepared)

    def _calibrate_by(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        text = "nobody calibrated the model: its scales are those of its first batch. Call enable_calibration(model), "
        warnings.warn(text + "run some batches, then enable_quantization(model)", NotQuantizedWarning, stacklevel=4)
        norms = batch_norms_of(self.prepared)
        before = [{name: value.clone() for name, value in one.named_buffers()} for one in norms]
        # In training as training will be: fresh running statistics would leave ranges that batches are cut off by.
        with torch.no_grad(), observing(self.prepared):
            self.prepared(*args, **kwargs)
        for one, buffers in zip(norms, before, strict=True):
            for name, value in buffers.items():
                one.get_buffer(name).copy_(value)  # the batch counts once, when it is trained on
        _keep_schemes(self.prepared)

    def _begin(self, prepared: PreparedModel) -> None:
        if self._phase == "float":
            self._open.enter_context(only_quantizing(prepared, ()))
            self._open.enter_context(warning_if_trained(prepared, "disable_all has switched quantization off"))
        elif self._phase != "quantized":
            self._open.enter_context(_keeping(prepared, self._roles))
            self._open.enter_context(observing(prepared, quantized=self._phase == "observing quantized"))


def _keep_schemes(prepared: PreparedModel) -> None:
    """Note in the plan where a user's fake quantizer has switched to unsigned integers (`ada_sign`)."""
    schemes = {one.name: one.scheme for one in quantizers_of(prepared)}
    entries = tuple(
        replace(entry, scheme=schemes.get(entry.shares or entry.tensor, entry.scheme))
        if isinstance(entry, QuantizedTensor) and entry.role == "activation"
        else entry
        for entry in prepared.plan.entries
    )
    prepared.plan = replace(prepared.plan, entries=entries)


@contextmanager
def _keeping(prepared: PreparedModel, roles: Sequence[str]) -> Iterator[None]:
    """Afterward the quantizers of other roles have the scales they had before, if they had some."""
    others = [q for q in quantizers_of(prepared) if q.role not in roles and q.calibrated]
    states = [{name: value.clone() for name, value in q.state_dict().items()} for q in others]
    yield
    for quantizer, state in zip(others, states, strict=True):
        quantizer.load_state_dict(state)


def enable_calibration(model: nn.Module) -> None:
    """Batches from here on are observed, in float."""
    _enter(model, "observing")


def enable_calibration_woquantization(model: nn.Module, quantizer_type: str = "fake_quant") -> None:
    """The same for some quantizers: "act_fake_quant" or "weight_fake_quant"; the others keep their scales."""
    _enter(model, "observing", quantizer_type)


def enable_calibration_quantization(model: nn.Module, quantizer_type: str = "fake_quant") -> None:
    """Batches are observed while everything is quantized with the scales it has."""
    _enter(model, "observing quantized", quantizer_type)


def enable_quantization(model: nn.Module) -> None:
    """Sets the scales from what was observed; from here on everything is quantized."""
    _enter(model, "quantized")


def disable_all(model: nn.Module) -> None:
    """Let the model compute in float."""
    _enter(model, "float")


def _enter(model: nn.Module, phase: Phase, quantizer_type: str = "fake_quant") -> None:
    """Also where another module holds the prepared one, as `DistributedDataParallel` does."""
    found = [module for module in model.modules() if isinstance(module, PlatformModel)]
    if not found:
        raise RecipeError(f"switch {type(model).__name__}", "no part of it was prepared", "prepare_by_platform first")
    for one in found:
        one.enter(phase, quantizer_type)
