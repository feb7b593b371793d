"""`detent.prepare` and `detent.calibrate`: the way through graph, backends and recipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    modes: Mapping[str, Mapping[str, Any]] | None = None,
    inplace: bool = False,
) -> Any:
    """A trainable copy of `model` with quantizers where `backend` has them and as `recipe` asks for.

    The result is an ordinary module; `result.plan` says what was quantized and what was not. It must be calibrated
    before it runs. The other arguments are those of `detent.graph.capture`.
    """
    target = BACKENDS[backend] if isinstance(backend, str) else backend
    request = find(recipe)
    captured = capture(
        model,
        example_inputs,
        example_kwargs=example_kwargs,
        leaf_modules=leaf_modules,
        skip_methods=skip_methods,
        modes=modes,
        inplace=inplace,
    )
    strategy = target.batch_norm if request.batch_norm.strategy is None else request.batch_norm.strategy
    root = captured.module
    float_tensors = dict(root.state_dict(keep_vars=True))
    norms = dict(root.named_modules())
    merges = fold_batch_norms(captured, strategy)
    decided = plan(captured, target, request)
    insert(captured, decided)
    prepared: Any = root
    prepared.plan, prepared.backend, prepared.recipe = decided, target, request
    remember_float_names(prepared, float_tensors, merges, norms)
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
    training = prepared.training
    prepared.eval()
    try:
        with torch.no_grad():
            for quantized in (False, True) if again else (False,):
                with observing(prepared, quantized=quantized):
                    for index, batch in enumerate(batches):
                        if limit is not None and index >= limit:
                            break
                        _run(prepared, batch)
    finally:
        prepared.train(training)


def _run(prepared: Any, batch: Any) -> None:
    if isinstance(batch, Mapping):
        prepared(**batch)
    elif isinstance(batch, (list, tuple)):
        prepared(*batch[: _inputs(prepared, len(batch))])
    else:
        prepared(batch)


def _inputs(prepared: Any, given: int) -> int:
    """How many of the members of a batch are inputs; a model that is an island takes what it is given."""
    runners = getattr(prepared, "runners", None)
    if not runners:
        return given
    graph = next(iter(runners.values())).graph
    return sum(node.op == "placeholder" for node in graph.nodes)
