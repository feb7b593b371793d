"""One vocabulary of operations: torch modules, functions and tensor methods all map onto it.

A backend speaks of kinds and never of torch classes. What is not in the table has no kind; the Plan says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

__all__ = ["KINDS", "MULTIPLYING", "REORDERING", "Kind", "is_known_module", "kind_of", "known_class"]


@dataclass(frozen=True)
class Kind:
    """What the planner must know of an operation.

    `inputs` is how many leading arguments are data (None: all tensors, also those in a list). `moves` says
    that output values are input values, rearranged or selected, so that the output lies on the input's grid.
    `sign` is 1 if the output is never negative, 0 if it is so where the input is, -1 otherwise. `weight` names
    the parameters that are weights, with the axis of their output channels.
    """

    name: str
    inputs: int | None = 1
    moves: bool = False
    sign: int = -1
    weight: Mapping[str, int] | None = None


def _kinds(*kinds: Kind) -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds}


_OUT0, _OUT1 = {"weight": 0}, {"weight": 1}

KINDS: dict[str, Kind] = _kinds(
    # arithmetic with weights
    Kind("conv", weight=_OUT0),
    Kind("conv_transpose", weight=_OUT1),
    Kind("linear", weight=_OUT0),
    Kind("embedding", inputs=0, weight=_OUT0),
    Kind("lstm", inputs=1),
    Kind("gru", inputs=1),
    # arithmetic between tensors
    Kind("matmul", inputs=2),
    Kind("einsum", inputs=None),
    Kind("attention", inputs=3),
    Kind("add", inputs=2, sign=0),
    Kind("sub", inputs=2),
    Kind("mul", inputs=2, sign=0),
    Kind("div", inputs=2, sign=0),
    Kind("maximum", inputs=2, sign=0),
    Kind("minimum", inputs=2, sign=0),
    Kind("where", inputs=None),
    # joining, splitting, moving
    Kind("concat", inputs=None, moves=True, sign=0),
    Kind("reshape", moves=True, sign=0),
    Kind("transpose", moves=True, sign=0),
    Kind("slice", moves=True, sign=0),
    Kind("gather", moves=True, sign=0),
    Kind("expand", moves=True, sign=0),
    Kind("pad", sign=0),
    Kind("margin", moves=True, sign=0),  # zeros, which every grid has, around what a convolution takes in
    Kind("resize", sign=0),
    Kind("pixel_shuffle", moves=True, sign=0),
    Kind("identity", moves=True, sign=0),
    Kind("dropout", moves=True, sign=0),
    Kind("maxpool", moves=True, sign=0),
    Kind("global_maxpool", moves=True, sign=0),
    # averaging
    Kind("avgpool", sign=0),
    Kind("global_avgpool", sign=0),
    Kind("mean", sign=0),
    Kind("sum", sign=0),
    # activations
    Kind("relu", sign=1),
    Kind("relu6", sign=1),
    Kind("clip"),
    Kind("leaky_relu"),
    Kind("prelu"),
    Kind("elu"),
    Kind("hardswish"),
    Kind("hardsigmoid", sign=1),
    Kind("silu"),
    Kind("mish"),
    Kind("gelu"),
    Kind("sigmoid", sign=1),
    Kind("softplus", sign=1),
    Kind("tanh"),
    Kind("softmax", sign=1),
    Kind("log_softmax"),
    # elementwise functions
    Kind("abs", sign=1),
    Kind("neg"),
    Kind("exp", sign=1),
    Kind("log"),
    Kind("sqrt", sign=1),
    Kind("rsqrt", sign=1),
    Kind("pow"),
    Kind("erf"),
    # normalisation
    Kind("batchnorm"),
    Kind("layernorm"),
    Kind("rmsnorm"),
    Kind("groupnorm"),
    Kind("instancenorm"),
    Kind("local_response_norm"),
    # what carries no activations
    Kind("shape", inputs=0),
    Kind("compare", inputs=0),
    Kind("cast", inputs=0),
    Kind("constant", inputs=0),
    # the borders of what is quantized
    Kind("quant_stub", moves=True, sign=0),
    Kind("dequant_stub", moves=True, sign=0),
)

MULTIPLYING = ("conv", "conv_transpose", "linear", "embedding", "lstm", "gru", "matmul", "einsum", "attention")
"""Kinds that networks are quantized for. One that has none of them has nothing to gain on any target."""

REORDERING = (
    "reshape", "transpose", "expand", "pixel_shuffle", "identity", "dropout", "margin", "quant_stub", "dequant_stub",
)  # fmt: skip
"""Kinds that give every number they take in, and no other but zero: what they give has the same range."""

_MODULES: dict[type[nn.Module], str] = {
    nn.Conv1d: "conv",
    nn.Conv2d: "conv",
    nn.Conv3d: "conv",
    nn.ConvTranspose1d: "conv_transpose",
    nn.ConvTranspose2d: "conv_transpose",
    nn.ConvTranspose3d: "conv_transpose",
    nn.Linear: "linear",
    nn.Bilinear: "matmul",
    nn.Embedding: "embedding",
    nn.LSTM: "lstm",
    nn.GRU: "gru",
    nn.MultiheadAttention: "attention",
    nn.BatchNorm1d: "batchnorm",
    nn.BatchNorm2d: "batchnorm",
    nn.BatchNorm3d: "batchnorm",
    nn.SyncBatchNorm: "batchnorm",
    nn.LayerNorm: "layernorm",
    nn.RMSNorm: "rmsnorm",
    nn.GroupNorm: "groupnorm",
    nn.InstanceNorm1d: "instancenorm",
    nn.InstanceNorm2d: "instancenorm",
    nn.InstanceNorm3d: "instancenorm",
    nn.LocalResponseNorm: "local_response_norm",
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.Hardtanh: "clip",
    nn.LeakyReLU: "leaky_relu",
    nn.PReLU: "prelu",
    nn.ELU: "elu",
    nn.Hardswish: "hardswish",
    nn.Hardsigmoid: "hardsigmoid",
    nn.SiLU: "silu",
    nn.Mish: "mish",
    nn.GELU: "gelu",
    nn.Sigmoid: "sigmoid",
    nn.Softplus: "softplus",
    nn.Tanh: "tanh",
    nn.Softmax: "softmax",
    nn.Softmax2d: "softmax",
    nn.LogSoftmax: "log_softmax",
    nn.MaxPool1d: "maxpool",
    nn.MaxPool2d: "maxpool",
    nn.MaxPool3d: "maxpool",
    nn.AvgPool1d: "avgpool",
    nn.AvgPool2d: "avgpool",
    nn.AvgPool3d: "avgpool",
    nn.AdaptiveAvgPool1d: "avgpool",
    nn.AdaptiveAvgPool2d: "avgpool",
    nn.AdaptiveAvgPool3d: "avgpool",
    nn.AdaptiveMaxPool1d: "maxpool",
    nn.AdaptiveMaxPool2d: "maxpool",
    nn.AdaptiveMaxPool3d: "maxpool",
    nn.Upsample: "resize",
    nn.UpsamplingNearest2d: "resize",
    nn.UpsamplingBilinear2d: "resize",
    nn.PixelShuffle: "pixel_shuffle",
    nn.PixelUnshuffle: "pixel_shuffle",
    nn.ChannelShuffle: "transpose",
    nn.Flatten: "reshape",
    nn.Unflatten: "reshape",
    nn.ZeroPad2d: "pad",
    nn.ConstantPad1d: "pad",
    nn.ConstantPad2d: "pad",
    nn.ReflectionPad2d: "pad",
    nn.ReplicationPad2d: "pad",
    nn.Identity: "identity",
    nn.Dropout: "dropout",
    nn.Dropout1d: "dropout",
    nn.Dropout2d: "dropout",
    nn.Dropout3d: "dropout",
    nn.AlphaDropout: "dropout",
}

_FUNCTIONS: dict[Callable[..., Any], str] = {
    F.conv1d: "conv",
    F.conv2d: "conv",
    F.conv3d: "conv",
    F.conv_transpose1d: "conv_transpose",
    F.conv_transpose2d: "conv_transpose",
    F.conv_transpose3d: "conv_transpose",
    F.linear: "linear",
    F.embedding: "embedding",
    torch.matmul: "matmul",
    torch.bmm: "matmul",
    torch.mm: "matmul",
    operator.matmul: "matmul",
    torch.einsum: "einsum",
    F.scaled_dot_product_attention: "attention",
    operator.add: "add",
    operator.iadd: "add",
    torch.add: "add",
    operator.sub: "sub",
    operator.isub: "sub",
    torch.sub: "sub",
    operator.mul: "mul",
    operator.imul: "mul",
    torch.mul: "mul",
    operator.truediv: "div",
    operator.itruediv: "div",
    torch.div: "div",
    torch.maximum: "maximum",
    torch.minimum: "minimum",
    torch.where: "where",
    torch.cat: "concat",
    torch.concat: "concat",
    torch.stack: "concat",
    torch.flatten: "reshape",
    torch.reshape: "reshape",
    torch.squeeze: "reshape",
    torch.unsqueeze: "reshape",
    torch.permute: "transpose",
    torch.transpose: "transpose",
    torch.chunk: "slice",
    torch.split: "slice",
    torch.narrow: "slice",
    torch.unbind: "slice",
    operator.getitem: "slice",
    torch.gather: "gather",
    torch.index_select: "gather",
    torch.roll: "transpose",
    torch.flip: "transpose",
    F.pad: "pad",
    F.interpolate: "resize",
    F.upsample: "resize",
    F.pixel_shuffle: "pixel_shuffle",
    F.pixel_unshuffle: "pixel_shuffle",
    F.dropout: "dropout",
    F.max_pool1d: "maxpool",
    F.max_pool2d: "maxpool",
    F.max_pool3d: "maxpool",
    F.adaptive_max_pool1d: "maxpool",
    F.adaptive_max_pool2d: "maxpool",
    F.adaptive_max_pool3d: "maxpool",
    F.avg_pool1d: "avgpool",
    F.avg_pool2d: "avgpool",
    F.avg_pool3d: "avgpool",
    F.adaptive_avg_pool1d: "avgpool",
    F.adaptive_avg_pool2d: "avgpool",
    F.adaptive_avg_pool3d: "avgpool",
    torch.mean: "mean",
    torch.sum: "sum",
    torch.relu: "relu",
    F.relu: "relu",
    F.relu6: "relu6",
    F.hardtanh: "clip",
    torch.clamp: "clip",
    torch.clip: "clip",
    F.leaky_relu: "leaky_relu",
    F.prelu: "prelu",
    F.elu: "elu",
    F.hardswish: "hardswish",
    F.hardsigmoid: "hardsigmoid",
    F.silu: "silu",
    F.mish: "mish",
    F.gelu: "gelu",
    torch.sigmoid: "sigmoid",
    F.sigmoid: "sigmoid",
    F.softplus: "softplus",
    torch.tanh: "tanh",
    F.tanh: "tanh",
    torch.softmax: "softmax",
    F.softmax: "softmax",
    F.log_softmax: "log_softmax",
    torch.log_softmax: "log_softmax",
    torch.abs: "abs",
    operator.neg: "neg",
    torch.neg: "neg",
    torch.exp: "exp",
    torch.log: "log",
    torch.sqrt: "sqrt",
    torch.rsqrt: "rsqrt",
    torch.pow: "pow",
    operator.pow: "pow",
    torch.erf: "erf",
    F.batch_norm: "batchnorm",
    F.layer_norm: "layernorm",
    F.rms_norm: "rmsnorm",
    F.group_norm: "groupnorm",
    F.instance_norm: "instancenorm",
    torch.arange: "constant",
    torch.zeros: "constant",
    torch.ones: "constant",
    torch.full: "constant",
    torch.tensor: "constant",
    torch.zeros_like: "constant",
    torch.ones_like: "constant",
    torch.full_like: "constant",
    getattr: "shape",
    operator.floordiv: "shape",
    operator.mod: "shape",
    operator.eq: "compare",
    operator.ne: "compare",
    operator.lt: "compare",
    operator.le: "compare",
    operator.gt: "compare",
    operator.ge: "compare",
    torch.argmax: "compare",
}

_METHODS: dict[str, str] = {
    "matmul": "matmul",
    "bmm": "matmul",
    "__matmul__": "matmul",
    "add": "add",
    "add_": "add",
    "sub": "sub",
    "sub_": "sub",
    "mul": "mul",
    "mul_": "mul",
    "div": "div",
    "div_": "div",
    "view": "reshape",
    "reshape": "reshape",
    "flatten": "reshape",
    "unflatten": "reshape",
    "squeeze": "reshape",
    "unsqueeze": "reshape",
    "permute": "transpose",
    "transpose": "transpose",
    "t": "transpose",
    "contiguous": "identity",
    "clone": "identity",
    "detach": "identity",
    "chunk": "slice",
    "split": "slice",
    "narrow": "slice",
    "unbind": "slice",
    "select": "slice",
    "gather": "gather",
    "index_select": "gather",
    "expand": "expand",
    "expand_as": "expand",
    "repeat": "expand",
    "mean": "mean",
    "sum": "sum",
    "relu": "relu",
    "relu_": "relu",
    "clamp": "clip",
    "clamp_": "clip",
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "tanh": "tanh",
    "tanh_": "tanh",
    "softmax": "softmax",
    "log_softmax": "log_softmax",
    "abs": "abs",
    "neg": "neg",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "pow": "pow",
    "size": "shape",
    "dim": "shape",
    "numel": "shape",
    "to": "cast",
    "type_as": "cast",
    "float": "cast",
    "long": "cast",
    "argmax": "compare",
    "eq": "compare",
    "masked_fill": "where",
    "new_zeros": "constant",
    "new_ones": "constant",
    "new_full": "constant",
}


_TRANSPOSING = ("T", "mT", "H", "mH")  # attributes that are operations

_ADAPTIVE_FUNCTIONS = (
    F.adaptive_avg_pool1d,
    F.adaptive_avg_pool2d,
    F.adaptive_avg_pool3d,
    F.adaptive_max_pool1d,
    F.adaptive_max_pool2d,
    F.adaptive_max_pool3d,
)
_ADAPTIVE_MODULES = (
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
)


def known_class(module: nn.Module) -> type[nn.Module] | None:
    """The nearest class in the table that the module is of."""
    return next((base for base in type(module).__mro__ if base in _MODULES), None)


def is_known_module(module: nn.Module) -> bool:
    """Whether the table has a kind for the module or a class it derives from."""
    return isinstance(module, tuple(_MODULES))


def kind_of(node: Node, modules: Mapping[str, nn.Module]) -> Kind | None:
    """The kind of the operation a node stands for; None for placeholders, outputs and what is not known."""
    name = _name_of(node, modules)
    if name in ("avgpool", "maxpool", "mean") and _is_global(node, modules):
        name = {"avgpool": "global_avgpool", "maxpool": "global_maxpool", "mean": "global_avgpool"}[name]
    return KINDS[name] if name is not None else None


def _name_of(node: Node, modules: Mapping[str, nn.Module]) -> str | None:
    if node.op == "call_module":
        module = modules[str(node.target)]
        declared = getattr(module, "kind", None)
        if isinstance(declared, str) and declared in KINDS:  # our own modules say it themselves
            return declared
        # The nearest base that the table knows: a user's subclass of Conv2d is still a convolution.
        return next((_MODULES[base] for base in type(module).__mro__ if base in _MODULES), None)
    if node.target is getattr and node.args[1:] and node.args[1] in _TRANSPOSING:
        return "transpose"
    if node.op == "call_function":
        return _FUNCTIONS.get(node.target)  # type: ignore[arg-type]
    if node.op == "call_method":
        return _METHODS.get(str(node.target))
    return "constant" if node.op == "get_attr" else None


def _is_global(node: Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a pooling takes the whole plane, read off the shapes that capturing recorded."""
    source = node.all_input_nodes[0].meta.get("shape") if node.all_input_nodes else None
    target = node.meta.get("shape")
    if source is None or target is None or len(source) < 3:
        return False
    if _name_of(node, modules) == "mean":
        dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        dims = [dims] if isinstance(dims, int) else dims
        plane = set(range(2, len(source)))
        return isinstance(dims, (list, tuple)) and {int(d) % len(source) for d in dims} == plane
    adaptive = node.target in _ADAPTIVE_FUNCTIONS or (
        node.op == "call_module" and isinstance(modules[str(node.target)], _ADAPTIVE_MODULES)
    )
    return adaptive and all(size == 1 for size in target[2:])
