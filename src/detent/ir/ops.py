"""The operators of the deployment level, with what is true of each on every target.

An engine that differs states the difference, with the reason:

>>> sorted(ops_with(Trait.WEIGHTED) - {"ConvTranspose"})  # which it has no kernel for
['Conv', 'Gemm', 'MatMul']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from functools import cache
from typing import Any

from detent.ir.attributes import schema_defaults

__all__ = ["OPS", "OpSpec", "Trait", "ops_with"]


class Trait(Flag):
    """What holds of an operator whatever its attributes are."""

    RESHAPES = auto()
    """Gives the numbers of its first input, in their order."""
    MOVES_VALUES = auto()
    """Every number that it gives is one of its first input, whatever they are. So the grid stays."""
    EXTREME = auto()
    """Gives the greatest or the least of numbers."""
    EXACT = auto()
    """Rounds nothing, and moves no further than what goes in does: so do all that move values or take extremes."""
    ELEMENTWISE = auto()
    """A real function of each number by itself."""
    ARITHMETIC = auto()
    """One of the four operations on two tensors that are broadcast."""
    WEIGHTED = auto()
    """Sums of products with what is a weight if it is constant: the second input."""
    CONVOLUTION = auto()
    """Weighted, and slides its weights along axes, in groups of channels."""
    POOL = auto()
    """One number for each window of a channel, or for all of it."""
    REDUCES = auto()
    """One number for all along some axes."""


@dataclass(frozen=True)
class OpSpec:
    """An operator of ONNX."""

    name: str
    traits: Trait

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Every attribute, with what it is where a model does not say it (see `schema_defaults`)."""
        return schema_defaults(self.name)


_NONE = Trait(0)
_MOVES = Trait.MOVES_VALUES | Trait.EXACT
_RESHAPES = Trait.RESHAPES | _MOVES
_EXTREME = Trait.EXTREME | Trait.EXACT
_CONVOLUTION = Trait.CONVOLUTION | Trait.WEIGHTED

_TRAITS = {
    "Abs": Trait.ELEMENTWISE | Trait.EXACT,
    "Acos": Trait.ELEMENTWISE,
    "Acosh": Trait.ELEMENTWISE,
    "Add": Trait.ARITHMETIC,
    "And": _NONE,
    "ArgMax": _NONE,
    "ArgMin": _NONE,
    "Asin": Trait.ELEMENTWISE,
    "Asinh": Trait.ELEMENTWISE,
    "Atan": Trait.ELEMENTWISE,
    "Atanh": Trait.ELEMENTWISE,
    "AveragePool": Trait.POOL,
    "BatchNormalization": _NONE,
    "Cast": Trait.EXACT,
    "Ceil": Trait.ELEMENTWISE,
    "Celu": Trait.ELEMENTWISE,
    "Clip": Trait.ELEMENTWISE | Trait.EXACT,
    "Col2Im": _NONE,
    "Concat": Trait.EXACT,
    "ConstantOfShape": _NONE,
    "Conv": _CONVOLUTION,
    "ConvTranspose": _CONVOLUTION,
    "Cos": Trait.ELEMENTWISE,
    "Cosh": Trait.ELEMENTWISE,
    "CumSum": _NONE,
    "DepthToSpace": _MOVES,
    "Div": Trait.ARITHMETIC,
    "Dropout": Trait.EXACT,  # gives a mask too
    "Einsum": _NONE,
    "Elu": Trait.ELEMENTWISE,
    "Equal": _NONE,
    "Erf": Trait.ELEMENTWISE,
    "Exp": Trait.ELEMENTWISE,
    "Expand": _MOVES,
    "Flatten": _RESHAPES,
    "Floor": Trait.ELEMENTWISE,
    "GRU": _NONE,
    "Gather": _MOVES,
    "GatherElements": _MOVES,
    "Gelu": Trait.ELEMENTWISE,
    "Gemm": Trait.WEIGHTED,
    "GlobalAveragePool": Trait.POOL,
    "GlobalMaxPool": Trait.POOL | _EXTREME,
    "Greater": _NONE,
    "GreaterOrEqual": _NONE,
    "GroupNormalization": _NONE,
    "HardSigmoid": Trait.ELEMENTWISE,
    "HardSwish": Trait.ELEMENTWISE,
    "Identity": _RESHAPES,
    "InstanceNormalization": _NONE,
    "LSTM": _NONE,
    "LayerNormalization": _NONE,
    "LeakyRelu": Trait.ELEMENTWISE,
    "Less": _NONE,
    "LessOrEqual": _NONE,
    "Log": Trait.ELEMENTWISE,
    "LogSoftmax": _NONE,
    "MatMul": Trait.WEIGHTED,
    "Max": _EXTREME,
    "MaxPool": Trait.POOL | _EXTREME,
    "Mean": _NONE,
    "Min": _EXTREME,
    "Mish": Trait.ELEMENTWISE,
    "Mul": Trait.ARITHMETIC,
    "Neg": Trait.ELEMENTWISE | Trait.EXACT,
    "Not": _NONE,
    "Or": _NONE,
    "PRelu": _NONE,
    "Pad": Trait.EXACT,
    "Pow": _NONE,
    "RMSNormalization": _NONE,
    "RNN": _NONE,
    "Range": _NONE,
    "Reciprocal": Trait.ELEMENTWISE,
    "ReduceL1": Trait.REDUCES,
    "ReduceL2": Trait.REDUCES,
    "ReduceLogSum": Trait.REDUCES,
    "ReduceLogSumExp": Trait.REDUCES,
    "ReduceMax": Trait.REDUCES | _EXTREME,
    "ReduceMean": Trait.REDUCES,
    "ReduceMin": Trait.REDUCES | _EXTREME,
    "ReduceProd": Trait.REDUCES,
    "ReduceSum": Trait.REDUCES,
    "ReduceSumSquare": Trait.REDUCES,
    "Relu": Trait.ELEMENTWISE | Trait.EXACT,
    "Reshape": _RESHAPES,
    "Resize": _NONE,  # moves values in one of its modes
    "Round": Trait.ELEMENTWISE,
    "Selu": Trait.ELEMENTWISE,
    "Shape": _NONE,
    "Sigmoid": Trait.ELEMENTWISE,
    "Sign": Trait.ELEMENTWISE,
    "Sin": Trait.ELEMENTWISE,
    "Sinh": Trait.ELEMENTWISE,
    "Slice": _MOVES,
    "Softmax": _NONE,
    "Softplus": Trait.ELEMENTWISE,
    "Softsign": Trait.ELEMENTWISE,
    "SpaceToDepth": _MOVES,
    "Split": _MOVES,
    "Sqrt": Trait.ELEMENTWISE,
    "Squeeze": _RESHAPES,
    "Sub": Trait.ARITHMETIC,
    "Sum": _NONE,
    "Swish": Trait.ELEMENTWISE,
    "Tan": Trait.ELEMENTWISE,
    "Tanh": Trait.ELEMENTWISE,
    "Tile": _MOVES,
    "TopK": _NONE,
    "Transpose": _MOVES,
    "Unsqueeze": _RESHAPES,
    "Where": Trait.EXACT,
}

OPS: Mapping[str, OpSpec] = {name: OpSpec(name, traits) for name, traits in _TRAITS.items()}
"""By the name that ONNX has for it."""


@cache
def ops_with(traits: Trait) -> frozenset[str]:
    """The names of the operators that have all of `traits`."""
    return frozenset(name for name, spec in OPS.items() if traits in spec.traits)
