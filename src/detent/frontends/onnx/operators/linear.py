"""MatMul and Gemm: `nn.Linear` where one side is a constant matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from detent.frontends.onnx.builder import Constant, Value
from detent.frontends.onnx.call import Call, Converter

__all__ = ["CONVERTERS"]


def _is_matrix(value: Value | None) -> bool:
    return isinstance(value, Constant) and value.tensor.ndim == 2 and value.tensor.is_floating_point()


def _is_bias(value: Value | None, outputs: int) -> bool:
    return isinstance(value, Constant) and tuple(value.tensor.shape) == (outputs,)


def transposed(constant: Constant) -> Constant:
    """The transposed matrix, which still refers to the same initializer."""
    return Constant(constant.tensor.t().contiguous(), constant.source, not constant.transposed)


def _linear(call: Call, x: Value, weight: Constant, bias: Constant | None) -> Any:
    """`weight` is (outputs, inputs), as torch has it."""
    outputs, inputs = weight.tensor.shape
    module = nn.Linear(inputs, outputs, bias is not None, device="meta")
    module.weight = call.parameter(weight)
    if bias is not None:
        module.bias = call.parameter(bias)
    return call.module(module, x, weight=weight, bias=bias)


def _matmul(call: Call) -> Any:
    x, matrix = call.value(0), call.value(1)
    rank = call.rank()
    if isinstance(x, Constant) or not _is_matrix(matrix) or rank == 1:
        return call.apply(torch.matmul, x, matrix)
    assert isinstance(matrix, Constant)
    weight = transposed(matrix)
    return _linear(call, x, weight, _following_bias(call, int(weight.tensor.shape[0])))


def _following_bias(call: Call, outputs: int) -> Constant | None:
    """The bias added by an Add right after, which is fused into the operation."""
    add = call.next("Add")
    if add is None or len(add.input) != 2 or add.input[0] == add.input[1]:
        return None
    other = 1 if add.input[0] == call.node.output[0] else 0
    bias = call.of_next(add, other)
    if not _is_bias(bias, outputs):
        return None
    call.absorb(add)
    assert isinstance(bias, Constant)
    return bias


def _gemm(call: Call) -> Any:
    x, matrix, bias = call.value(0), call.value(1), call.optional(2)
    alpha, beta = call.real("alpha"), call.real("beta")
    trans_a, trans_b = bool(call.integer("transA")), bool(call.integer("transB"))
    plain = alpha == 1 and (beta == 1 or bias is None) and not trans_a and not isinstance(x, Constant)
    if plain and _is_matrix(matrix):
        assert isinstance(matrix, Constant)
        weight = matrix if trans_b else transposed(matrix)
        if bias is None or _is_bias(bias, int(weight.tensor.shape[0])):
            assert bias is None or isinstance(bias, Constant)
            return _linear(call, x, weight, bias)
    return call.op(gemm, x, matrix, bias, kind="matmul", alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b)


def gemm(
    left: Tensor, right: Tensor, bias: Tensor | None, *, alpha: float, beta: float, trans_a: bool, trans_b: bool
) -> Tensor:
    product = torch.matmul(left.t() if trans_a else left, right.t() if trans_b else right)
    product = product if alpha == 1 else alpha * product
    if bias is None:
        return product
    return product + (bias if beta == 1 else beta * bias)


CONVERTERS: dict[str, Converter] = {"MatMul": _matmul, "Gemm": _gemm}
