"""Norms and softmaxes."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from detent.ir.reference.call import Call, Kernel

__all__ = ["NORMALIZATION"]


def _layer_norm(call: Call) -> Tensor:
    x, shift = call[0], call.optional(2)
    shape = x.shape[call.get("axis", -1) % x.ndim :]
    scale, shift = (each if each is None or each.shape == shape else each.expand(shape) for each in (call[1], shift))
    return F.layer_norm(x, list(shape), scale, shift, call.get("epsilon", 1e-5))


def _batch_norm(call: Call) -> Tensor:
    return F.batch_norm(call[0], call[3], call[4], call[1], call[2], eps=call.get("epsilon", 1e-5))


def _instance_norm(call: Call) -> Tensor:
    return F.instance_norm(call[0], weight=call[1], bias=call[2], eps=call.get("epsilon", 1e-5))


def _group_norm(call: Call) -> Tensor:
    return F.group_norm(call[0], call.get("num_groups"), call[1], call[2], call.get("epsilon", 1e-5))


NORMALIZATION: Mapping[str, Kernel] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": lambda call: F.log_softmax(call[0], call.get("axis", -1)),
    "Softmax": lambda call: F.softmax(call[0], call.get("axis", -1)),
}
