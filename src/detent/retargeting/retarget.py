"""The same calibrated model for another backend: placement, bias and sharing derived anew, scales kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from detent.adopting import Known, adopt, initialise
from detent.backends import BACKENDS, Backend, dispatched, plan
from detent.deploy import Package
from detent.errors import ArtifactError, SchemeError
from detent.graph import (
    Inputs,
    Plan,
    capture,
    fold_batch_norms,
    insert,
    quantizers_of,
    remember_float_names,
    without_quantizers,
)
from detent.loading import load
from detent.numerics import QParams, Scheme
from detent.preparing import prepare
from detent.recipes import Recipe, find
from detent.retargeting.carrying import carried, keep_codes

__all__ = ["restored", "retargeted"]


def retargeted(prepared: Any, backend: str | Backend) -> Any:
    """A prepared model for `backend` with the scales of `prepared`, which is left as it was.

    Weights keep their learned values, and their codes. Refused, with the tensor named: a tensor that only the other
    backend quantizes, because it has no scale, and one whose scheme the other backend cannot have.
    """
    target = BACKENDS[backend] if isinstance(backend, str) else backend
    inputs: Inputs = prepared.example
    modes = {mode: {"mode": mode} for mode in prepared.runners} if len(prepared.runners) > 1 else None
    captured = capture(without_quantizers(prepared), inputs.args, example_kwargs=inputs.kwargs, modes=modes)
    modules = dict(captured.module.named_modules())
    merges = fold_batch_norms(captured, min(target.batch_norm, 0))
    request = _request(prepared.recipe)
    planned = plan(captured, target, request)
    _refuse_unfolded(planned, merges)
    known, notes = carried(_known(prepared), planned, target)
    decided = adopt(planned, known, target)
    decided = replace(decided, notes=(*decided.notes, f"scales of {prepared.plan.backend}", *notes))
    decided = replace(decided, ops=dispatched(captured, target, request, decided))
    insert(captured, decided)
    moved: Any = captured.module
    moved.plan, moved.backend, moved.recipe = decided, target, request
    moved.input_count, moved.example = prepared.input_count, inputs
    remember_float_names(moved, captured.float_tensors, merges, modules)
    initialise(moved, known)
    keep_codes(prepared, moved)
    moved.train(prepared.training)
    return moved


def restored(package: Package) -> Any:
    """The prepared model of a deployed folder, read from its QDQ file, which holds weights and scales."""
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
    return prepared


def _request(recipe: Recipe) -> Recipe:
    """The widths that were asked for, with quantizers that hold the scales they are given."""
    plain = find("ptq")
    return plain.replace(
        weight=plain.weight.replace(bits=recipe.weight.bits),
        activation=plain.activation.replace(bits=recipe.activation.bits),
        exclude=recipe.exclude,
    )


def _refuse_unfolded(planned: Plan, merges: Mapping[str, str]) -> None:
    quantized = {entry.tensor for entry in planned.quantized}
    for norm, operation in merges.items():
        if f"{operation}.weight" in quantized:
            raise SchemeError(
                f"keep the scale of '{operation}.weight' for {planned.backend}",
                f"the batch norm {norm!r} is folded into it there, and the scale is that of the weight without it",
                f"prepare and calibrate for {planned.backend}",
            )


def _known(prepared: Any) -> Known:
    """The scheme of each tensor and the scale that was measured or learned; a sharing one has its source's."""
    found: dict[str, tuple[Scheme, QParams]] = {q.name: (q.scheme, q.qparams()) for q in quantizers_of(prepared)}
    entries: Plan = prepared.plan
    for entry in entries.quantized:
        if entry.shares and entry.tensor not in found and entry.shares in found:
            found[entry.tensor] = found[entry.shares]
    return found
