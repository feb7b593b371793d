"""Prepares a calibrated model for another backend: placement, bias and sharing are planned anew, scales are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch

from detent.errors import ArtifactError
from detent.frontends.onnx import source_of
from detent.graph import (
    FloatNames,
    PreparedModel,
    capture,
    fold_batch_norms,
    insert,
    quantizers_of,
    ranges_of,
    sum_of_weights,
    without_quantizers,
)
from detent.ir import Package
from detent.known_qparams import adopt, initialize
from detent.loading import load
from detent.numerics import QParams, Scheme
from detent.planning import Backend, dispatched, plan
from detent.preparing import prepare
from detent.quantizers import Role
from detent.recipes import Recipe, TensorRequest, find
from detent.retargeting.carrying import carried, keep_codes
from detent.retargeting.known import known_of, refuse_unknown, remember, with_reordered, with_weights
from detent.retargeting.norms import after_folding, norms_of
from detent.retargeting.numbers import as_scheme
from detent.targets import BACKENDS

__all__ = ["restored", "retargeted"]


def retargeted(prepared: PreparedModel, backend: str | Backend) -> PreparedModel:
    """A prepared model for `backend` with the scales of `prepared`, which is not changed.

    Weights keep their learned values and their codes; tensors that only the other backend quantizes get the range that
    was measured during calibration. Refused with the name of the tensor: a tensor whose range was never measured, or
    measured before training, and one whose scheme the other backend does not support.
    """
    target = BACKENDS[backend] if isinstance(backend, str) else backend
    inputs = prepared.example
    modes = {mode: {"mode": mode} for mode in prepared.runners} if len(prepared.runners) > 1 else None
    captured = capture(without_quantizers(prepared), inputs.args, example_kwargs=inputs.kwargs, modes=modes)
    modules = dict(captured.module.named_modules())
    norms = norms_of(captured)
    merges = fold_batch_norms(captured, min(target.batch_norm, 0))
    request = _request(prepared.recipe)
    planned = plan(captured, target, request)
    held = after_folding(known_of(prepared), norms, merges, planned)
    held = with_weights(with_reordered(held, planned, captured), planned, captured)
    known, notes = carried(held, planned, target)
    refuse_unknown(planned, known, prepared)
    decided = adopt(planned, known, target)
    decided = replace(decided, notes=(*decided.notes, f"scales of {prepared.plan.backend}", *notes))
    decided = replace(decided, ops=dispatched(captured, target, request, decided))
    insert(captured, decided)
    moved = PreparedModel(
        captured.module,
        plan=decided,
        backend=target,
        recipe=request,
        example=inputs,
        float_names=FloatNames.of(captured.module, captured.float_tensors, merges, modules),
    )
    initialize(moved, known)
    keep_codes(prepared, moved, {f"{operation}.weight": norms[path] for path, operation in merges.items()})
    remember(moved, held, known)
    moved.train(prepared.training)
    return moved


def restored(package: Package) -> PreparedModel:
    """The prepared model of a deployed folder, read from its QDQ file, which has the weights and scales."""
    ports = package.graph.inputs.values()
    example = [np.zeros([2 if isinstance(size, str) else size for size in p.shape], p.dtype) for p in ports]
    backend, recipe = package.manifest["backend"], Recipe.from_dict(package.manifest["recipe"])
    inputs = [torch.from_numpy(array) for array in example]
    prepared = prepare(load(package.model), inputs, backend=backend, recipe=_request(recipe))
    missing = [quantizer.name for quantizer in quantizers_of(prepared) if not quantizer.calibrated]
    if missing:
        raise ArtifactError(
            f"retarget {package.folder}",
            f"its model.onnx does not say the scale of {', '.join(missing[:3])}",
            "retarget the artifact that deploy returned, which has the model in memory",
        )
    _take_ranges(prepared, package.manifest.get("ranges", ()))
    return prepared


def _take_ranges(prepared: PreparedModel, rows: Iterable[Mapping[str, Any]]) -> None:
    """Set the ranges of float tensors from a manifest."""
    by_tensor = {row["tensor"]: row for row in rows}
    names, weights = source_of(prepared).tensors, sum_of_weights(prepared)
    for one in ranges_of(prepared):
        row = by_tensor.get(names.get(one.node, ""))
        if row is not None:
            qparams = QParams(torch.tensor(row["scale"], dtype=torch.float32), torch.tensor(row["zero_point"]))
            held = as_scheme((Scheme.from_dict(row["scheme"]), qparams), one.scheme)
            if held is not None:
                one.keep(held, weights)


def _request(recipe: Recipe) -> Recipe:
    """The requested widths and exclusions of a recipe; quantizers only hold the scales they are given."""
    return find("ptq").replace(
        **{role: _plain(getattr(recipe, role)) for role in get_args(Role)},
        rules=[rule.replace(**{role: _plain(getattr(rule, role)) for role in get_args(Role)}) for rule in recipe.rules],
        exclude=recipe.exclude,
    )


def _plain(request: TensorRequest) -> TensorRequest:
    return TensorRequest(bits=request.bits, quantize=request.quantize)
