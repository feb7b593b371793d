"""`detent.calibrate`, and `detent.observing` for your own loop: scales from batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import nn

from detent import graph
from detent.algorithms import (
    ALGORITHMS,
    align_addends,
    choose_ranges,
    choose_start,
    correct_mean_shift,
    observing_input_means,
    observing_pair_inputs,
    observing_sample_ranges,
    round_pairs,
    run_algorithm,
)
from detent.algorithms.calibration.start import JUDGING_ROWS
from detent.algorithms.common.batches import few
from detent.errors import DataError, RangeError, RecipeError
from detent.graph import (
    Inputs,
    Plan,
    PreparedModel,
    QuantizedTensor,
    call_of,
    eval_mode,
    flat,
    keeping_ranges,
    modes_to_observe,
    quantizers_of,
    ranges_of,
)
from detent.observers.ranks import over_ranks
from detent.progress import count_of, progress

__all__ = ["calibrate", "measure_float_ranges", "observing"]


def calibrate(prepared: PreparedModel, batches: Iterable[Any]) -> None:
    """Set every scale from `batches`: tensors, tuples of inputs (labels after them are ignored), or dicts.

    The model is in eval mode meanwhile. Activations are never kept. With the recipe's `calibration.inputs` "quantized",
    the batches are run a second time with the first scales in force. Ranges of few bits that are trained start where
    the outputs of the first batches are nearest to the float ones. Where scales are powers of two, no addend is left
    finer than its sum (`detent.algorithms.align_addends`). With the recipe's `calibration.correct_biases`, biases make
    up for the mean errors of weights, and where steps became wider so that no pair of products saturates, codes are
    chosen that make up for it (`detent.algorithms.round_pairs`); with `calibration.choose_ranges`, activations are
    clipped where a few samples reach far, if that brings the outputs nearer to the float ones. The recipe's algorithms
    run before or after, whichever each of them needs; `prepared.algorithm_notes` has their reports.
    """
    _require_batches(prepared, batches)
    recipe = prepared.recipe
    limit = recipe.calibration.batches
    again, corrects = recipe.calibration.inputs == "quantized", recipe.calibration.correct_biases
    for reason in (["calibration.inputs 'quantized'"] if again else []) + [a.name for a in recipe.algorithms]:
        if iter(batches) is batches:
            raise RecipeError(f"{reason} with an iterator", "the batches are needed twice", "give a list or a loader")
    _run_algorithms(prepared, batches, "before calibration")
    with ExitStack() as stack:
        means = stack.enter_context(observing_input_means(prepared)) if corrects else []
        chooses = corrects and not recipe.algorithms  # which may choose codes themselves
        in_pairs = stack.enter_context(observing_pair_inputs(prepared)) if chooses else []
        samples = stack.enter_context(observing_sample_ranges(prepared)) if recipe.calibration.choose_ranges else []
        judges = _observe(prepared, batches, limit, again=again)
    choose_start(prepared, judges)
    prepared.plan = _with_widths(prepared)
    with keeping_ranges(prepared):
        align_addends(prepared)
        floats = round_pairs(prepared, in_pairs, {one.layer.module for one in means})
        correct_mean_shift(prepared, means, floats)
        choose_ranges(prepared, samples, judges)
        _run_algorithms(prepared, batches, "after calibration")


def _with_widths(prepared: PreparedModel) -> Plan:
    """The plan, whose entries say how much wider the steps of weights are so that no pair saturates on any CPU."""
    widths = {quantizer.name: quantizer.widening for quantizer in quantizers_of(prepared)}
    entries = (
        replace(entry, widened=widths.get(entry.tensor)) if isinstance(entry, QuantizedTensor) else entry
        for entry in prepared.plan.entries
    )
    return replace(prepared.plan, entries=tuple(entries))


def _require_batches(prepared: nn.Module, batches: Any) -> None:
    if not isinstance(prepared, PreparedModel):
        raise DataError("calibrate a model", "it was not prepared", "calibrate what detent.prepare gives")
    gone_through = hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")
    if isinstance(batches, (torch.Tensor, np.ndarray, Mapping, str)) or not gone_through:
        raise DataError(
            f"calibrate with a {type(batches).__name__}",
            "it contains no batches",
            "give a list, or a loader, of batches",
        )


def _run_algorithms(prepared: PreparedModel, batches: Iterable[Any], phase: str) -> None:
    for algorithm in prepared.recipe.algorithms:
        if ALGORITHMS[algorithm.name].phase == phase:
            limited = islice(batches, prepared.recipe.calibration.batches)
            run_algorithm(algorithm.name, prepared, limited, algorithm.options)


def _observe(prepared: PreparedModel, batches: Iterable[Any], limit: int | None, *, again: bool) -> list[Any]:
    """Set the scales; returns the first few batches, by which the start of trained ranges is chosen."""
    judges: list[Any] = []
    with eval_mode(prepared), torch.no_grad():
        for quantized in (False, True) if again else (False,):
            judges = []
            waiting = _on_all_ranks(prepared, islice(batches, limit))
            title = "calibrating on quantized inputs" if quantized else "calibrating"
            with graph.observing(prepared, quantized=quantized), progress(title, count_of(batches, limit)) as bar:
                for batch in waiting:
                    _run(prepared, batch)
                    judges = few([*judges, batch], JUDGING_ROWS)
                    bar.advance()
    return judges


def _on_all_ranks(prepared: PreparedModel, batches: Iterator[Any]) -> Iterator[Any]:
    """The batches. If another rank has none, all are told: those that have some would wait for it."""
    first = list(islice(batches, 1))
    device = next((parameter.device for parameter in prepared.parameters()), None)
    fewest = int(over_ranks(torch.tensor(len(first), device=device), "min"))
    if fewest < len(first):
        raise RangeError("calibrate a model", "another process has no batch", "give every process at least one")
    return chain(first, batches)


def measure_float_ranges(prepared: PreparedModel, batches: Iterable[Any]) -> None:
    """Measure the ranges of tensors that stay float, and nothing else: training has moved them, and retargeting needs
    them."""
    if ranges_of(prepared):
        observed = graph.observing(prepared, only_float=True)
        with eval_mode(prepared), torch.no_grad(), observed, progress("observing", count_of(batches)) as bar:
            for batch in batches:
                _run(prepared, batch)
                bar.advance()


def _run(prepared: PreparedModel, batch: Any) -> None:
    if any(isinstance(part, np.ndarray) for part in flat(batch)):
        raise DataError("calibrate with a batch of numpy arrays", "a torch model takes tensors", "use torch.from_numpy")
    call = call_of(prepared, batch)
    if isinstance(batch, Mapping) and not call.args:
        _require_names(prepared, call.kwargs)
    left_out = [name for name in prepared.example.kwargs if name not in call.kwargs]
    if left_out and not isinstance(batch, graph.Inputs) and not (isinstance(batch, Mapping) and call.args):
        raise DataError(
            f"calibrate with a batch without {', '.join(map(repr, left_out))}",
            "the model was prepared with that",
            "give dicts by the names of all arguments",
        )
    for mode in modes_to_observe(prepared):
        prepared(*call.args, **{**mode, **call.kwargs})


def _require_names(prepared: PreparedModel, batch: Mapping[str, Any]) -> None:
    if prepared.untraced is not None:
        return  # its own forward raises the error
    for runner in prepared.runners.values():
        places = [node for node in runner.graph.nodes if node.op == "placeholder"]
        names = [str(node.target) for node in places]
        needed = {str(node.target) for node in places if not node.args}
        free = any(name.startswith("*") for name in names)
        if free or (needed <= set(batch) <= {*names, "mode"}):
            return
    raise DataError(
        f"calibrate with a batch of {', '.join(map(str, batch)) or 'nothing'}",
        f"the network takes {', '.join(names)}",
        "name the arrays after its inputs",
    )


@contextmanager
def observing(prepared: nn.Module, *, quantized: bool = False, only_float: bool = False) -> Iterator[None]:
    """Inside the block every batch is observed; at its end scales are set from what was seen.

    The model runs in float, or, with `quantized`, with the scales it has, so that later layers see what earlier
    ones do to their inputs. All scales are set or none: an error leaves the model as it was. Quantizers that no
    batch reached stay as they were. Ranges of few bits that are trained start where the outputs of the first batches
    are nearest to the float ones. The ranges of tensors that stay float are measured too, for retargeting; with
    `only_float` nothing else is, and the model runs with its scales, which is how to do so after training.
    """
    model = next((module for module in prepared.modules() if isinstance(module, PreparedModel)), None)
    judges: list[Inputs] = []
    with ExitStack() as stack:
        if model is not None and not only_float:
            stack.callback(model.register_forward_pre_hook(_remembering(judges), with_kwargs=True).remove)
        stack.enter_context(graph.observing(prepared, quantized=quantized, only_float=only_float))
        yield
    if model is not None and judges:
        choose_start(model, judges)


def _remembering(judges: list[Inputs]) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    """A forward pre-hook that appends the inputs of the first calls, of few rows together."""

    def remember(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        judges[:] = few([*judges, Inputs(args, kwargs)], JUDGING_ROWS)

    return remember
