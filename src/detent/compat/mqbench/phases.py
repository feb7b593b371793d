"""MQBench's switches as phases of one model: observing, quantized, float."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

from torch import nn

from detent.algorithms.floating import only_quantizing
from detent.errors import NotCalibratedError, RecipeError
from detent.graph import PreparedModel, observing, quantizers_of
from detent.planning import Backend
from detent.preparing import prepare
from detent.recipes import Recipe

__all__ = [
    "PlatformModel",
    "disable_all",
    "enable_calibration",
    "enable_calibration_quantization",
    "enable_calibration_woquantization",
    "enable_quantization",
]

Phase = Literal["quantized", "observing", "observing quantized", "float"]
_ROLES = {
    "fake_quant": ("weight", "bias", "activation"),
    "act_fake_quant": ("activation",),
    "weight_fake_quant": ("weight", "bias"),
}


class PlatformModel(nn.Module):
    """What `prepare_by_platform` gives. `prepared` is the core's model, there from the first call on."""

    def __init__(
        self,
        model: nn.Module,
        *,
        backend: Backend,
        recipe: Recipe,
        leaf_modules: Sequence[Any] = (),
        concrete_args: Mapping[str, Any] | None = None,
        finish: Callable[[nn.Module], None] | None = None,
    ):
        super().__init__()
        self.backend, self.recipe = backend, recipe
        self.model = model
        self._options: dict[str, Any] = {"leaf_modules": leaf_modules, "concrete_args": concrete_args}
        self._finish = finish
        self._phase: Phase = "quantized"
        self._roles = _ROLES["fake_quant"]
        self._open = ExitStack()

    @property
    def prepared(self) -> PreparedModel:
        if not isinstance(self.model, PreparedModel):
            raise NotCalibratedError("the prepared model", "it was never called", "run a calibration batch through it")
        return self.model

    def enter(self, phase: Phase, quantizer_type: str = "fake_quant") -> None:
        """End the phase before, which sets the scales it observed, and begin another."""
        if quantizer_type not in _ROLES:
            raise RecipeError(f"quantizer_type {quantizer_type!r}", f"allowed are {', '.join(_ROLES)}", "use one")
        before, self._open = self._open, ExitStack()
        before.close()
        self._phase, self._roles = phase, _ROLES[quantizer_type]
        if isinstance(self.model, PreparedModel):
            self._begin(self.model)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.model, PreparedModel):
            training = self.training
            prepared = prepare(
                self.model, args, backend=self.backend, recipe=self.recipe, example_kwargs=kwargs, **self._options
            )
            self.model = prepared.train(training)
            if self._finish is not None:
                self._finish(prepared)
            self._begin(prepared)
        return self.model(*args, **kwargs)

    def _begin(self, prepared: PreparedModel) -> None:
        if self._phase == "float":
            self._open.enter_context(only_quantizing(prepared, ()))
        elif self._phase != "quantized":
            self._open.enter_context(_keeping(prepared, self._roles))
            self._open.enter_context(observing(prepared, quantized=self._phase == "observing quantized"))


@contextmanager
def _keeping(prepared: PreparedModel, roles: Sequence[str]) -> Iterator[None]:
    """Afterwards the quantizers of other roles have the scales they had before, if they had some."""
    others = [q for q in quantizers_of(prepared) if q.role not in roles and q.calibrated]
    states = [{name: value.clone() for name, value in q.state_dict().items()} for q in others]
    yield
    for quantizer, state in zip(others, states, strict=True):
        quantizer.load_state_dict(state)


def enable_calibration(model: PlatformModel) -> None:
    """Batches from here on are observed, in float."""
    model.enter("observing")


def enable_calibration_woquantization(model: PlatformModel, quantizer_type: str = "fake_quant") -> None:
    """The same for some quantizers: "act_fake_quant" or "weight_fake_quant"; the others keep their scales."""
    model.enter("observing", quantizer_type)


def enable_calibration_quantization(model: PlatformModel, quantizer_type: str = "fake_quant") -> None:
    """Batches are observed while everything is quantized with the scales it has."""
    model.enter("observing quantized", quantizer_type)


def enable_quantization(model: PlatformModel) -> None:
    """Sets the scales from what was observed; from here on everything is quantized."""
    model.enter("quantized")


def disable_all(model: PlatformModel) -> None:
    """From here on the model computes in float."""
    model.enter("float")
