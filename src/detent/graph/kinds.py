"""The kinds of operation, by which backends and recipes refer to operations, and the properties of each kind.

`torch_ops` says which torch callables have them. An operation without an entry there has no kind; the Plan says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "ACTIVATIONS",
    "AVERAGE_POOLS",
    "BINARY",
    "CLIPPING",
    "KINDS",
    "MULTIPLYING",
    "PASSING",
    "POOLS",
    "REORDERING",
    "WEIGHTED",
    "Kind",
]


@dataclass(frozen=True)
class Kind:
    """What the planner must know of an operation.

    - `inputs`: how many leading arguments are data (None: all tensors, also those in a list).
    - `weight`: the parameters that are weights, with the axis of their output channels.
    - `multiplies`: networks are quantized for its sake.
    - `binary`: combines two tensors element by element.
    - `sign`: 1 if the output is never negative, 0 if it is negative only where the input is, -1 otherwise.
    - `moves`: output values are input values, rearranged or selected, so that the output is on the input's grid. It
      `selects` if it may leave values out, and `vanishes` if no deployed network has it, on any target.
    - `passes`: the output is the input, in evaluation.
    - `aliases`: the output may share the memory of the input.
    - `clips`: clips values to bounds, so that it can be fused into the operation before it, and rounding before or
      after it is the same.
    - `activates`: an elementwise activation function.
    - `pools`: gives one value for each window of a channel, or for the whole channel.
    """

    name: str
    inputs: int | None = 1
    weight: Mapping[str, int] | None = None
    multiplies: bool = False
    binary: bool = False
    sign: int = -1
    moves: bool = False
    selects: bool = False
    vanishes: bool = False
    passes: bool = False
    aliases: bool = False
    clips: bool = False
    activates: bool = False
    pools: bool = False

    @property
    def carries_activations(self) -> bool:
        """Whether its output is floating point and depends on the network's inputs: it is no size, boolean, cast or
        constant."""
        return self.inputs != 0 or self.weight is not None

    @property
    def weighted(self) -> bool:
        """Whether it sums up products of its data with a weight."""
        return self.weight is not None and self.inputs != 0


def _kinds(*kinds: Kind) -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds}


_OUT0, _OUT1 = {"weight": 0}, {"weight": 1}

KINDS: dict[str, Kind] = _kinds(
    # arithmetic with weights
    Kind("conv", weight=_OUT0, multiplies=True),
    Kind("conv_transpose", weight=_OUT1, multiplies=True),
    Kind("linear", weight=_OUT0, multiplies=True),
    Kind("embedding", inputs=0, weight=_OUT0, multiplies=True),
    Kind("embedding_bag"),  # its table stays float: no target has a kernel that adds rows of codes
    Kind("lstm", multiplies=True),
    Kind("gru", multiplies=True),
    # arithmetic between tensors
    Kind("matmul", inputs=2, multiplies=True),
    Kind("einsum", inputs=None, multiplies=True),
    Kind("add", inputs=2, binary=True, sign=0),
    Kind("sub", inputs=2, binary=True),
    Kind("mul", inputs=2, binary=True, sign=0),
    Kind("div", inputs=2, binary=True, sign=0),
    Kind("maximum", inputs=2, binary=True, sign=0),
    Kind("minimum", inputs=2, binary=True, sign=0),
    Kind("where", inputs=None),
    # joining, splitting, moving
    Kind("concat", inputs=None, sign=0, moves=True),
    Kind("reshape", sign=0, moves=True, aliases=True),
    Kind("transpose", sign=0, moves=True, aliases=True),
    Kind("slice", sign=0, moves=True, selects=True, aliases=True),
    Kind("gather", sign=0, moves=True, selects=True),
    Kind("expand", sign=0, moves=True, aliases=True),
    Kind("maxpool", sign=0, moves=True, selects=True, pools=True),
    Kind("global_maxpool", sign=0, moves=True, selects=True, pools=True),
    Kind("pixel_shuffle", sign=0, moves=True),
    Kind("identity", sign=0, moves=True, vanishes=True, passes=True, aliases=True),
    Kind("dropout", sign=0, moves=True, vanishes=True, passes=True, aliases=True),
    # Zeros, which every grid has, around the input of a convolution: part of the convolution when deployed.
    Kind("conv_pad", sign=0, moves=True, vanishes=True),
    Kind("pad", sign=0),
    Kind("resize", sign=0),
    # averaging
    Kind("avgpool", sign=0, pools=True),
    Kind("global_avgpool", sign=0, pools=True),
    Kind("mean", sign=0),
    Kind("sum", sign=0),
    # activations
    Kind("relu", sign=1, clips=True, activates=True),
    Kind("relu6", sign=1, clips=True, activates=True),
    Kind("clip", clips=True, activates=True),
    Kind("leaky_relu", activates=True),
    Kind("prelu", activates=True),
    Kind("elu", activates=True),
    Kind("hardswish", activates=True),
    Kind("hardsigmoid", sign=1, activates=True),
    Kind("silu", activates=True),
    Kind("mish", activates=True),
    Kind("gelu", activates=True),
    Kind("sigmoid", sign=1, activates=True),
    Kind("softplus", sign=1, activates=True),
    Kind("shrink", activates=True),
    Kind("tanh", activates=True),
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
    Kind("cos"),
    Kind("sin"),
    Kind("cumsum"),
    # in float: codes are too coarse for positions, for differences of similar values, and for spectra
    Kind("affine_grid"),
    Kind("cdist", inputs=2, sign=1),
    Kind("stft"),
    # normalization
    Kind("batchnorm"),
    Kind("layernorm"),
    Kind("rmsnorm"),
    Kind("groupnorm"),
    Kind("instancenorm"),
    Kind("local_response_norm"),
    # an operation of the user's own, computed in float: which nodes are, `capture` is told
    Kind("opaque", inputs=None),
    # what carries no activations
    Kind("shape", inputs=0),
    Kind("compare", inputs=0),
    Kind("cast", inputs=0),
    Kind("constant", inputs=0),
    # the boundary of the quantized part; a plan shows the second, because everything after it is float
    Kind("quant_stub", sign=0, moves=True, vanishes=True, aliases=True),
    Kind("dequant_stub", sign=0, moves=True, aliases=True),
)

MULTIPLYING = tuple(kind.name for kind in KINDS.values() if kind.multiplies)
"""Kinds that networks are quantized for. One that has none of them has nothing to gain on any target."""

WEIGHTED = tuple(kind.name for kind in KINDS.values() if kind.weighted)
"""Convolutions and linear layers."""

BINARY = tuple(kind.name for kind in KINDS.values() if kind.binary)
"""Elementwise arithmetic on two tensors."""

CLIPPING = tuple(kind.name for kind in KINDS.values() if kind.clips)
"""Activation functions that only cut values off."""

ACTIVATIONS = tuple(kind.name for kind in KINDS.values() if kind.activates)
"""Elementwise activation functions."""

POOLS = tuple(kind.name for kind in KINDS.values() if kind.pools)
"""Kinds that give one value for each window of a channel, or for the whole channel."""

AVERAGE_POOLS = tuple(kind.name for kind in KINDS.values() if kind.pools and not kind.moves)
"""Pools that average."""

PASSING = tuple(kind.name for kind in KINDS.values() if kind.passes)
"""Kinds whose output is their input, in evaluation."""

REORDERING = tuple(kind.name for kind in KINDS.values() if kind.moves and kind.inputs == 1 and not kind.selects)
"""Kinds that give every number they take in, and no other but zero: their output has the same range."""
