"""Refuses prepared models that cannot be deployed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from detent.errors import DeployError, NotCalibratedError
from detent.graph import PreparedModel, other_real, quantizers_of
from detent.ir import DeployedTensor, Network
from detent.ir.ops import Trait, ops_with
from detent.quantizers import Quantizer

__all__ = [
    "require_calibrated",
    "require_finite",
    "require_finite_constants",
    "require_finite_qparams",
    "require_float32",
    "require_mode",
    "require_prepared",
    "require_whole",
]

_LAYERS, _ARITHMETIC = ops_with(Trait.WEIGHTED), ops_with(Trait.ARITHMETIC)


def require_prepared(prepared: nn.Module) -> None:
    if not isinstance(prepared, PreparedModel):
        raise DeployError("deploy a model", "it was not prepared", "detent.prepare it, calibrate it, then deploy it")


def require_whole(prepared: PreparedModel) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    from torch.distributed.tensor import DTensor

    if any(isinstance(parameter, DTensor) for parameter in prepared.parameters()):
        raise DeployError(
            "deploy a model",
            "its parameters are sharded over processes",
            "load detent.training.sharding.whole_state_dict(...) of it into the model prepared anew, and deploy that",
        )


def require_mode(prepared: PreparedModel, mode: str | None) -> None:
    modes = list(prepared.runners)
    if mode is not None and mode not in modes:
        known = ", ".join(modes) or "none"
        raise DeployError(f"deploy the forward mode {mode!r}", f"prepared are {known}", "name one of these")


def require_calibrated(prepared: PreparedModel, mode: str | None) -> None:
    missing = sorted({q.name for q in _quantizers_in(prepared, mode) if not q.calibrated})
    if missing:
        some = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise NotCalibratedError("deploy a model", f"these tensors have no scale: {some}", "calibrate it first")


def require_float32(prepared: PreparedModel) -> None:
    found = other_real(prepared)
    if found is not None:
        raise DeployError("deploy a model", f"{found}, and files hold integers and float32", "deploy prepared.float()")


def require_finite(prepared: PreparedModel) -> None:
    """Integers have no Inf and no NaN: a target would hold something else, or an engine compute with them."""
    of_quantizers = {id(p) for quantizer in quantizers_of(prepared) for p in quantizer.parameters()}
    for name, value in prepared.named_parameters():
        if value.is_floating_point() and id(value) not in of_quantizers and not bool(value.isfinite().all()):
            # As the float model calls it: a parametrized one has another name here.
            own = name.replace("parametrizations.", "").removesuffix(".original")
            raise _not_finite(f"the parameter {own}", value.detach())


def require_finite_qparams(tensors: Iterable[DeployedTensor]) -> None:
    for tensor in tensors:
        if not np.isfinite(tensor.scale).all():
            raise _not_finite(f"the scale of {tensor.tensor}", torch.from_numpy(np.array(tensor.scale)))


def require_finite_constants(network: Network) -> None:
    """Checks constants that are no torch parameters: statistics of a normalization, and tensors of an imported file.
    Infinity is allowed in formulas, such as masks, but not in layers; NaN is never allowed."""
    for op in network.ops:
        layer = op.type in _LAYERS or op.type.endswith("Normalization")
        if not layer and op.type not in _ARITHMETIC:
            continue
        for read in op.reads:
            array = network.constants.get(read.tensor)
            if array is None or array.dtype.kind != "f":
                continue
            if np.isnan(array).any() or (layer and np.isinf(array).any()):
                raise _not_finite(f"the tensor {read.tensor}", torch.from_numpy(np.array(array)))


def _not_finite(what: str, value: Tensor) -> DeployError:
    count = int((~value.isfinite()).sum())
    found = f"{what} has {count:,} of {value.numel():,} numbers that are infinite or NaN"
    return DeployError("deploy a model", found, "train or load it again, with a lower learning rate if that made them")


def _quantizers_in(prepared: PreparedModel, mode: str | None) -> Iterator[Quantizer]:
    """The quantizers of what is deployed: another forward mode may not be calibrated."""
    if prepared.untraced is not None:
        yield from quantizers_of(prepared)
        return
    runner = prepared.runners[mode or next(iter(prepared.runners))]
    for node in runner.graph.nodes:
        if node.op == "call_module":
            yield from quantizers_of(prepared.get_submodule(str(node.target)))
