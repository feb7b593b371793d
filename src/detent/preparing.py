"""`detent.prepare`: capture, plan, and insert quantizers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx, nn

from detent import cpus
from detent.algorithms import (
    check,
)
from detent.errors import CaptureError, FloatModelWarning
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
    FoldedBatchNorm,
    Inputs,
    Plan,
    PreparedModel,
    capture,
    drop_zero_terms,
    fold_batch_norms,
    fold_weights,
    insert,
    lift_functional_weights,
    other_real,
    split_conv_padding,
    split_sliced_parameters,
)
from detent.known_qparams import FileNorms, FilePlacement, Known, as_in_file, as_offered, initialize, known_of_file
from detent.planning import Backend, ChooseActivations, dispatched, plan, quantize_inputs
from detent.progress import progress
from detent.recipes import Recipe, find
from detent.targets import BACKENDS

__all__ = ["prepare", "prepare_captured", "with_batch_norms"]


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
    """A trainable copy of `model`, with quantizers where `backend` quantizes, as `recipe` requests.

    The result is an ordinary module; `result.plan` says what was quantized and what was not (nothing, and a
    `FloatModelWarning`, where the backend has no rule for anything the model does). It must be calibrated before it
    runs; a model from an ONNX file that has Q and DQ starts from the file's scales where the backend has their schemes.
    Engines compute the same integers from it on every kind of CPU, unless `cpu` (or the recipe) names the one kind that
    it will run on: "vnni" keeps 8-bit weights whole. `choose_activations(graph_module, nodes)` gives the nodes whose
    tensors are quantized in place of `nodes`, those that the backend's rules choose. A model from an ONNX file that
    would make a tensor of more than `max_tensor_bytes` is refused before it runs. With `inplace` there is no copy: the
    parts of `model` become those of the result, and an error leaves it half changed. The other arguments are those of
    `detent.graph.capture.capture`.
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
    with progress("preparing"):
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
    """A captured model with quantizers inserted; `example` are the inputs it was captured with, and its modules become
    the result's."""
    # A model from a file has a module for each weight already, under the names that lead back into the file.
    is_file = is_imported(captured.module)
    split = {} if is_file else split_sliced_parameters(captured)
    captured = captured if is_file else fold_weights(captured)
    transposed = set() if is_file else lift_functional_weights(captured)
    split_conv_padding(captured)
    if not is_file:
        drop_zero_terms(captured)
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
        text = f"{decided.backend} runs nothing in this model on integers: all of it stays float (print its plan)"
        warnings.warn(text, FloatModelWarning, stacklevel=3)
    return prepared


def _decide(
    captured: Captured, target: Backend, request: Recipe, choose: ChooseActivations | None
) -> tuple[Plan, Known, dict[str, str]]:
    """The plan, the scales that a file with Q and DQ has for it, and which batch norms were merged into what."""
    asked = (with_batch_norms(request, target) if request.trains else request).batch_norm.strategy
    strategy = target.batch_norm if asked is None else asked
    model = captured.module
    source = source_of(model) if is_imported(model) else None
    if source is None or not source.encodings:
        merges = fold_batch_norms(captured, strategy)
        decided = plan(captured, target, request, choose=choose)
        ops = dispatched(captured, target, request, decided)
        notes = (*decided.notes, *_note_of_norms(model, request))
        return replace(decided, ops=ops, notes=notes), {}, merges
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


def _note_of_norms(model: nn.Module, request: Recipe) -> Iterator[str]:
    """A note that batch norms are kept, if the recipe left the choice."""
    kept = [module.strategy for module in model.modules() if isinstance(module, FoldedBatchNorm)]
    if kept and request.batch_norm.strategy is None:
        yield (
            f"{len(kept)} batch norms are trained, and folded into the weights in front of them at every step "
            f"(strategy {kept[0]}); deploying merges them"
        )


def with_batch_norms(recipe: Recipe, target: Backend) -> Recipe:
    """The recipe of a network that will be trained: the batch norms that the target would merge stay, by strategy 4.

    Without them training diverges at ordinary learning rates: ResNet-20 on CIFAR-10, LSQ with 8 bits, SGD at 0.01, 60
    steps: 91.2 % with strategy 4, 10.3 % with merged ones. Algorithms that change weights want them merged.
    """
    if recipe.batch_norm.strategy is not None or recipe.algorithms or target.batch_norm != 0:
        return recipe
    return recipe.replace(batch_norm=recipe.batch_norm.replace(strategy=4))


def _for_cpu(recipe: Recipe, cpu: str | None) -> Recipe:
    """The recipe, for that kind of CPU if one is named."""
    return recipe if cpu is None else recipe.model_copy(update={"cpu": cpus.find(cpu).name})


def _refuse_other_reals(model: object) -> None:
    found = other_real(model) if isinstance(model, nn.Module) else None
    if found is not None:
        raise CaptureError(
            "prepare a model",
            f"{found}, and quantizers compute in float32",
            "give model.float() and inputs in float32; train it in half precision with torch.autocast",
        )


def _modules_by_node(graphs: Iterable[fx.Graph]) -> dict[str, str]:
    return {node.name: str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_module"}
