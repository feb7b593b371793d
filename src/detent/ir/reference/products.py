"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from detent.ir.reference.call import Kernel, KernelCall

__all__ = ["PRODUCTS"]


def _gemm(call: KernelCall) -> Tensor:
    alpha, beta, bias = call.attribute("alpha"), call.attribute("beta"), call.optional(2)
    a = call[0].mT if call.attribute("transA") else call[0]
    b = call[1].mT if call.attribute("transB") else call[1]
    product = a @ b if alpha == 1 else alpha * (a @ b)
    if bias is None:
        return product
    return product + (bias if beta == 1 else beta * bias)


PRODUCTS: Mapping[str, Kernel] = {
    "Einsum": lambda call: torch.einsum(call.attribute("equation"), *call.present),
    "Gemm": _gemm,
    "MatMul": lambda call: torch.matmul(call[0], call[1]),
}
