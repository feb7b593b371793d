"""One entry per torch operation: its spellings, its kind, its parameters and how it lowers.

torch has one operation as a module class, as functions and as tensor methods. Each of these spellings stands in exactly
one entry. The exporter has a lowering to ONNX under the name of each entry. It is called as torch's function is; the
call of a module becomes such a call by the module's parameters and attributes. A new operation is an entry here and a
lowering there.
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

from detent.graph.decompositions.spectra import stft_channels
from detent.graph.kinds import KINDS, Kind

__all__ = [
    "TORCH_OPS",
    "TorchOp",
    "called_module",
    "is_known_module",
    "kind_of",
    "known_class",
    "module_op",
    "torch_op",
]

Spelling = type[nn.Module] | Callable[..., Any] | str
"""A module's class, a function, or the name of a tensor method."""


@dataclass(frozen=True)
class TorchOp:
    """An operation of torch.

    `parameters` and `attributes` are those of its modules that its functions take as arguments, by the same names and
    in the same order; `parameters` are tensors. `global_kind` is its kind where it takes in the whole plane of each
    channel. `unlowered` is why it has no lowering: the exporter leaves it to torch.onnx, or never meets it.
    """

    name: str
    kind: str
    spellings: tuple[Spelling, ...]
    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    global_kind: str = ""
    unlowered: str = ""

    @property
    def modules(self) -> tuple[type[nn.Module], ...]:
        return tuple(each for each in self.spellings if isinstance(each, type))

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return tuple(each for each in self.spellings if not isinstance(each, (type, str)))

    def module_for(self, function: Any) -> type[nn.Module]:
        """The module class with the weight that is an argument of `function`: the first class for the first function,
        and so on."""
        return self.modules[self.functions.index(function)]


def _op(name: str, *spellings: Spelling, kind: str = "", **known: Any) -> TorchOp:
    """An operation that has the kind of its own name, unless another is given."""
    return TorchOp(name, kind or name, spellings, **known)


_WINDOW = ("kernel_size", "stride", "padding")
_BY_TORCH = "torch.onnx writes it"
_NUMBERS = "made of plain numbers: computed when the network is exported"

TORCH_OPS: tuple[TorchOp, ...] = (
    # arithmetic with weights
    _op(
        "conv", nn.Conv1d, nn.Conv2d, nn.Conv3d, F.conv1d, F.conv2d, F.conv3d,
        parameters=("weight", "bias"), attributes=("stride", "padding", "dilation", "groups", "padding_mode"),
    ),
    _op(
        "conv_transpose", nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
        F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
        parameters=("weight", "bias"), attributes=("stride", "padding", "output_padding", "groups", "dilation"),
    ),
    _op("linear", nn.Linear, F.linear, parameters=("weight", "bias")),
    _op(
        "embedding", nn.Embedding, F.embedding,
        parameters=("weight",), attributes=("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
    ),
    _op(
        "embedding_bag", nn.EmbeddingBag, F.embedding_bag,
        parameters=("weight",), attributes=("max_norm", "mode", "padding_idx"),
    ),
    _op("lstm", nn.LSTM, unlowered=_BY_TORCH),
    _op("gru", nn.GRU, unlowered=_BY_TORCH),
    # arithmetic between tensors
    _op("matmul", torch.matmul, torch.bmm, torch.mm, operator.matmul, "matmul", "bmm", "__matmul__"),
    _op("bilinear", nn.Bilinear, kind="matmul", unlowered=_BY_TORCH),
    _op("einsum", torch.einsum),
    _op("add", operator.add, operator.iadd, torch.add, "add", "add_"),
    _op("sub", operator.sub, operator.isub, torch.sub, "sub", "sub_"),
    _op("mul", operator.mul, operator.imul, torch.mul, "mul", "mul_"),
    _op("div", operator.truediv, operator.itruediv, torch.div, torch.true_divide, "div", "div_", "true_divide"),
    _op("maximum", torch.maximum),
    _op("minimum", torch.minimum),
    _op("where", torch.where),
    _op("masked_fill", torch.masked_fill, "masked_fill", kind="where"),
    _op("tril", torch.tril, "tril", kind="where"),
    _op("triu", torch.triu, "triu", kind="where"),
    # joining, splitting, moving
    _op("concat", torch.cat, torch.concat),
    _op("stack", torch.stack, kind="concat"),
    _op(
        "reshape", nn.Flatten, nn.Unflatten, torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze,
        "view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze",
    ),
    _op("permute", torch.permute, "permute", kind="transpose"),
    _op("transpose", torch.transpose, "transpose"),
    _op("t", "t", kind="transpose"),
    _op("channel_shuffle", nn.ChannelShuffle, kind="transpose", attributes=("groups",)),
    _op("roll", torch.roll, kind="transpose"),
    _op("flip", torch.flip, kind="transpose"),
    _op("getitem", operator.getitem, kind="slice"),
    _op("chunk", torch.chunk, "chunk", kind="slice"),
    _op("split", torch.split, "split", kind="slice"),
    _op("narrow", torch.narrow, "narrow", kind="slice"),
    _op("unbind", torch.unbind, "unbind", kind="slice"),
    _op("select", "select", kind="slice"),
    _op("gather", torch.gather, "gather"),
    _op("index_select", torch.index_select, "index_select", kind="gather"),
    _op("expand", "expand", "expand_as"),
    _op("repeat", "repeat", kind="expand"),
    _op("repeat_interleave", torch.repeat_interleave, "repeat_interleave", kind="expand", unlowered=_BY_TORCH),
    _op("pixel_shuffle", nn.PixelShuffle, F.pixel_shuffle, attributes=("upscale_factor",)),
    _op(
        "pixel_unshuffle", nn.PixelUnshuffle, F.pixel_unshuffle,
        kind="pixel_shuffle", attributes=("downscale_factor",),
    ),
    _op("identity", nn.Identity, "contiguous", "clone", "detach"),
    _op("dropout", nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, F.dropout),
    _op("pad", F.pad),
    _op(
        "constant_pad", nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d,
        kind="pad", attributes=("padding", "value"),
    ),
    _op("reflection_pad", nn.ReflectionPad2d, kind="pad", attributes=("padding",)),
    _op("replication_pad", nn.ReplicationPad2d, kind="pad", attributes=("padding",)),
    _op(
        "resize", nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d, F.interpolate, F.upsample,
        attributes=("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor"),
    ),
    # pooling and sums
    _op(
        "max_pool", nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, F.max_pool1d, F.max_pool2d, F.max_pool3d,
        kind="maxpool", attributes=(*_WINDOW, "dilation", "ceil_mode", "return_indices"),
    ),
    _op(
        "avg_pool", nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d,
        kind="avgpool", attributes=(*_WINDOW, "ceil_mode", "count_include_pad", "divisor_override"),
    ),
    _op(
        "adaptive_max_pool", nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
        F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d,
        kind="maxpool", global_kind="global_maxpool", attributes=("output_size", "return_indices"),
    ),
    _op(
        "adaptive_avg_pool", nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
        F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d,
        kind="avgpool", global_kind="global_avgpool", attributes=("output_size",),
    ),
    _op("mean", torch.mean, "mean", global_kind="global_avgpool"),
    _op("sum", torch.sum, "sum"),
    # activations
    _op("relu", nn.ReLU, torch.relu, F.relu, "relu", "relu_"),
    _op("relu6", nn.ReLU6, F.relu6),
    _op("hardtanh", nn.Hardtanh, F.hardtanh, kind="clip", attributes=("min_val", "max_val")),
    _op("clip", torch.clamp, torch.clip, "clamp", "clamp_"),
    _op("leaky_relu", nn.LeakyReLU, F.leaky_relu, attributes=("negative_slope",)),
    _op("rrelu", nn.RReLU, F.rrelu, kind="leaky_relu", attributes=("lower", "upper")),  # random in training alone
    _op("prelu", nn.PReLU, F.prelu, parameters=("weight",)),
    _op("elu", nn.ELU, F.elu, attributes=("alpha",)),
    _op("hardswish", nn.Hardswish, F.hardswish),
    _op("hardsigmoid", nn.Hardsigmoid, F.hardsigmoid),
    _op("silu", nn.SiLU, F.silu),
    _op("mish", nn.Mish, F.mish),
    _op("gelu", nn.GELU, F.gelu, attributes=("approximate",)),
    _op("sigmoid", nn.Sigmoid, torch.sigmoid, F.sigmoid, "sigmoid", "sigmoid_"),
    _op("softplus", nn.Softplus, F.softplus, attributes=("beta", "threshold")),
    _op("hardshrink", nn.Hardshrink, F.hardshrink, kind="shrink", attributes=("lambd",)),
    _op("softshrink", nn.Softshrink, F.softshrink, kind="shrink", attributes=("lambd",)),
    _op("tanh", nn.Tanh, torch.tanh, F.tanh, "tanh", "tanh_"),
    _op("softmax", nn.Softmax, torch.softmax, F.softmax, "softmax", attributes=("dim",)),
    _op("softmax2d", nn.Softmax2d, kind="softmax"),
    _op("log_softmax", nn.LogSoftmax, F.log_softmax, torch.log_softmax, "log_softmax", attributes=("dim",)),
    # elementwise functions
    _op("abs", torch.abs, "abs"),
    _op("neg", operator.neg, torch.neg, "neg"),
    _op("exp", torch.exp, "exp"),
    _op("log", torch.log, "log"),
    _op("sqrt", torch.sqrt, "sqrt"),
    _op("rsqrt", torch.rsqrt, "rsqrt"),
    _op("pow", torch.pow, operator.pow, "pow"),
    _op("erf", torch.erf),
    _op("cos", torch.cos, "cos"),
    _op("sin", torch.sin, "sin"),
    _op("cumsum", torch.cumsum, "cumsum"),
    _op("affine_grid", F.affine_grid),
    _op("cdist", torch.cdist),
    _op("stft", stft_channels),
    # normalization
    _op(
        "batch_norm", nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, F.batch_norm,
        kind="batchnorm", parameters=("running_mean", "running_var", "weight", "bias"), attributes=("eps",),
    ),
    _op(
        "instance_norm", nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, F.instance_norm,
        kind="instancenorm", parameters=("running_mean", "running_var", "weight", "bias"),
        attributes=("eps", "track_running_stats"),
    ),
    _op(
        "layer_norm", nn.LayerNorm, F.layer_norm,
        kind="layernorm", parameters=("weight", "bias"), attributes=("normalized_shape", "eps"),
    ),
    _op(
        "rms_norm", nn.RMSNorm, F.rms_norm,
        kind="rmsnorm", parameters=("weight",), attributes=("normalized_shape", "eps"),
    ),
    _op(
        "group_norm", nn.GroupNorm, F.group_norm,
        kind="groupnorm", parameters=("weight", "bias"), attributes=("num_groups", "eps"),
    ),
    _op("local_response_norm", nn.LocalResponseNorm, attributes=("size", "alpha", "beta", "k")),
    # what carries no activations
    _op("zeros", torch.zeros, kind="constant"),
    _op("ones", torch.ones, kind="constant"),
    _op("full", torch.full, kind="constant"),
    _op("zeros_like", torch.zeros_like, kind="constant"),
    _op("ones_like", torch.ones_like, kind="constant"),
    _op("full_like", torch.full_like, kind="constant"),
    _op("new_zeros", "new_zeros", kind="constant"),
    _op("new_ones", "new_ones", kind="constant"),
    _op("new_full", "new_full", kind="constant"),
    _op("arange", torch.arange, kind="constant"),
    _op("tensor", torch.tensor, kind="constant", unlowered=_NUMBERS),
    _op("attribute", getattr, kind="shape"),
    _op("size", "size", kind="shape"),
    _op("numel", "numel", kind="shape"),
    _op("dim", "dim", kind="shape", unlowered=_NUMBERS),
    _op("floor_divide", operator.floordiv, torch.floor_divide, "floor_divide", kind="shape"),
    _op("remainder", operator.mod, torch.remainder, "remainder", kind="shape"),
    _op("eq", operator.eq, "eq", kind="compare"),
    _op("ne", operator.ne, kind="compare"),
    _op("lt", operator.lt, kind="compare"),
    _op("le", operator.le, kind="compare"),
    _op("gt", operator.gt, kind="compare"),
    _op("ge", operator.ge, kind="compare"),
    _op("and", operator.and_, torch.logical_and, "logical_and", kind="compare"),
    _op("or", operator.or_, torch.logical_or, "logical_or", kind="compare"),
    _op("not", operator.invert, torch.logical_not, "logical_not", kind="compare"),
    _op("argmax", torch.argmax, "argmax", kind="compare"),
    _op("cast", "to", "float", "half", "long", "int", "bool"),
    _op("type_as", "type_as", kind="cast"),
)  # fmt: skip

_BY_SPELLING: dict[Any, TorchOp] = {spelling: op for op in TORCH_OPS for spelling in op.spellings}

_DROP_PATHS = ("timm.layers.drop.DropPath", "torchvision.ops.stochastic_depth.StochasticDepth")
"""Modules that leave out whole samples while training: the identity in eval mode, of packages that may not be there."""

_TRANSPOSING = ("T", "mT", "H", "mH")  # attributes that are operations


def torch_op(target: Any) -> TorchOp | None:
    """The operation of a function, or of the name of a tensor method."""
    return _BY_SPELLING.get(target)


def known_class(module: nn.Module) -> type[nn.Module] | None:
    """The closest class of the module in the table: a user's subclass of Conv2d is still a convolution."""
    if f"{type(module).__module__}.{type(module).__qualname__}" in _DROP_PATHS:
        return nn.Identity
    return next((base for base in type(module).__mro__ if base in _BY_SPELLING), None)


def module_op(module: nn.Module) -> TorchOp | None:
    """The operation of a module."""
    return _BY_SPELLING.get(known_class(module))


def is_known_module(module: nn.Module) -> bool:
    """Whether the table has the module's class or one it derives from."""
    return known_class(module) is not None


def called_module(node: Node, modules: Mapping[str, nn.Module]) -> nn.Module | None:
    """The module that a node calls; None of other nodes."""
    return modules.get(str(node.target)) if node.op == "call_module" else None


def kind_of(node: Node, modules: Mapping[str, nn.Module]) -> Kind | None:
    """The kind of a node's operation; None for placeholders, outputs and unknown operations."""
    if node.op == "get_attr":
        return KINDS["constant"]
    if node.target is getattr and node.args[1:] and node.args[1] in _TRANSPOSING:
        return KINDS["transpose"]
    if node.target is getattr and node.args[1:] == ("data",):
        return KINDS["identity"]
    op = torch_op(node.target) if node.op in ("call_function", "call_method") else None
    if node.op == "call_module":
        module = modules[str(node.target)]
        declared = getattr(module, "kind", None)
        if isinstance(declared, str) and declared in KINDS:  # our own modules say it themselves
            return KINDS[declared]
        op = module_op(module)
    if op is None:
        return None
    if op.kind == "cast" and _keeps_type(node):
        return KINDS["identity"]
    return KINDS[op.global_kind if op.global_kind and _is_global(node, op) else op.kind]


def _keeps_type(node: Node) -> bool:
    """Whether `x.float()` or `x.type_as(y)` gives real numbers of the type that they have: it is there for others."""
    source = node.all_input_nodes[0]
    return bool(node.meta.get("is_real")) and source.meta.get("dtype", node) == node.meta.get("dtype")


def _is_global(node: Node, op: TorchOp) -> bool:
    """Whether a pooling covers the whole plane, by the shapes recorded while capturing."""
    source = node.all_input_nodes[0].meta.get("shape") if node.all_input_nodes else None
    target = node.meta.get("shape")
    if source is None or target is None or len(source) < 3:
        return False
    if op.name == "mean":
        dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        dims = [dims] if isinstance(dims, int) else dims
        plane = set(range(2, len(source)))
        return isinstance(dims, (list, tuple)) and {int(d) % len(source) for d in dims} == plane
    return all(size == 1 for size in target[2:])
