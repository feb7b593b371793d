"""Operations with weights, and products: convolutions, linear layers, matmul, embedding."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from detent.errors import DeployError
from detent.frontends.torch.builder import Builder, Read
from detent.frontends.torch.values import Free, Ref

__all__ = ["conv", "conv_transpose", "einsum", "embedding", "embedding_bag", "linear", "matmul"]

Sizes = int | Sequence[int]


def each(value: Sizes, rank: int) -> list[int]:
    """One number for each spatial dimension."""
    return [int(value)] * rank if isinstance(value, int) else [int(v) for v in value]


_PADDING_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def conv(
    b: Builder,
    input: Ref,
    weight: Ref,
    bias: Ref | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Ref:
    _refuse_groups_of_the_batch(b, groups)
    rank = weight.ndim - 2
    kernel = [int(size) for size in weight.shape[2:]]
    strides, dilations = each(stride, rank), each(dilation, rank)
    x, batched = _batched(b, input, rank)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
        pads = [t // 2 for t in total] + [t - t // 2 for t in total]
    else:
        pads = 2 * (each(padding, rank) if padding != "valid" else [0] * rank)  # type: ignore[arg-type]
    if padding_mode != "zeros":
        x = b.emit("Pad", [x, b.integers([0, 0, *pads[:rank], 0, 0, *pads[rank:]])], mode=_PADDING_MODES[padding_mode])
        pads = [0] * len(pads)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "group": groups,
    }
    if batched:
        return b.final("Conv", [x, weight, bias], **attributes)
    return b.final("Squeeze", [b.emit("Conv", [x, weight, bias], **attributes), b.integers([0])])


def conv_transpose(
    b: Builder,
    input: Ref,
    weight: Ref,
    bias: Ref | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    output_size: Sizes | None = None,
) -> Ref:
    _refuse_groups_of_the_batch(b, groups)
    rank = weight.ndim - 2
    if input.ndim != rank + 2:
        raise DeployError(f"write {b.current!r}", "a transposed convolution without a batch", "give it a batch axis")
    kernel = [int(size) for size in weight.shape[2:]]
    strides, paddings, dilations = each(stride, rank), each(padding, rank), each(dilation, rank)
    added = each(output_padding, rank)
    if output_size is not None:  # which the example shows; ONNX has it as output padding
        lengths = zip(b.result.shape[2:], input.shape[2:], kernel, strides, paddings, dilations, strict=True)
        added = [int(to) - (int(size) - 1) * step + 2 * p - d * (k - 1) - 1 for to, size, k, step, p, d in lengths]
    return b.final(
        "ConvTranspose",
        [input, weight, bias],
        kernel_shape=kernel,
        strides=strides,
        pads=2 * paddings,
        output_padding=added,
        dilations=dilations,
        group=groups,
    )


def _refuse_groups_of_the_batch(b: Builder, groups: Any) -> None:
    if isinstance(groups, Free):
        raise DeployError(
            f"write {b.current!r}", "it has a group for each sample of the batch", "deploy with dynamic_batch=False"
        )


def _batched(b: Builder, x: Ref, rank: int) -> tuple[Read, bool]:
    if x.ndim == rank + 2:
        return x, True
    return b.emit("Unsqueeze", [x, b.integers([0])]), False


def linear(b: Builder, input: Ref, weight: Ref, bias: Ref | None = None) -> Ref:
    """Gemm on matrices, which engines have an integer kernel with bias for; else a product and an add."""
    if input.ndim == 2:
        return b.final("Gemm", [input, weight, bias], transB=1)
    turned = b.transposed(weight)
    if bias is None:
        return b.final("MatMul", [input, turned])
    return b.final("Add", [b.emit("MatMul", [input, turned]), bias])


def matmul(b: Builder, input: Ref, other: Ref) -> Ref:
    return b.final("MatMul", [input, other])


def einsum(b: Builder, *args: Any) -> Ref:
    """An equation and tensors, or each tensor with its axes, and perhaps the axes of the result."""
    if isinstance(args[0], str):
        equation, *tensors = args
        listed = tensors[0] if isinstance(tensors[0], (list, tuple)) else tensors
        return b.final("Einsum", listed, equation=equation)
    terms = [
        "".join("..." if axis is Ellipsis else string.ascii_letters[axis] for axis in axes)
        for axes in (*args[1::2], *(args[-1:] if len(args) % 2 else ()))
    ]
    pairs = len(args) // 2
    return b.final("Einsum", args[: 2 * pairs : 2], equation="->".join([",".join(terms[:pairs]), *terms[pairs:]]))


def embedding(b: Builder, input: Ref, weight: Ref, *_: Any, **__: Any) -> Ref:
    return b.final("Gather", [weight, input], axis=0)


def embedding_bag(
    b: Builder,
    input: Ref,
    weight: Ref,
    offsets: Ref | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Ref | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Ref:
    """Rows of the table, put together along the second axis of the indices."""
    del norm_type, scale_grad_by_freq, sparse, include_last_offset  # of training, or of offsets
    strange = {"offsets": offsets, "max_norm": max_norm, "padding_idx": padding_idx}
    given = [name for name, value in strange.items() if value is not None]
    if given or input.ndim != 2:
        raise DeployError(
            f"write the embedding bag {b.current!r}",
            f"it has {given[0]}" if given else f"its indices have {input.ndim} axes",
            "give it indices of two axes, a bag in each row, and nothing else",
        )
    rows = b.emit("Gather", [weight, input], axis=0)
    if per_sample_weights is not None:
        rows = b.emit("Mul", [rows, b.emit("Unsqueeze", [per_sample_weights, b.integers([2])])])
    kind = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax"}[mode]
    if kind == "ReduceSum" or b.opset >= 18:
        return b.final(kind, [rows, b.integers([1])], keepdims=0)
    return b.final(kind, [rows], axes=[1], keepdims=0)
