"""Every operation that has a writer: the ONNX of it computes what torch computes, for any batch size."""

from __future__ import annotations

import operator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import detent
from detent.deployment.functions_in_steps import write_functions_in_steps
from detent.errors import DeployError
from detent.frontends.torch import export
from detent.frontends.torch.lowerings import LOWERINGS
from detent.graph import KINDS, TORCH_OPS
from detent.graph.decompositions.spectra import stft_channels
from detent.ir import write_qdq
from tests.deployment.float_path import float_path, prepared_for, tensors_of


class Net(nn.Module):
    """A quantized 1x1 convolution, so that there is something to prepare, then the operation, in float."""

    def __init__(self, op):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)
        self.op = op

    def forward(self, x: Tensor):
        return self.op(self.conv(x))


class Held(nn.Module):
    """Parameters for an operation that is a function."""

    def __init__(self, call, **shapes: tuple[int, ...]):
        super().__init__()
        self.call = call
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.rand(shape) * 0.5 + 0.25))

    def forward(self, x: Tensor):
        return self.call(self, x)


def row(x: Tensor) -> Tensor:
    return x[:, :, 0]


def volume(x: Tensor) -> Tensor:
    return x.unsqueeze(2)


def positive(x: Tensor) -> Tensor:
    return x * x + 0.5


def grown(x: Tensor) -> Tensor:
    """In place on a copy, as `x = x + 0` gives it: what is added in place must not reach another reader."""
    return x + 0.25


def in_place(name: str, *args):
    return lambda x: getattr(grown(x), name)(*args)


def method(name: str, *args, **kwargs):
    return lambda x: getattr(x, name)(*args, **kwargs)


FUNCTION_CASES = {
    "conv1d": Held(lambda m, x: F.conv1d(row(x), m.w, m.b, stride=2, padding=1), w=(4, 8, 3), b=(4,)),
    "conv2d": Held(lambda m, x: F.conv2d(x, m.w, None, padding="same", dilation=2, groups=2), w=(4, 4, 3, 3)),
    "conv2d-even-kernel-same": Held(lambda m, x: F.conv2d(x, m.w, padding="same"), w=(4, 8, 2, 4)),
    "conv2d-unbatched": Held(lambda m, x: F.conv2d(x[0], m.w), w=(4, 8, 3, 3)),
    "conv3d": Held(lambda m, x: F.conv3d(volume(x), m.w, padding="valid"), w=(4, 8, 1, 3, 3)),
    "conv_transpose1d": Held(lambda m, x: F.conv_transpose1d(row(x), m.w, m.b, stride=2), w=(8, 4, 3), b=(4,)),
    "conv_transpose2d": Held(lambda m, x: F.conv_transpose2d(x, m.w, None, 2, 1, 1, 2, 2), w=(8, 2, 3, 3)),
    "conv_transpose3d": Held(lambda m, x: F.conv_transpose3d(volume(x), m.w), w=(8, 2, 1, 2, 2)),
    "linear": Held(lambda m, x: F.linear(x, m.w, m.b), w=(5, 6), b=(5,)),
    "linear-no-bias": Held(lambda m, x: F.linear(x, m.w), w=(5, 6)),
    "linear-matrix": Held(lambda m, x: F.linear(x.flatten(1), m.w, m.b), w=(5, 288), b=(5,)),
    "linear-vectors": Held(lambda m, x: F.linear(x.mean((1, 2, 3)).unsqueeze(-1), m.w, m.b), w=(5, 1), b=(5,)),
    "embedding": Held(lambda m, x: F.embedding((x > 0).long(), m.w), w=(2, 3)),
    "embedding-padded": Held(lambda m, x: F.embedding((x > 0).long(), m.w, padding_idx=0), w=(2, 3)),
    "embedding_bag": Held(lambda m, x: F.embedding_bag((row(x)[:, 0] > 0).long(), m.w), w=(2, 3)),
    "embedding_bag-weighted": Held(
        lambda m, x: F.embedding_bag((row(x)[:, 0] > 0).long(), m.w, mode="sum", per_sample_weights=row(x)[:, 1] * 1.0),
        w=(2, 3),
    ),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "attention-causal": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention-mask": Held(
        lambda m, x: F.scaled_dot_product_attention(x, x, x, attn_mask=m.mask > 0.4, scale=0.3), mask=(6, 6)
    ),
    "attention-mask-that-hides-all": Held(
        lambda m, x: F.scaled_dot_product_attention(x, x, x, attn_mask=m.mask > m.mask[2:3].amax()), mask=(6, 6)
    ),
    "attention-float-mask": Held(lambda m, x: F.scaled_dot_product_attention(x, x, x, attn_mask=m.mask), mask=(6, 6)),
    "attention-grouped": lambda x: F.scaled_dot_product_attention(x, x[:, :2], x[:, 2:4], enable_gqa=True),
    "addmm": Held(lambda m, x: torch.addmm(m.b, x.flatten(1), m.w), w=(288, 5), b=(5,)),
    "addmm-scaled": Held(lambda m, x: torch.addmm(m.b, x.flatten(1), m.w, beta=0.5, alpha=2), w=(288, 5), b=(1, 5)),
    "matmul": lambda x: torch.matmul(x, x),
    "matmul-vector": Held(lambda m, x: torch.matmul(x, m.v), v=(6,)),
    "bmm": lambda x: torch.bmm(row(x), row(x).transpose(1, 2)),
    "mm": Held(lambda m, x: torch.mm(x.flatten(1), m.w), w=(288, 3)),
    "@": lambda x: x @ x,
    "+": lambda x: x + x,
    "+-number": lambda x: 2 + x,
    "+=": lambda x: operator.iadd(grown(x), x),
    "add-alpha": lambda x: torch.add(x, x, alpha=3),
    "-": lambda x: 1 - x,
    "-=": lambda x: operator.isub(grown(x), 0.5),
    "sub-alpha": lambda x: torch.sub(x, x, alpha=0.5),
    "*": lambda x: x * x,
    "*=": lambda x: operator.imul(grown(x), 2),
    "mul": lambda x: torch.mul(x, 3),
    "/": lambda x: x / positive(x),
    "/=": lambda x: operator.itruediv(grown(x), 4),
    "div": lambda x: torch.div(1.0, positive(x)),
    "//": lambda x: x // 0.5,
    "//-sizes": lambda x: x.reshape(x.shape[0] * 2, x.shape[1] // 2, -1),
    "//-free-size": lambda x: torch.cat([x, x]).reshape((x.shape[0] * 2) // 2, -1),
    "true_divide": lambda x: torch.true_divide(x, 3),
    "masked_fill": lambda x: torch.masked_fill(x, x > 0, -1.0),
    "div-down": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "div-to-zero": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "div-down-integers": lambda x: torch.div((x * 20).long(), 3, rounding_mode="floor"),
    "div-to-zero-integers": lambda x: torch.div((x * 20).long(), 3, rounding_mode="trunc"),
    "floor_divide": lambda x: torch.floor_divide((x * 20).long(), 3),
    "remainder": lambda x: torch.remainder(x, 0.3),
    "baddbmm": lambda x: torch.baddbmm(row(x), row(x), row(x)[:, :6], beta=0.5, alpha=2),
    "baddbmm-alone": lambda x: torch.baddbmm(row(x), row(x), row(x)[:, :6], beta=0),
    "affine_grid": lambda x: F.affine_grid(row(x)[:, :2, :3], x.size(), align_corners=False),
    "affine_grid-corners": lambda x: F.affine_grid(row(x)[:, :2, :3], x.size(), align_corners=True),
    "affine_grid-volume": lambda x: F.affine_grid(row(x)[:, :3, :4], (x.size(0), 1, 2, 3, 4), align_corners=False),
    "cdist": lambda x: torch.cdist(row(x), row(x)[:, 1:4]),
    "cdist-absolute": lambda x: torch.cdist(row(x), row(x)[:, 1:4], p=1),
    "cdist-of-many-rows": Held(lambda m, x: torch.cdist(x.flatten(2).transpose(1, 2), m.rows), rows=(4, 8)),
    "maximum": lambda x: torch.maximum(x, -x),
    "minimum": lambda x: torch.minimum(x, -x),
    "where": lambda x: torch.where(x > 0, x, 0.5 * x),
    "where-number": lambda x: torch.where(x > 0, x, 0.5),
    "cat": lambda x: torch.cat([x, x * 2], dim=1),
    "cat-last": lambda x: torch.cat((x, x * 2), -1),
    "concat": lambda x: torch.concat([x, x], axis=2),
    "stack": lambda x: torch.stack([x, x * 2], dim=-1),
    "flatten": lambda x: torch.flatten(x, 1),
    "flatten-middle": lambda x: torch.flatten(x, 1, 2),
    "flatten-batch": lambda x: torch.flatten(x, 0, 1),
    "reshape": lambda x: torch.reshape(x, (-1, 4, 72)),
    "squeeze": lambda x: torch.squeeze(x[:, :1], 1),
    "unsqueeze": lambda x: torch.unsqueeze(x, -1),
    "permute": lambda x: torch.permute(x, (0, 2, 3, 1)),
    "transpose": lambda x: torch.transpose(x, 1, -1),
    "transpose-batch": lambda x: torch.transpose(x, 0, 1) * 2,
    "chunk": lambda x: torch.chunk(x, 3, dim=1),
    "split": lambda x: torch.split(x, [2, 6], dim=1)[1],
    "narrow": lambda x: torch.narrow(x, 2, 1, 3),
    "unbind": lambda x: torch.unbind(x, 1)[0] + torch.unbind(x, 1)[-1],
    "getitem": lambda x: x[:, 1:7:2, -3:, None, 2],
    "getitem-ellipsis": lambda x: x[..., -1],
    "getitem-step": lambda x: x[:, :, ::2, 1::2],
    "getitem-index": Held(lambda m, x: x.transpose(0, 1)[(m.i > 0.5).long()], i=(3,)),
    "getitem-list": lambda x: x[:, [3, 0, -1]],
    "getitem-index-behind": Held(lambda m, x: x[:, :, (m.i > 0.5).long()], i=(3,)),
    "getitem-sample": lambda x: x[0],
    "getitem-shape": lambda x: x.reshape(x.shape[0], x.size(1), -1),
    "getitem-two-lists": lambda x: x[:, [0, 2], [1, -1]],
    "getitem-two-indices": lambda x: x[torch.arange(x.shape[0]), (x[:, 0, 0, 0] > 0).long()],
    "getitem-negative-index": lambda x: x[torch.arange(x.shape[0]), (x[:, 0, 0, 0] > 0).long() - 1],
    "getitem-to-a-free-size": lambda x: torch.cat([x, x])[: x.shape[0]],
    "gather": lambda x: torch.gather(x, 1, (x[:, :2] > 0).long()),
    "index_select": Held(lambda m, x: torch.index_select(x, 1, (m.i > 0.5).long()), i=(3,)),
    "roll": lambda x: torch.roll(x, (1, -2), (2, 3)),
    "roll-nothing": lambda x: torch.roll(x, 0, 2),
    "roll-around": lambda x: torch.roll(x, 7, 2),
    "flip": lambda x: torch.flip(x, (1, 3)),
    "zeros": lambda x: x + torch.zeros((x.shape[0], 1, 1, 6)),
    "ones": lambda x: x + torch.ones((x.shape[0], 8, 1, 1)),
    "zeros_like": lambda x: x + torch.zeros_like(x),
    "ones_like": lambda x: x + torch.ones_like(x),
    "full-of-the-batch": lambda x: x + torch.full((x.shape[0], 1, 1, 6), 0.5),
    "full_like": lambda x: x + torch.full_like(x, 0.5),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=0.5),
    "pad-negative": lambda x: F.pad(x, (-1, 2)),
    "pad-reflect": lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect"),
    "pad-replicate": lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate"),
    "pad-circular": lambda x: F.pad(x, (1, 2, 0, 1), mode="circular"),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "interpolate-size": lambda x: F.interpolate(x, size=(9, 5)),
    "interpolate-half": lambda x: F.interpolate(x, scale_factor=0.5, mode="nearest"),
    "interpolate-odd-factor": lambda x: F.interpolate(x, scale_factor=1.7),
    "interpolate-exact": lambda x: F.interpolate(x, size=(9, 5), mode="nearest-exact"),
    "interpolate-bilinear": lambda x: F.interpolate(x, size=(9, 11), mode="bilinear"),
    "interpolate-bilinear-factor": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "interpolate-recomputed": lambda x: F.interpolate(
        x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True
    ),
    "interpolate-corners": lambda x: F.interpolate(x, size=(9, 11), mode="bilinear", align_corners=True),
    "interpolate-bicubic": lambda x: F.interpolate(x, size=(9, 11), mode="bicubic"),
    "interpolate-linear": lambda x: F.interpolate(row(x), size=11, mode="linear"),
    "interpolate-area": lambda x: F.interpolate(x, size=(3, 2), mode="area"),
    "upsample": lambda x: F.upsample(x, scale_factor=2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 3),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "max_pool1d": lambda x: F.max_pool1d(row(x), 2),
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool2d-ceil": lambda x: F.max_pool2d(x, 2, 3, ceil_mode=True),
    "max_pool2d-dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
    "max_pool3d": lambda x: F.max_pool3d(volume(x), (1, 2, 3)),
    "avg_pool1d": lambda x: F.avg_pool1d(row(x), 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool2d-without-pad": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_pool2d-ceil": lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True),
    "avg_pool2d-ceil-pad": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_pool2d-divisor": lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
    "avg_pool3d": lambda x: F.avg_pool3d(volume(x), (1, 2, 2)),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(row(x), 3),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "adaptive_avg_pool2d-one": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_avg_pool2d-overlapping": lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    "adaptive_avg_pool2d-one-axis": lambda x: F.adaptive_avg_pool2d(x, (6, 4)),
    "adaptive_avg_pool2d-larger": lambda x: F.adaptive_avg_pool2d(x, (8, 6)),
    "adaptive_avg_pool2d-same": lambda x: F.adaptive_avg_pool2d(x, (None, 3)),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(volume(x), (1, 2, 2)),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(row(x), 3),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (2, 3)),
    "adaptive_max_pool2d-overlapping": lambda x: F.adaptive_max_pool2d(x, (4, 3)),
    "adaptive_max_pool2d-one": lambda x: F.adaptive_max_pool2d(x, 1),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(volume(x), (1, 2, 2)),
    "mean": lambda x: torch.mean(x, dim=(2, 3)),
    "mean-keepdim": lambda x: torch.mean(x, (-1, -2), keepdim=True),
    "mean-channels": lambda x: torch.mean(x, 1),
    "mean-all": lambda x: x + torch.mean(x),
    "sum": lambda x: torch.sum(x, dim=(1, -1), keepdim=True),
    "sum-of-mask": lambda x: torch.sum(x > 0, dim=1),
    "sum-in-double": lambda x: torch.sum(x, dim=1, dtype=torch.float64),
    "argmax": lambda x: torch.argmax(x, dim=1),
    "argmax-all": lambda x: torch.argmax(x[0]),
    "relu": lambda x: torch.relu(x),
    "F.relu": lambda x: F.relu(x, inplace=False),
    "relu6": lambda x: F.relu6(x * 8),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.25),
    "clamp": lambda x: torch.clamp(x, min=-0.5),
    "clamp-tensors": Held(lambda m, x: torch.clamp(x, -m.least, m.most), least=(6,), most=(6,)),
    "clamp-tensor-min": Held(lambda m, x: torch.clamp(x, min=m.least), least=(6,)),
    "clip": lambda x: torch.clip(x, max=0.25),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.3),
    "prelu": Held(lambda m, x: F.prelu(x, m.slope), slope=(8,)),
    "prelu-one": Held(lambda m, x: F.prelu(x, m.slope), slope=(1,)),
    "elu": lambda x: F.elu(x, 1.5),
    "hardswish": lambda x: F.hardswish(x * 4),
    "hardsigmoid": lambda x: F.hardsigmoid(x * 4),
    "silu": lambda x: F.silu(x),
    "mish": lambda x: F.mish(x),
    "gelu": lambda x: F.gelu(x),
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": lambda x: torch.sigmoid(x),
    "F.sigmoid": lambda x: F.sigmoid(x),
    "softplus": lambda x: F.softplus(x * 40, beta=2),
    "hardshrink": lambda x: F.hardshrink(x, 0.25),
    "softshrink": lambda x: F.softshrink(x, 0.25),
    "tanh": lambda x: torch.tanh(x),
    "F.tanh": lambda x: F.tanh(x),
    "softmax": lambda x: torch.softmax(x, 1),
    "F.softmax-implicit-axis": lambda x: F.softmax(x),
    "F.softmax": lambda x: F.softmax(x, dim=-2),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
    "F.log_softmax": lambda x: F.log_softmax(x, dim=1),
    "abs": lambda x: torch.abs(x),
    "neg": lambda x: torch.neg(x),
    "-x": lambda x: -x,
    "exp": lambda x: torch.exp(x),
    "log": lambda x: torch.log(torch.relu(x) + 0.5),
    "sqrt": lambda x: torch.sqrt(positive(x)),
    "rsqrt": lambda x: torch.rsqrt(positive(x)),
    "pow": lambda x: torch.pow(positive(x), 1.5),
    "**2": lambda x: x**2,
    "2**": lambda x: 2.0**x,
    "erf": lambda x: torch.erf(x),
    "cos": lambda x: torch.cos(x),
    "sin": lambda x: torch.sin(x),
    "cumsum": lambda x: torch.cumsum(x, 1),
    "cumsum-of-mask": lambda x: torch.cumsum(x > 0, dim=-1),
    "&": lambda x: (x > 0) & (x < 1),
    "&-of-integers": lambda x: (x * 9).long() & 3,
    "logical_and": lambda x: torch.logical_and(x > 0, x < 1),
    "|": lambda x: (x < 0) | (x > 1),
    "logical_or": lambda x: torch.logical_or(x < 0, x > 1),
    "~": lambda x: ~(x > 0),
    "logical_not": lambda x: torch.logical_not(x > 0),
    "batch_norm": Held(lambda m, x: F.batch_norm(x, m.mean, m.var, m.w, m.b), mean=(8,), var=(8,), w=(8,), b=(8,)),
    "batch_norm-plain": Held(lambda m, x: F.batch_norm(x, m.mean, m.var, eps=0.1), mean=(8,), var=(8,)),
    "layer_norm": Held(lambda m, x: F.layer_norm(x, (6, 6), m.w, m.b), w=(6, 6), b=(6, 6)),
    "layer_norm-plain": lambda x: F.layer_norm(x, (6,), eps=0.1),
    "rms_norm": Held(lambda m, x: F.rms_norm(x, (6,), m.w, 0.1), w=(6,)),
    "rms_norm-plain": lambda x: F.rms_norm(x, (6, 6)),
    "group_norm": Held(lambda m, x: F.group_norm(x, 2, m.w, m.b), w=(8,), b=(8,)),
    "group_norm-plain": lambda x: F.group_norm(x, 4, eps=0.1),
    "instance_norm": lambda x: F.instance_norm(x),
    "instance_norm-affine": Held(lambda m, x: F.instance_norm(x, weight=m.w, bias=m.b), w=(8,), b=(8,)),
    "==": lambda x: torch.where(torch.relu(x) == 0, x, -x),
    "!=": lambda x: torch.where(torch.relu(x) != 0, x, -x),
    "<": lambda x: x < 0,
    "<=": lambda x: x <= 0,
    ">": lambda x: x > 0,
    ">=": lambda x: x >= 0,
    "H": lambda x: x.flatten(1).H * 2,
    "T-of-volume": lambda x: row(x).T * 2,
    "twice-the-batch": lambda x: torch.cat([x, x]) + torch.cat([x, -x]),
    "one-more-than-the-batch": lambda x: torch.cat([x, x[:1]]) * 2,
    "T": lambda x: x.flatten(1).T * 2,
    "mT": lambda x: x.mT,
    "einsum": lambda x: torch.einsum("bchw,bdhw->bcd", x, x),
    "einsum-axes": lambda x: torch.einsum(x, [0, 1, 2, 3], x, [0, 4, 2, 3], [0, 1, 4]),
    "einsum-axes-alone": lambda x: torch.einsum(x, [..., 2, 3], x, [..., 3, 4]),
    "einsum-list": lambda x: torch.einsum("bchw,bdhw->bcd", [x, x]),
    "einsum-diagonal": lambda x: torch.einsum("bchh->bch", x),
    "tril": lambda x: torch.tril(x, -1),
    "triu": lambda x: torch.triu(x),
    "einsum-ellipsis": lambda x: torch.einsum("...hw,...kw->...hk", x, x),
    "modulo": lambda x: (x * 3) % 2,
    "modulo-negative": lambda x: (x * 3) % -2,
    "floor-division-of-integers": lambda x: (x * 9).long() // 4,
    "modulo-integers": lambda x: (x * 9).long() % 4,
    "modulo-sizes": lambda x: x.reshape(x.shape[0] % 100, -1),
    "arange": lambda x: x + torch.arange(x.shape[0]).reshape(-1, 1, 1, 1),
    "arange-from": lambda x: x + torch.arange(1, 2 * x.shape[0], 2, dtype=torch.float32).reshape(-1, 1, 1, 1),
    "arange-like": lambda x: x + torch.arange(x.shape[-1]),
    "full": lambda x: x + torch.full((x.shape[3],), 0.5),
}

METHOD_CASES = {
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(1),
    "matmul": lambda x: x.matmul(x),
    "bmm": lambda x: row(x).bmm(row(x).transpose(1, 2)),
    "__matmul__": lambda x: x.__matmul__(x),
    "add": lambda x: x.add(x, alpha=2),
    "add_": in_place("add_", 1),
    "sub": method("sub", 1),
    "sub_": in_place("sub_", 1),
    "mul": method("mul", 2),
    "mul_": in_place("mul_", 2),
    "div": method("div", 2),
    "div_": in_place("div_", 2),
    "true_divide": method("true_divide", 2),
    "floor_divide": method("floor_divide", 0.5),
    "remainder": method("remainder", 0.3),
    "view": lambda x: x.view(x.size(0), -1),
    "view_as": lambda x: x.view_as(x.flatten(2)),
    "reshape": method("reshape", -1, 8, 36),
    "reshape_as": lambda x: x.reshape_as(x.flatten(1)),
    "flatten": method("flatten", 1),
    "unflatten": method("unflatten", 1, (2, 4)),
    "squeeze": lambda x: x[:, :, :1].squeeze(2),
    "unsqueeze": method("unsqueeze", 1),
    "permute": method("permute", 0, 3, 1, 2),
    "transpose": method("transpose", 1, 2),
    "t": lambda x: x.flatten(1).t() * 2,
    "contiguous": lambda x: x.permute(0, 2, 3, 1).contiguous(),
    "data": lambda x: x.data.reshape(x.data.size(0), -1),
    "clone": method("clone"),
    "detach": method("detach"),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: x.split(3, dim=1),
    "narrow": method("narrow", 1, 2, 3),
    "unbind": lambda x: x.unbind(1)[2],
    "select": method("select", 1, 3),
    "gather": lambda x: x.gather(-1, (x > 0).long()),
    "index_select": Held(lambda m, x: x.index_select(2, (m.i > 0.5).long()), i=(3,)),
    "expand": lambda x: x[:, :1].expand(-1, 3, -1, -1),
    "expand-free": lambda x: x[:1].expand(x.shape[0], 8, 6, 6) + x,
    "expand-more": lambda x: x.mean((2, 3)).expand(2, -1, -1),
    "expand_as": lambda x: x[:, :1].expand_as(x),
    "repeat": method("repeat", 1, 2, 1, 1),
    "repeat-more": lambda x: x.repeat(2, 1, 1, 1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "repeat_interleave-function": lambda x: torch.repeat_interleave(x, 3, dim=-1),
    "mean": method("mean", (2, 3)),
    "mean-line": lambda x: row(x).mean(2),
    "sum": method("sum", 1),
    "argmax": method("argmax", 1),
    "relu": method("relu"),
    "relu_": in_place("relu_"),
    "clamp": method("clamp", 0.0, 0.5),
    "clamp_": in_place("clamp_", 0.0),
    "sigmoid": method("sigmoid"),
    "sigmoid_": in_place("sigmoid_"),
    "tanh": method("tanh"),
    "tanh_": in_place("tanh_"),
    "softmax": method("softmax", -1),
    "log_softmax": method("log_softmax", 1),
    "abs": method("abs"),
    "neg": method("neg"),
    "exp": method("exp"),
    "log": lambda x: (torch.relu(x) + 0.5).log(),
    "sqrt": lambda x: positive(x).sqrt(),
    "rsqrt": lambda x: positive(x).rsqrt(),
    "cos": lambda x: x.cos(),
    "sin": lambda x: x.sin(),
    "cumsum": lambda x: x.cumsum(2),
    "logical_and": lambda x: (x > 0).logical_and(x < 1),
    "logical_or": lambda x: (x < 0).logical_or(x > 1),
    "logical_not": lambda x: (x > 0).logical_not(),
    "int": lambda x: (x * 3).int(),
    "bool": lambda x: (x > 0).long().bool(),
    "pow": lambda x: x.pow(3),
    "pow-tensor": lambda x: positive(x).pow(x),
    "size": lambda x: x.reshape(x.size()[0], -1),
    "to": lambda x: (x > 0).to(torch.float32),
    "to-like": lambda x: (x > 0).to(x),
    "type_as": lambda x: (x > 0).type_as(x),
    "float": lambda x: (x > 0).float(),
    "half": lambda x: x.half(),
    "long": lambda x: (x * 3).long(),
    "eq": lambda x: torch.relu(x).eq(0),
    "masked_fill": lambda x: x.masked_fill(x > 0, -1.0),
    "new_zeros": lambda x: torch.cat([x, x.new_zeros(x.shape[0], 8, 1, 6)], 2),
    "new_ones": lambda x: x * x.new_ones(x.shape),
    "new_full": lambda x: x + x.new_full((x.shape[0], 1, 1, 1), 0.5),
    "numel": lambda x: x.reshape(x[:, 0, 0, 0].numel(), -1),
    "dim": lambda x: x.flatten(x.dim() - 2),
}


class Rows(nn.Module):
    """A module for sequences, on the rows of the plane."""

    def __init__(self, op: nn.Module):
        super().__init__()
        self.op = op

    def forward(self, x: Tensor):
        return self.op(row(x))


class Volumes(Rows):
    def forward(self, x: Tensor):
        return self.op(volume(x))


class Signs(Rows):
    def forward(self, x: Tensor):
        return self.op((x > 0).long())


class Bags(Rows):
    def forward(self, x: Tensor):
        return self.op((x[:, 0, 0] > 0).long())


class Pairs(Rows):
    def forward(self, x: Tensor):
        return self.op(row(x), row(x) * 2)


class Tokens(Rows):
    def forward(self, x: Tensor):
        return self.op(row(x), row(x), row(x))[0]


def lively(norm: nn.Module) -> nn.Module:
    for tensor in (*norm.parameters(), *norm.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5)
    return norm


class Sized(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2)

    def forward(self, x: Tensor):
        return self.up(x, output_size=(14, 13))


MODULE_CASES = {
    "Conv1d": Rows(nn.Conv1d(8, 4, 3, padding=1)),
    "Conv2d": nn.Conv2d(8, 4, 3, stride=2, padding=1, groups=4),
    "Conv2d-reflect": nn.Conv2d(8, 4, 3, padding=(1, 2), padding_mode="reflect"),
    "Conv2d-circular-same": nn.Conv2d(8, 4, (3, 4), padding="same", padding_mode="circular"),
    "Conv2d-replicate": nn.Conv2d(8, 4, 3, padding=1, padding_mode="replicate", bias=False),
    "Conv3d": Volumes(nn.Conv3d(8, 4, (1, 3, 3), padding=(0, 1, 1))),
    "ConvTranspose1d": Rows(nn.ConvTranspose1d(8, 4, 3, 2, 1, 1)),
    "ConvTranspose2d": nn.ConvTranspose2d(8, 4, 3, 2, 1, 1, groups=2),
    "ConvTranspose2d-size": Sized(),
    "ConvTranspose3d": Volumes(nn.ConvTranspose3d(8, 4, (1, 2, 2))),
    "Linear": nn.Linear(6, 5),
    "Embedding": Signs(nn.Embedding(2, 4)),
    "EmbeddingBag": Bags(nn.EmbeddingBag(2, 4)),
    "EmbeddingBag-sum": Bags(nn.EmbeddingBag(2, 4, mode="sum")),
    "EmbeddingBag-max": Bags(nn.EmbeddingBag(2, 4, mode="max")),
    "BatchNorm1d": Rows(lively(nn.BatchNorm1d(8))),
    "BatchNorm2d": nn.Sequential(nn.ReLU(), lively(nn.BatchNorm2d(8))),
    "BatchNorm2d-plain": nn.Sequential(nn.ReLU(), lively(nn.BatchNorm2d(8, affine=False))),
    "BatchNorm3d": Volumes(lively(nn.BatchNorm3d(8))),
    "SyncBatchNorm": nn.Sequential(nn.ReLU(), lively(nn.SyncBatchNorm(8))),
    "LayerNorm": lively(nn.LayerNorm((6, 6))),
    "LayerNorm-plain": nn.LayerNorm(6, elementwise_affine=False),
    "RMSNorm": lively(nn.RMSNorm(6)),
    "GroupNorm": lively(nn.GroupNorm(2, 8)),
    "InstanceNorm1d": Rows(nn.InstanceNorm1d(8, affine=True)),
    "InstanceNorm2d": nn.InstanceNorm2d(8),
    "InstanceNorm2d-running": lively(nn.InstanceNorm2d(8, affine=True, track_running_stats=True)),
    "InstanceNorm3d": Volumes(nn.InstanceNorm3d(8)),
    "LocalResponseNorm": nn.LocalResponseNorm(3, alpha=0.5, beta=0.5, k=2.0),
    "ReLU": nn.ReLU(inplace=True),
    "ReLU6": nn.ReLU6(),
    "Hardtanh": nn.Hardtanh(-0.5, 0.5),
    "LeakyReLU": nn.LeakyReLU(0.2),
    "PReLU": nn.PReLU(8, init=0.1),
    "RReLU": nn.RReLU(0.1, 0.3),
    "ELU": nn.ELU(0.5),
    "Hardswish": nn.Hardswish(),
    "Hardsigmoid": nn.Hardsigmoid(),
    "SiLU": nn.SiLU(),
    "Mish": nn.Mish(),
    "Hardshrink": nn.Hardshrink(),
    "Softshrink": nn.Softshrink(),
    "GELU": nn.GELU("tanh"),
    "Sigmoid": nn.Sigmoid(),
    "Softplus": nn.Softplus(beta=3),
    "Tanh": nn.Tanh(),
    "Softmax": nn.Softmax(1),
    "Softmax2d": nn.Softmax2d(),
    "LogSoftmax": nn.LogSoftmax(-1),
    "MaxPool1d": Rows(nn.MaxPool1d(3, 2, 1)),
    "MaxPool2d": nn.MaxPool2d(3, 2, ceil_mode=True),
    "MaxPool3d": Volumes(nn.MaxPool3d((1, 2, 2))),
    "AvgPool1d": Rows(nn.AvgPool1d(3, 2, 1)),
    "AvgPool2d": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "AvgPool3d": Volumes(nn.AvgPool3d((1, 2, 2))),
    "AdaptiveAvgPool1d": Rows(nn.AdaptiveAvgPool1d(2)),
    "AdaptiveAvgPool2d": nn.AdaptiveAvgPool2d((3, 1)),
    "AdaptiveAvgPool3d": Volumes(nn.AdaptiveAvgPool3d(1)),
    "AdaptiveMaxPool1d": Rows(nn.AdaptiveMaxPool1d(1)),
    "AdaptiveMaxPool2d": nn.AdaptiveMaxPool2d(3),
    "AdaptiveMaxPool3d": Volumes(nn.AdaptiveMaxPool3d((1, 1, 2))),
    "Upsample": nn.Upsample(scale_factor=2),
    "Upsample-bilinear": nn.Upsample(size=(11, 7), mode="bilinear", align_corners=True),
    "UpsamplingNearest2d": nn.UpsamplingNearest2d(scale_factor=2),
    "UpsamplingBilinear2d": nn.UpsamplingBilinear2d(size=(8, 8)),
    "PixelShuffle": nn.PixelShuffle(2),
    "PixelUnshuffle": nn.PixelUnshuffle(2),
    "ChannelShuffle": nn.ChannelShuffle(4),
    "Flatten": nn.Flatten(2),
    "Unflatten": nn.Unflatten(1, (4, 2)),
    "ZeroPad2d": nn.ZeroPad2d((1, 0, 2, 1)),
    "ConstantPad1d": Rows(nn.ConstantPad1d(1, 0.5)),
    "ConstantPad2d": nn.ConstantPad2d(1, -0.5),
    "ReflectionPad2d": nn.ReflectionPad2d(2),
    "ReplicationPad2d": nn.ReplicationPad2d((1, 0, 2, 1)),
    "Identity": nn.Identity(),
    "Dropout": nn.Dropout(),
    "Dropout1d": Rows(nn.Dropout1d()),
    "Dropout2d": nn.Dropout2d(),
    "Dropout3d": Volumes(nn.Dropout3d()),
    "AlphaDropout": nn.AlphaDropout(),
    "LSTM-by-torch": Rows(nn.LSTM(6, 3, batch_first=True)),
    "Bilinear-by-torch": Pairs(nn.Bilinear(6, 6, 3)),
    "MultiheadAttention": Tokens(nn.MultiheadAttention(6, 2, batch_first=True)),
    "GRU-by-torch": Rows(nn.GRU(6, 3, batch_first=True, bidirectional=True)),
}

CASES = {
    **{f"function-{name}": op for name, op in FUNCTION_CASES.items()},
    **{f"method-{name}": op for name, op in METHOD_CASES.items()},
    **{f"module-{name}": op for name, op in MODULE_CASES.items()},
}


@pytest.mark.filterwarnings("ignore:Using padding='same'", "ignore:`nn.functional.upsample`", "ignore:Implicit dim")
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize("name", CASES)
def test_an_operation_is_written_as_torch_computes_it(name):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6)
    prepared = prepared_for(Net(CASES[name]), (x,), "academic")
    written = export(prepared, opset=21)
    model = write_qdq(write_functions_in_steps(written.network))
    onnx.checker.check_model(model, full_check=True)
    assert written.notes == []
    for batch in (2, 5):
        data = x.repeat(3, 1, 1, 1)[:batch] * 1.25
        with torch.no_grad():
            wanted = tensors_of(prepared(data))
        found = float_path(model, [data])
        assert len(found) == len(wanted)
        for ours, theirs in zip(wanted, found, strict=True):
            assert ours.shape == theirs.shape
            assert str(ours.dtype).removeprefix("torch.") == str(theirs.dtype)
            # Float32 sums in another order, and exp or erf of another library.
            np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-4, atol=1e-5)


LOWERED = [op for op in TORCH_OPS if op.name in LOWERINGS]
FUNCTIONS = {function for op in LOWERED for function in op.functions}
METHODS = {spelling for op in LOWERED for spelling in op.spellings if isinstance(spelling, str)}
MODULES = {module for op in LOWERED for module in op.modules}


def targets(name: str) -> tuple[set[object], set[str], set[type]]:
    """What the graph of a case calls: functions, methods, modules."""

    class Whole(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
            return type(m) in MODULES or super().is_leaf_module(m, qualified_name)

    root = Net(CASES[name])
    graph = Whole().trace(root)
    functions = {node.target for node in graph.nodes if node.op == "call_function"}
    methods = {node.target for node in graph.nodes if node.op == "call_method"}
    called = {type(root.get_submodule(node.target)) for node in graph.nodes if node.op == "call_module"}
    return functions, methods, called


@pytest.mark.filterwarnings("ignore:Implicit dim", "ignore:`nn.functional.upsample`")
def test_every_spelling_has_a_case():
    seen = [targets(name) for name in CASES]
    functions = set().union(*(functions for functions, _, _ in seen))
    methods = set().union(*(methods for _, methods, _ in seen))
    modules = set().union(*(modules for _, _, modules in seen))
    # torch.fx shows these as other operations; a graph that was not traced may hold them. Capturing makes the last one.
    assert FUNCTIONS - functions == {
        *(operator.iadd, operator.isub, operator.imul, operator.itruediv),
        *(F.sigmoid, F.tanh, F.upsample),
        stft_channels,
    }
    assert METHODS - methods == {"__matmul__"}
    assert MODULES - modules == set()


def test_every_operation_has_a_lowering_or_a_reason_why_not():
    assert {op.name for op in TORCH_OPS if not op.unlowered} == set(LOWERINGS)


def test_operations_without_a_lowering():
    torch_writes, numbers = "torch.onnx writes it", "made of plain numbers: computed when the network is exported"
    assert {op.name: op.unlowered for op in TORCH_OPS if op.unlowered} == {
        "lstm": torch_writes,
        "gru": torch_writes,
        "bilinear": torch_writes,
        "repeat_interleave": torch_writes,
        "tensor": numbers,
        "dim": numbers,
    }


def test_kinds_without_a_lowering():
    assert set(KINDS) - {kind for op in LOWERED for kind in (op.kind, op.global_kind)} == {
        *("lstm", "gru"),  # torch.onnx writes them
        *("quant_stub", "dequant_stub"),  # nothing in ONNX
        "conv_pad",  # pads that belong to a convolution of an ONNX file, which is annotated
        "opaque",  # an operation of the user's own, which torch.onnx writes
    }


REFUSED = {
    "a batch norm that keeps no statistics": nn.Sequential(nn.ReLU(), nn.BatchNorm2d(8, track_running_stats=False)),
    "the statistics of the batch": Held(
        lambda m, x: F.batch_norm(torch.relu(x), m.mean, m.var, training=True), mean=(8,), var=(8,)
    ),
    "returns indices": nn.MaxPool2d(2, return_indices=True),
    "its own divisor and ceil_mode": lambda x: F.avg_pool2d(x, 4, ceil_mode=True, divisor_override=3),
    "it lists places": lambda x: torch.where(x > 0)[0],
    "distances of the norm 3": lambda x: torch.cdist(row(x), row(x), p=3),
    "mixes tensors and other indices": lambda x: x[:, [0, 1], :, [1, 0]],
    "indexes with a mask": lambda x: x[x > 0],
    "mode 'bilinear', antialias True": lambda x: F.interpolate(x, size=(3, 3), mode="bilinear", antialias=True),
    "a window of 4 channels": nn.LocalResponseNorm(4),
    "torch.roll without dims": lambda x: torch.roll(x, 1),
}


@pytest.mark.parametrize("found", REFUSED)
def test_what_cannot_be_written_is_refused_by_name(found):
    torch.manual_seed(0)
    prepared = prepared_for(Net(REFUSED[found]), (torch.randn(2, 3, 6, 6),), "academic")
    with pytest.raises(DeployError, match=found) as caught:
        export(prepared, opset=21)
    written = {node.name for node in next(iter(prepared.graphs.values())).nodes}
    assert caught.value.asked.split("'")[1] in written


@pytest.mark.parametrize(
    "name",
    [
        *("function-interpolate-size", "function-interpolate-corners", "function-mean-channels", "function-sum"),
        *("function-gelu", "function-gelu-tanh", "function-rms_norm", "function-group_norm", "module-Upsample"),
    ],
)
def test_an_operation_is_written_in_an_older_opset(name):
    """17 is what targets get that name none; reductions, Resize and Gelu changed since."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6)
    prepared = prepared_for(Net(CASES[name]), (x,), "academic")
    model = write_qdq(write_functions_in_steps(export(prepared, opset=17).network))
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    for data in (x, x.repeat(2, 1, 1, 1)[:3]):
        with torch.no_grad():
            wanted = prepared(data).numpy()
        np.testing.assert_allclose(float_path(model, [data])[0], wanted, rtol=1e-4, atol=1e-5)


def test_sizes_that_are_not_equal_have_different_names():
    """A runtime may give two tensors of the same free sizes the same memory."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6)
    prepared = prepared_for(Net(lambda y: (torch.cat([y, y]), torch.cat([y, y[:1]]), y.sum(1))), (x,), "academic")
    network = export(prepared, opset=21).network
    assert [output.shape[0] for output in network.outputs] == ["2*batch", "batch+1", "batch"]
    assert next(iter(network.inputs.values())).shape[0] == "batch"


def test_a_batch_size_that_is_built_in_is_fixed_and_said():
    torch.manual_seed(0)
    prepared = prepared_for(Net(lambda y: y.view(2, 288)), (torch.randn(2, 3, 6, 6),), "academic")
    written = export(prepared, opset=21)
    assert next(iter(written.network.inputs.values())).shape[0] == 2
    assert len(written.notes) == 1
    assert written.notes[0].startswith("the batch size is fixed at 2: with 4 the model fails")


class OfItself(nn.Module):
    """A kernel for each sample, computed from it."""

    def forward(self, x: Tensor):
        kernels = x.mean(3).reshape(-1, 1, 2, 3)
        return F.conv2d(x.reshape(1, -1, 6, 6), kernels, groups=8 * x.shape[0])


@pytest.mark.parametrize(
    ("op", "found"),
    [
        pytest.param(OfItself(), "a group for each sample", id="groups"),
        pytest.param(lambda x: torch.chunk(x, 2)[0], "it splits the batch", id="parts"),
        pytest.param(lambda x: x.transpose(0, 1)[[0, 1], [1, 0]], "it indexes the batch", id="places"),
    ],
)
def test_what_no_file_holds_for_any_batch_is_written_for_one(op, found):
    torch.manual_seed(0)
    prepared = prepared_for(Net(op), (torch.randn(2, 3, 6, 6),), "academic")
    written = export(prepared, opset=21)
    assert next(iter(written.network.inputs.values())).shape[0] == 2
    assert len(written.notes) == 1
    assert written.notes[0].startswith("the batch size is fixed at that of the example: ")
    assert found in written.notes[0]


def test_a_fixed_batch_size_can_be_asked_for():
    torch.manual_seed(0)
    prepared = prepared_for(Net(lambda y: torch.chunk(y, 2)[0]), (torch.randn(2, 3, 6, 6),), "academic")
    written = export(prepared, opset=21, dynamic_batch=False)
    assert written.network.outputs[0].shape == (1, 8, 6, 6)


@pytest.mark.parametrize(
    ("op", "found"),
    [
        (lambda m, x: F.embedding_bag((x[:, 0, 0, 0] > 0).long(), m.w, torch.tensor([0, 1])), "it has offsets"),
        (lambda m, x: F.embedding_bag((x[:, 0, 0] > 0).long(), m.w, padding_idx=0), "it has padding_idx"),
    ],
    ids=["offsets", "padding"],
)
def test_bags_of_their_own_sizes_are_refused(op, found):
    prepared = prepared_for(Net(Held(op, w=(2, 3))), (torch.randn(2, 3, 6, 6),), "academic")
    with pytest.raises(DeployError, match=found):
        export(prepared, opset=21)


def test_what_the_exporter_refuses_is_said_in_plain_text():
    prepared = prepared_for(Net(torch.linalg.svdvals), (torch.randn(2, 3, 6, 6),), "academic")
    with pytest.raises(DeployError, match=r"No ONNX function found for .*linalg_svd") as refused:
        export(prepared, opset=21)
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 3


def test_a_part_that_the_exporter_writes_as_a_loop_is_refused():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(2, 3)

        def forward(self, x):
            return self.bag((x[:, 0, 0, 0] > 0).long(), torch.tensor([0, 1]))

    x = torch.randn(2, 3, 6, 6)
    prepared = prepared_for(Net(Bag()), (x,), "academic", leaf_modules=[Bag])
    with pytest.raises(DeployError, match="writes it with Loop"):
        export(prepared, opset=21)


class BoundedIntegers(nn.Module):
    """As the mean over the tokens of a mask: `mask.sum(1).clamp(min=1e-9)`."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(16, 8), nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        count = ids.sum(1, keepdim=True).unsqueeze(-1)
        return self.head(self.table(ids) / count.clamp(min=1e-9) + count.clamp(1, 3))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert"])
def test_integers_are_clipped_in_the_type_that_torch_gives(backend: str, tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert" if backend == "litert" else backend)
    torch.manual_seed(0)
    ids = torch.randint(0, 16, (2, 5))
    prepared = detent.prepare(BoundedIntegers().eval(), (ids,), backend=backend)
    detent.calibrate(prepared, [ids])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([ids], latency=False)
    assert verdict.holds, verdict
