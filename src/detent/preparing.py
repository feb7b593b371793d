"""`detent.prepare` and `detent.calibrate`: the way through graph, backends and recipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import nn

from detent.backends import BACKENDS, Backend, plan
from detent.errors import RecipeError
from detent.graph import capture, fold_batch_norms, insert, observing, remember_float_names
from detent.recipes import Recipe, find

__all__ = ["calibrate", "prepare"]


def prepare(
    model: nn.Module,
    example_inputs: Sequence[Any],
    *,
    backend: str | Backend,
    recipe: str | Recipe = "ptq",
    example_kwargs: Mapping[str, Any] | None = None,
    leaf_modules: Sequence[str | type[nn.Module]] = (),
    skip_methods: Sequence[str] = (),
    concrete_args: Mapping[str, Any] | None = None,
    modes: Mapping[str, Mapping[str, Any]] | None = None,
    inplace: bool = False,
) -> Any:
    """A trainable copy of `model` with quantizers where `backend` has them and as `recipe` asks for.

    The result is an ordinary module; `result.plan` says what was quantized and what was not. It must be calibrated
    before it runs. The other arguments are those of `detent.graph.capture`.
    """
    target = BACKENDS[backend] if isinstance(backend, str) else backend
    request = find(recipe)
    options: dict[str, Any] = {
        "example_kwargs": example_kwargs,
        "leaf_modules": leaf_modules,
        "skip_methods": skip_methods,
        "concrete_args": concrete_args,
        "modes": modes,
    }
    if inplace:
        # A refusal must come before the model is touched: try it all on a copy.
        prepare(model, example_inputs, backend=target, recipe=request, **options)
    captured = capture(model, example_inputs, inplace=inplace, **options)
    strategy = target.batch_norm if request.batch_norm.strategy is None else request.batch_norm.strategy
    prepared: Any = captured.module
    modules = dict(prepared.named_modules())
    merges = fold_batch_norms(captured, strategy)
    decided = plan(captured, target, request)
    insert(captured, decided)
    prepared.plan, prepared.backend, prepared.recipe = decided, target, request
    prepared.input_count = len(example_inputs)
    remember_float_names(prepared, captured.float_tensors, merges, modules)
    return prepared


def calibrate(prepared: Any, batches: Iterable[Any]) -> None:
    """Set every scale from `batches`: tensors, tuples of inputs (labels behind them are ignored), or dicts.

    The model is put in eval mode for it and back. Activations are never kept. With the recipe's
    `calibration.inputs` "quantized", the batches are run a second time with the first scales in force.
    """
    recipe: Recipe = prepared.recipe
    limit = recipe.calibration.batches
    again = recipe.calibration.inputs == "quantized"
    if again and iter(batches) is batches:
        raise RecipeError(
            "calibration.inputs 'quantized' with an iterator", "the batches are needed twice", "give a list or a loader"
        )
    flags = {module: module.training for module in prepared.modules()}
    prepared.eval()
    try:
        with torch.no_grad():
            for quantized in (False, True) if again else (False,):
                with observing(prepared, quantized=quantized):
                    for batch in islice(batches, limit):
                        _run(prepared, batch)
    finally:
        for module, training in flags.items():
            module.training = training


def _run(prepared: Any, batch: Any) -> None:
    if isinstance(batch, Mapping):
        prepared(**batch)
    elif isinstance(batch, (list, tuple)):
        prepared(*batch[: prepared.input_count])
    else:
        prepared(batch)
