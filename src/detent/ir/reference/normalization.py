"""Norms and softmaxes."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from detent.ir.reference.call import Kernel, KernelCall

__all__ = ["NORMALIZATION"]


def _layer_norm(call: KernelCall) -> Tensor:
    x, shift = call[0], call.optional(2)
    shape = x.shape[call.attribute("axis") % x.ndim :]
    scale, shift = (each if each is None or each.shape == shape else each.expand(shape) for each in (call[1], shift))
    return F.layer_norm(x, list(shape), scale, shift, call.attribute("epsilon"))


def _batch_norm(call: KernelCall) -> Tensor:
    return F.batch_norm(call[0], call[3], call[4], call[1], call[2], eps=call.attribute("epsilon"))


def _instance_norm(call: KernelCall) -> Tensor:
    return F.instance_norm(call[0], weight=call[1], bias=call[2], eps=call.attribute("epsilon"))


def _group_norm(call: KernelCall) -> Tensor:
    return F.group_norm(call[0], call.attribute("num_groups"), call[1], call[2], call.attribute("epsilon"))


NORMALIZATION: Mapping[str, Kernel] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": lambda call: F.log_softmax(call[0], call.attribute("axis")),
    "Softmax": lambda call: F.softmax(call[0], call.attribute("axis")),
}
