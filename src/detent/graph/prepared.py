"""PreparedModel: the result of `detent.prepare`, a trainable module that knows how it is quantized."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from detent.errors import RunError
from detent.graph.capture.running import Inputs, flat, record, run
from detent.graph.corrections import load_corrections, save_corrections
from detent.graph.derived_bias import DerivedBias
from detent.graph.eval_mode import eval_mode
from detent.graph.float_ranges import HOLDER
from detent.graph.names import FloatNames, translate_float_state
from detent.graph.plan import Plan
from detent.graph.region import ACTIVATION_QUANTIZERS, Region, readable_weights
from detent.numerics import QParams, Scheme
from detent.quantizers import PASS_THROUGH, Mode, Quantizer, in_modes

if TYPE_CHECKING:
    from detent.algorithms import Report
    from detent.planning import Backend
    from detent.recipes import Recipe

__all__ = ["RESERVED", "CarriedScales", "PreparedModel", "call_of"]


@dataclass(frozen=True)
class CarriedScales:
    """The state of a retargeted model: what was `known` about the original, what it `adopted` of that, and the checksum
    of its weights then."""

    known: Mapping[str, tuple[Scheme, QParams]]
    adopted: Mapping[str, tuple[Scheme, QParams]]
    weights: int


class PreparedModel(Region):
    """A trainable module that computes as `plan` says; train it, save it and move it like any other.

    It has the modules, parameters and buffers of the float model under their names, and quantizers beside them. Its
    state dict is its own; `load_state_dict` also takes a checkpoint of the float model, and `detent.float_state_dict`
    gives one. If the code of the model itself could not be traced (the plan says so), `graphs` is empty, and calls, and
    attributes that are not found here, go to that code.
    """

    plan: Plan
    """For every tensor how it is quantized, or why it stays float. `print` shows it as a table."""
    backend: Backend
    """What it will be deployed for."""
    recipe: Recipe
    """What was asked for, with every default filled in."""
    example: Inputs
    """The example inputs that it was prepared with: `args` and `kwargs` of forward."""
    algorithm_notes: list[Report]
    """What each algorithm that has run on it did, in order."""
    float_names: FloatNames
    """Where the tensors of the float model are now."""
    float_originals: dict[Tensor, Tensor]
    """The values of parameters that algorithms have changed, as they were when the model was prepared."""
    corrected: dict[Tensor, tuple[Tensor, Tensor]]
    """What calibrating has corrected (biases, and weights whose codes it chose within the bound on pairs): each before
    and after."""
    carried: CarriedScales | None
    """If the model was retargeted: the scales it came with."""
    untraced: nn.Module | None
    """The model's own module, where its code could not be traced."""

    def __init__(
        self,
        captured: nn.Module,
        *,
        plan: Plan,
        backend: Backend,
        recipe: Recipe,
        example: Inputs,
        float_names: FloatNames,
    ):
        """From a captured module that has its quantizers in place: a Region, or a module that could not be traced."""
        traced = isinstance(captured, Region)
        if isinstance(captured, Region):
            super().__init__(captured, captured.graphs)
        else:
            super().__init__(nn.Module(), {})
            # The same dictionaries, not copies, so that the model's code sees what is moved, loaded or replaced here.
            for parts in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
                self.__dict__[parts] = vars(captured)[parts]
            self.training = captured.training
        object.__setattr__(self, "untraced", None if traced else captured)  # beside the tree, whose parts it has
        self.plan, self.backend, self.recipe, self.example = plan, backend, recipe, example
        self.float_names = float_names
        self.algorithm_notes = []
        self.float_originals = {}
        self.corrected = {}
        self.carried = None
        self.register_state_dict_post_hook(save_corrections)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(translate_float_state)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(load_corrections)  # type: ignore[no-untyped-call]

    @property
    def input_count(self) -> int:
        """How many arguments forward takes by position; what follows them in a batch (labels) is ignored."""
        return len(self.example.args)

    def take_example(self, *args: Any, **kwargs: Any) -> None:
        """Replace the example inputs: from now on, the sizes in the graphs and in deployed files are those of the new
        ones."""
        called: dict[Region, Inputs] = {}

        def remember(region: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            assert isinstance(region, Region)
            called.setdefault(region, Inputs(given, {key: value for key, value in named.items() if key != "mode"}))

        regions = [module for module in self.modules() if isinstance(module, Region)]
        passing: dict[Quantizer | DerivedBias, Mode] = {
            module: PASS_THROUGH for module in self.modules() if isinstance(module, (Quantizer, DerivedBias))
        }
        with ExitStack() as stack:
            stack.enter_context(eval_mode(self))
            stack.enter_context(in_modes(passing))
            for region in regions:
                stack.callback(region.register_forward_pre_hook(remember, with_kwargs=True).remove)
            run(self, Inputs(args, kwargs))
            for region, inputs in called.items():
                for runner in region.runners.values():
                    record(runner, runner, inputs)
        self.example = Inputs(args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.untraced is None:
            return super().forward(*args, **kwargs)
        self.untraced.training = self.training
        return self.untraced(*args, **kwargs)

    def __getstate__(self) -> Any:
        raise RunError(
            "pickle a prepared model, or torch.save it",
            "its weights are parametrized, and torch does not pickle those",
            "keep its state_dict(), or use detent.training.checkpoint.save, and load it into the model prepared anew",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> PreparedModel:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        with readable_weights(self):
            copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        for own, made in zip(self.modules(), copied.modules(), strict=True):
            if isinstance(own, Quantizer) and isinstance(made, Quantizer):
                made.mode = own.mode
        return copied

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            untraced = vars(self).get("untraced")
            if untraced is None:
                raise
            return getattr(untraced, name)


RESERVED = {*dir(PreparedModel), *PreparedModel.__annotations__, ACTIVATION_QUANTIZERS, HOLDER} - {*dir(nn.Module)}
"""Attributes that a prepared model has beside its own parts, which therefore may not have these names."""


def call_of(prepared: PreparedModel, batch: Any) -> Inputs:
    """The call of forward that a batch stands for: a tensor, a tuple of inputs (labels behind them are left out), a
    dict by the names of arguments, a dict that is the only argument itself, or `Inputs`. Keyword
    arguments of the example that are no tensors, such as flags, are passed again."""
    if isinstance(batch, Inputs):
        return batch
    example = prepared.example
    flags = {k: v for k, v in example.kwargs.items() if not any(isinstance(one, Tensor) for one in flat(v))}
    if not isinstance(batch, Mapping):
        parts = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
        return Inputs(parts[: prepared.input_count], flags)
    only = example.args[0] if len(example.args) == 1 else None
    if isinstance(only, Mapping) and only.keys() <= batch.keys():
        return Inputs((batch,), flags)
    return Inputs((), {**flags, **batch})
