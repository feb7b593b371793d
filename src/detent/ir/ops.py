"""The operators of the deployment IR, and what is true of each on every target.

A target that differs from a trait states the difference and its reason:

>>> sorted(ops_with(Trait.WEIGHTED) - {"ConvTranspose"})  # which it has no kernel for
['Conv', 'Gemm', 'MatMul']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from functools import cache
from typing import TYPE_CHECKING, Any

from detent.ir.attributes import schema_defaults
from detent.ir.reference import REFERENCE, Kernel

if TYPE_CHECKING:
    from detent.ir.roundoff import Rule

__all__ = ["OPS", "OpSpec", "Trait", "ops_with"]


class Trait(Flag):
    """Properties of an operator that hold for all attribute values."""

    RESHAPES = auto()
    """The output is the first input in another shape: the same numbers in the same order."""
    MOVES_VALUES = auto()
    """Data movement: every output value is a value of the first input, so that the output stays on its grid."""
    EXTREME = auto()
    """Takes the maximum or minimum of values."""
    EXACT = auto()
    """Rounds nothing, and passes on errors of its inputs without enlarging them, as data movement and extremes do."""
    ELEMENTWISE = auto()
    """A function of each element by itself."""
    CLIPS = auto()
    """Elementwise: clips each element to a range."""
    ACTIVATION = auto()
    """Elementwise: an activation function that is no clip, and that engines have a kernel for. Celu, Selu, Softsign and
    Shrink, which they compute in steps, are not among them."""
    THROUGH_ONE = auto()
    """Elementwise, and 1 or a part of it is added on the way, as in tanh(x) = 2 / (1 + exp(-2x)) - 1: its round-off is
    at least that of 1."""
    ARITHMETIC = auto()
    """Adds, subtracts, multiplies or divides two tensors, with broadcasting."""
    WEIGHTED = auto()
    """Sums of products of the first input with the second, which is a weight if it is constant."""
    CONVOLUTION = auto()
    """Weighted, and slides its kernel along spatial axes, in groups of channels."""
    POOL = auto()
    """One value for each window of a channel, or for the whole channel."""
    AVERAGE_POOL = auto()
    """A pool that averages."""
    REDUCES = auto()
    """Reduces some axes to one value."""


@dataclass(frozen=True)
class OpSpec:
    """The properties of one ONNX operator."""

    name: str
    traits: Trait

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Every attribute with its default (see `schema_defaults`)."""
        return schema_defaults(self.name)

    @property
    def reference(self) -> Kernel | None:
        """The float kernel that the twin, constant folding and the importer use; None if there is none."""
        return REFERENCE.get(self.name)

    @property
    def roundoff(self) -> Rule | None:
        """The bound on the difference of two float32 computations; None if none is known."""
        from detent.ir.roundoff import ROUNDOFF  # its rules ask for traits

        return ROUNDOFF.get(self.name)


_NONE = Trait(0)
_MOVES = Trait.MOVES_VALUES | Trait.EXACT
_RESHAPES = Trait.RESHAPES | _MOVES
_EXTREME = Trait.EXTREME | Trait.EXACT
_CLIPS = Trait.CLIPS | Trait.ELEMENTWISE | Trait.EXACT
_ACTIVATION = Trait.ACTIVATION | Trait.ELEMENTWISE
_THROUGH_ONE = Trait.THROUGH_ONE | Trait.ELEMENTWISE
_AVERAGE_POOL = Trait.AVERAGE_POOL | Trait.POOL
_CONVOLUTION = Trait.CONVOLUTION | Trait.WEIGHTED

_TRAITS = {
    "Abs": Trait.ELEMENTWISE | Trait.EXACT,
    "Acos": _THROUGH_ONE,
    "Acosh": _THROUGH_ONE,
    "Add": Trait.ARITHMETIC,
    "And": _NONE,
    "ArgMax": _NONE,
    "ArgMin": _NONE,
    "Asin": _THROUGH_ONE,
    "Asinh": _THROUGH_ONE,
    "Atan": _THROUGH_ONE,
    "Atanh": _THROUGH_ONE,
    "AveragePool": _AVERAGE_POOL,
    "BatchNormalization": _NONE,
    "Cast": Trait.EXACT,
    "Ceil": Trait.ELEMENTWISE,
    "Celu": _THROUGH_ONE,
    "Clip": _CLIPS,
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
    "Elu": _ACTIVATION | _THROUGH_ONE,
    "Equal": _NONE,
    "Erf": _THROUGH_ONE,
    "Exp": Trait.ELEMENTWISE,
    "Expand": _MOVES,
    "Flatten": _RESHAPES,
    "Floor": Trait.ELEMENTWISE,
    "GRU": _NONE,
    "Gather": _MOVES,
    "GatherElements": _MOVES,
    "Gelu": _ACTIVATION,
    "Gemm": Trait.WEIGHTED,
    "GlobalAveragePool": _AVERAGE_POOL,
    "GlobalMaxPool": Trait.POOL | _EXTREME,
    "Greater": _NONE,
    "GreaterOrEqual": _NONE,
    "GroupNormalization": _NONE,
    "HardSigmoid": _ACTIVATION | _THROUGH_ONE,
    "HardSwish": _ACTIVATION,
    "Identity": _RESHAPES,
    "InstanceNormalization": _NONE,
    "LSTM": _NONE,
    "LayerNormalization": _NONE,
    "LeakyRelu": _ACTIVATION,
    "Less": _NONE,
    "LessOrEqual": _NONE,
    "Log": Trait.ELEMENTWISE,
    "LogSoftmax": _NONE,
    "MatMul": Trait.WEIGHTED,
    "Max": _EXTREME,
    "MaxPool": Trait.POOL | _EXTREME,
    "Mean": _NONE,
    "Min": _EXTREME,
    "Mish": _ACTIVATION | _THROUGH_ONE,
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
    "Relu": _CLIPS,
    "Reshape": _RESHAPES,
    "Resize": _NONE,  # moves values in one of its modes
    "Round": Trait.ELEMENTWISE,
    "Selu": _THROUGH_ONE,
    "Shape": _NONE,
    "Shrink": Trait.ELEMENTWISE,
    "Sigmoid": _ACTIVATION | _THROUGH_ONE,
    "Sign": Trait.ELEMENTWISE,
    "Sin": Trait.ELEMENTWISE,
    "Sinh": Trait.ELEMENTWISE,
    "Slice": _MOVES,
    "Softmax": _NONE,
    "Softplus": _ACTIVATION | _THROUGH_ONE,
    "Softsign": Trait.ELEMENTWISE,
    "SpaceToDepth": _MOVES,
    "Split": _MOVES,
    "Sqrt": Trait.ELEMENTWISE,
    "Squeeze": _RESHAPES,
    "Sub": Trait.ARITHMETIC,
    "Sum": _NONE,
    "Swish": Trait.ELEMENTWISE,
    "Tan": Trait.ELEMENTWISE,
    "Tanh": _ACTIVATION | _THROUGH_ONE,
    "Tile": _MOVES,
    "TopK": _NONE,
    "Transpose": _MOVES,
    "Unsqueeze": _RESHAPES,
    "Where": Trait.EXACT,
}

OPS: Mapping[str, OpSpec] = {name: OpSpec(name, traits) for name, traits in _TRAITS.items()}
"""By ONNX name."""


@cache
def ops_with(traits: Trait) -> frozenset[str]:
    """The names of the operators that have all of `traits`."""
    return frozenset(name for name, spec in OPS.items() if traits in spec.traits)
