"""`detent.prepare` and `detent.calibrate`: the way through graph, backends, recipes and algorithms."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from detent import cpus
from detent.adopting import FileNorms, FilePlacement, Known, as_in_file, as_offered, initialize, known_of_file
from detent.algorithms import (
    ALGORITHMS,
    align_addends,
    check,
    choose_ranges,
    choose_start,
    correct_mean_shift,
    observing_input_means,
    observing_sample_ranges,
    run_algorithm,
)
from detent.algorithms.batches import few
from detent.errors import CaptureError, DataError, FloatModelWarning, RecipeError
from detent.frontends.onnx import (
    MOST_BYTES,
    is_imported,
    refuse_codes,
    refuse_large_tensors,
    refuse_other_reals,
    source_of,
)
from detent.graph import (
    Captured,
    CustomTracer,
    FloatNames,
    Inputs,
    Plan,
    PreparedModel,
    QuantizedTensor,
    capture,
    eval_mode,
    flat,
    fold_batch_norms,
    insert,
    keeping_ranges,
    lift_functional_weights,
    modes_to_observe,
    observing,
    other_real,
    quantizers_of,
    ranges_of,
    split_conv_padding,
    split_sliced_parameters,
)
from detent.planning import Backend, ChooseActivations, dispatched, plan, quantize_inputs
from detent.recipes import Recipe, find
from detent.targets import BACKENDS

__all__ = ["calibrate", "measure_float_ranges", "prepare", "prepare_captured"]

_JUDGING_ROWS = 32


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
    own_operations: Sequence[type[nn.Module] | Callable[..., Any]] = (),
    tracer: CustomTracer | fx.Tracer | None = None,
    choose_activations: ChooseActivations | None = None,
    cpu: str | None = None,
    max_tensor_bytes: int = MOST_BYTES,
    inplace: bool = False,
) -> PreparedModel:
    """A trainable copy of `model` with quantizers where `backend` has them and as `recipe` asks for.

    The result is an ordinary module; `result.plan` says what was quantized and what was not (nothing, and a
    `FloatModelWarning`, where the backend has no rule for anything the model does). It must be calibrated
    before it runs; a model from an ONNX file that has Q and DQ starts from the file's scales where the backend has
    their schemes. Engines compute the same integers from it on every kind of CPU, unless `cpu` (or the recipe) names
    the one kind that it will run on: "vnni" keeps 8-bit weights whole. `choose_activations(graph_module, nodes)` gives
    the nodes whose tensors are quantized in place of `nodes`, those that the backend's rules choose. A model
    from an ONNX file that would make a tensor of more than `max_tensor_bytes` is refused before it runs. With `inplace`
    there is no copy: the parts of `model` become those of the result, and an error leaves it half done. The other
    arguments are those of `detent.graph.capture`.
    """
    target = BACKENDS[backend] if isinstance(backend, str) else backend
    if own_operations:
        target = replace(target, rules={**target.rules, **quantize_inputs("opaque")})
    request = _for_cpu(find(recipe), cpu)
    for algorithm in request.algorithms:
        check(algorithm.name, algorithm.options)
    if is_imported(model):
        refuse_other_reals(model)
        refuse_codes(model)
        if isinstance(model, fx.GraphModule):
            refuse_large_tensors(model, example_inputs, example_kwargs, most=max_tensor_bytes)
    else:
        _refuse_other_reals(model)
    captured = capture(
        model,
        example_inputs,
        example_kwargs=example_kwargs,
        leaf_modules=leaf_modules,
        skip_methods=skip_methods,
        concrete_args=concrete_args,
        modes=modes,
        own_operations=own_operations,
        tracer=tracer,
        inplace=inplace,
    )
    example = Inputs(tuple(example_inputs), dict(example_kwargs or {}))
    return prepare_captured(captured, example, backend=target, recipe=request, choose_activations=choose_activations)


def prepare_captured(
    captured: Captured,
    example: Inputs,
    *,
    backend: Backend,
    recipe: Recipe,
    choose_activations: ChooseActivations | None = None,
) -> PreparedModel:
    """What was captured with the inputs `example`, with quantizers inserted; its modules become the result's."""
    # A model from a file has a module for each weight already, under the names that lead back into the file.
    is_file = is_imported(captured.module)
    split = {} if is_file else split_sliced_parameters(captured)
    transposed = set() if is_file else lift_functional_weights(captured)
    split_conv_padding(captured)
    modules = dict(captured.module.named_modules())
    decided, known, merges = _decide(captured, backend, recipe, choose_activations)
    insert(captured, decided)
    initialize(captured.module, known)
    prepared = PreparedModel(
        captured.module,
        plan=decided,
        backend=backend,
        recipe=recipe,
        example=example,
        float_names=FloatNames.of(captured.module, captured.float_tensors, merges, modules, transposed, split),
    )
    if not decided.quantized:
        text = f"{decided.backend} has no integers for anything in this model: all of it stays float (print its plan)"
        warnings.warn(text, FloatModelWarning, stacklevel=3)
    return prepared


def _decide(
    captured: Captured, target: Backend, request: Recipe, choose: ChooseActivations | None
) -> tuple[Plan, Known, dict[str, str]]:
    """The plan, the scales that a file with Q and DQ has for it, and which batch norms were merged into what."""
    strategy = target.batch_norm if request.batch_norm.strategy is None else request.batch_norm.strategy
    model = captured.module
    source = source_of(model) if is_imported(model) else None
    if source is None or not source.encodings:
        merges = fold_batch_norms(captured, strategy)
        decided = plan(captured, target, request, choose=choose)
        return replace(decided, ops=dispatched(captured, target, request, decided)), {}, merges
    norms = FileNorms.of(captured, source, target)
    merges = fold_batch_norms(captured, strategy, norms.apart)
    # Where a file says which tensors are float, the target does not leave any out before.
    decided = plan(captured, replace(target, float_outputs=()), request, choose=choose)
    graphs = list(captured.regions[""].graphs.values())
    source = norms.seen_from(source, {node.name for graph in graphs for node in graph.nodes})
    known = known_of_file(source, decided, _modules_by_node(graphs), norms.factors if strategy != -1 else {})
    placement = FilePlacement(source, graphs, dict(model.named_modules()), request)
    decided, known = as_offered(decided, known, target)
    decided = as_in_file(decided, known, placement, target)
    return replace(decided, ops=dispatched(captured, target, request, decided)), known, merges


def _for_cpu(recipe: Recipe, cpu: str | None) -> Recipe:
    """The recipe, for that kind of CPU if one is named."""
    return recipe if cpu is None else recipe.model_copy(update={"cpu": cpus.find(cpu).name})


def _refuse_other_reals(model: Any) -> None:
    found = other_real(model) if isinstance(model, nn.Module) else None
    if found is not None:
        raise CaptureError(
            "prepare a model",
            f"{found}, and quantizers compute in float32",
            "give model.float() and inputs in float32; train it in half precision with torch.autocast",
        )


def _modules_by_node(graphs: Iterable[fx.Graph]) -> dict[str, str]:
    return {node.name: str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_module"}


def calibrate(prepared: PreparedModel, batches: Iterable[Any]) -> None:
    """Set every scale from `batches`: tensors, tuples of inputs (labels behind them are ignored), or dicts.

    The model is put in eval mode for it and back. Activations are never kept. With the recipe's
    `calibration.inputs` "quantized", the batches are run a second time with the first scales in force. Ranges of few
    bits that are trained start where the outputs of the first batches are nearest to the float ones. Where scales are
    powers of two, no addend is left finer than its sum (`detent.algorithms.align_addends`). With the recipe's
    `calibration.correct_biases`, biases make up for the mean errors of weights; with `calibration.choose_ranges`,
    activations are clipped where a few samples reach far, if that brings the outputs nearer to the float ones. The
    recipe's algorithms run before or after, whichever each of them needs; `prepared.algorithm_notes` has their reports.
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
        samples = stack.enter_context(observing_sample_ranges(prepared)) if recipe.calibration.choose_ranges else []
        judges = _observe(prepared, batches, limit, again=again)
    choose_start(prepared, judges)
    prepared.plan = _with_widths(prepared)
    with keeping_ranges(prepared):
        align_addends(prepared)
        correct_mean_shift(prepared, means)
        choose_ranges(prepared, samples, judges)
        _run_algorithms(prepared, batches, "after calibration")


def _with_widths(prepared: PreparedModel) -> Plan:
    """The plan, with how much wider the steps of weights became so that no pair of them saturates on any CPU."""
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
            f"calibrate with a {type(batches).__name__}", "it holds no batches", "give a list, or a loader, of batches"
        )


def _run_algorithms(prepared: PreparedModel, batches: Iterable[Any], phase: str) -> None:
    for algorithm in prepared.recipe.algorithms:
        if ALGORITHMS[algorithm.name].phase == phase:
            limited = islice(batches, prepared.recipe.calibration.batches)
            run_algorithm(algorithm.name, prepared, limited, algorithm.options)


def _observe(prepared: PreparedModel, batches: Iterable[Any], limit: int | None, *, again: bool) -> list[Any]:
    """Set the scales; the first batches, of few rows, which the start of trained ranges is chosen by."""
    judges: list[Any] = []
    with eval_mode(prepared), torch.no_grad():
        for quantized in (False, True) if again else (False,):
            judges = []
            with observing(prepared, quantized=quantized):
                for batch in islice(batches, limit):
                    _run(prepared, batch)
                    judges = few([*judges, batch], _JUDGING_ROWS)
    return judges


def measure_float_ranges(prepared: PreparedModel, batches: Iterable[Any]) -> None:
    """Measure the ranges of tensors that stay float, and nothing else: training has moved them, and retargeting needs
    them."""
    if ranges_of(prepared):
        with eval_mode(prepared), torch.no_grad(), observing(prepared, only_float=True):
            for batch in batches:
                _run(prepared, batch)


def _run(prepared: PreparedModel, batch: Any) -> None:
    if any(isinstance(part, np.ndarray) for part in flat(batch)):
        raise DataError("calibrate with a batch of numpy arrays", "a torch model takes tensors", "use torch.from_numpy")
    if isinstance(batch, Mapping):
        _require_names(prepared, batch)
    for mode in modes_to_observe(prepared):
        if isinstance(batch, Mapping):
            prepared(**{**mode, **batch})
        elif isinstance(batch, (list, tuple)):
            prepared(*batch[: prepared.input_count], **mode)
        else:
            prepared(batch, **mode)


def _require_names(prepared: PreparedModel, batch: Mapping[str, Any]) -> None:
    if prepared.untraced is not None:
        return  # its own forward says what it takes
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
        "name the arrays as its inputs",
    )
