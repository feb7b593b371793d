"""How each operation of `detent.graph.TORCH_OPS` is written as ONNX.

A lowering is called as torch's function is, behind the builder: tensors are `Ref`, sizes that depend on the batch
`Free`. It emits nodes and gives what torch's function gives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from detent.frontends.torch import ops_activation as v
from detent.frontends.torch import ops_adaptive as a
from detent.frontends.torch import ops_elementwise as e
from detent.frontends.torch import ops_fill as f
from detent.frontends.torch import ops_geometry as g
from detent.frontends.torch import ops_index as i
from detent.frontends.torch import ops_pad as p
from detent.frontends.torch import ops_reduce as r
from detent.frontends.torch import ops_resize as z
from detent.frontends.torch import ops_shape as s
from detent.frontends.torch import ops_weighted as w
from detent.graph import TorchOp, known_class

__all__ = ["LOWERINGS", "Lowering", "lowering_of", "named_arguments"]

Lowering = Callable[..., Any]

LOWERINGS: Mapping[str, Lowering] = {
    # arithmetic with weights
    "conv": w.conv,
    "conv_transpose": w.conv_transpose,
    "linear": w.linear,
    "embedding": w.embedding,
    "embedding_bag": w.embedding_bag,
    # arithmetic between tensors
    "matmul": w.matmul,
    "einsum": w.einsum,
    "add": e.add,
    "sub": e.sub,
    "mul": e.binary("Mul"),
    "div": e.div,
    "maximum": e.binary("Max"),
    "minimum": e.binary("Min"),
    "where": e.where,
    "masked_fill": e.masked_fill,
    "tril": e.triangle(upper=False),
    "triu": e.triangle(upper=True),
    # joining, splitting, moving
    "concat": s.concat,
    "stack": s.stack,
    "reshape": s.reshape,
    "permute": s.permute,
    "transpose": s.transpose,
    "t": s.turned,
    "channel_shuffle": z.channel_shuffle,
    "roll": s.roll,
    "flip": s.flip,
    "getitem": i.getitem,
    "chunk": s.chunk,
    "split": s.split,
    "narrow": s.narrow,
    "unbind": s.unbind,
    "select": s.select,
    "gather": s.gather,
    "index_select": s.index_select,
    "expand": s.expand,
    "repeat": s.repeat,
    "pixel_shuffle": z.pixel_shuffle,
    "pixel_unshuffle": z.pixel_unshuffle,
    "identity": e.identity,
    "dropout": e.identity,
    "pad": p.pad,
    "constant_pad": p.pad_by("constant"),
    "reflection_pad": p.pad_by("reflect"),
    "replication_pad": p.pad_by("replicate"),
    "resize": z.resize,
    # pooling and sums
    "max_pool": r.max_pool,
    "avg_pool": r.avg_pool,
    "adaptive_max_pool": a.adaptive_pool("Max"),
    "adaptive_avg_pool": a.adaptive_pool("Average"),
    "mean": r.reduce_("ReduceMean"),
    "sum": r.reduce_("ReduceSum"),
    # activations
    "relu": e.unary("Relu"),
    "relu6": v.relu6,
    "hardtanh": v.hardtanh,
    "clip": v.clip,
    "leaky_relu": v.leaky_relu,
    "rrelu": v.rrelu,
    "prelu": v.prelu,
    "elu": v.elu,
    "hardswish": e.unary("HardSwish"),
    "hardsigmoid": v.hardsigmoid,
    "silu": v.silu,
    "mish": v.mish,
    "gelu": v.gelu,
    "sigmoid": e.unary("Sigmoid"),
    "softplus": v.softplus,
    "hardshrink": v.hardshrink,
    "softshrink": v.softshrink,
    "tanh": e.unary("Tanh"),
    "softmax": v.softmax,
    "softmax2d": v.softmax2d,
    "log_softmax": v.log_softmax,
    # elementwise functions
    "abs": e.unary("Abs"),
    "neg": e.unary("Neg"),
    "exp": e.unary("Exp"),
    "log": e.unary("Log"),
    "sqrt": e.unary("Sqrt"),
    "rsqrt": e.rsqrt,
    "pow": e.pow_,
    "erf": e.unary("Erf"),
    "cos": e.unary("Cos"),
    "sin": e.unary("Sin"),
    "cumsum": r.cumsum,
    "affine_grid": g.affine_grid,
    "cdist": g.cdist,
    "stft": g.stft,
    # normalization
    "batch_norm": r.batch_norm,
    "instance_norm": r.instance_norm,
    "layer_norm": r.layer_norm,
    "rms_norm": r.rms_norm,
    "group_norm": r.group_norm,
    "local_response_norm": r.local_response_norm,
    # what carries no activations
    "zeros": f.filled(0),
    "ones": f.filled(1),
    "full": f.full,
    "zeros_like": f.like(0),
    "ones_like": f.like(1),
    "full_like": f.full_like,
    "new_zeros": f.new_filled(0),
    "new_ones": f.new_filled(1),
    "new_full": f.new_full,
    "arange": f.arange,
    "attribute": s.attribute,
    "size": s.size,
    "numel": s.numel,
    "floor_divide": e.floor_divide,
    "remainder": e.remainder,
    "eq": e.compare("Equal"),
    "ne": e.compare("Equal", negated=True),
    "lt": e.compare("Less"),
    "le": e.compare("LessOrEqual"),
    "gt": e.compare("Greater"),
    "ge": e.compare("GreaterOrEqual"),
    "and": e.logical("And"),
    "or": e.logical("Or"),
    "not": e.logical("Not"),
    "argmax": r.argmax,
    "cast": e.cast,
    "type_as": e.type_as,
}


def lowering_of(op: TorchOp | None) -> Lowering | None:
    """None for what is not known, and for what is left to torch.onnx."""
    return LOWERINGS.get(op.name) if op is not None else None


def named_arguments(op: TorchOp, module: nn.Module, rest: Sequence[Any]) -> dict[str, Any]:
    """The keyword arguments of torch's function for a module call: the module's attributes, and arguments after the
    input."""
    known = known_class(module)
    assert known is not None, op.name
    names = list(inspect.signature(known.forward).parameters)[2:]  # behind self and the first
    attributes = {name: getattr(module, name) for name in op.attributes if hasattr(module, name)}
    return {**attributes, **dict(zip(names, rest, strict=False))}
