"""A hardware target as a value: what it supports, where it quantizes, and what it fuses."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from detent.deprecation import renamed_fields
from detent.errors import SchemeError, UnknownNameError
from detent.graph import CLIPPING, KINDS, WEIGHTED
from detent.numerics import PerTensor
from detent.planning.supported_schemes import SupportedSchemes

__all__ = ["FUSED", "MOVES", "VANISHES", "Backend", "BiasRule", "Rule", "chains", "quantize_inputs", "quantize_io"]

BiasRule = Literal["float", "int32", "own"]
"""Kept float; integers on the scale of input times weight; a quantizer of its own."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How one kind of operation is treated: quantized data inputs, weights, output."""

    inputs: bool = True
    weight: bool = True
    output: bool = False


def quantize_inputs(*kinds: str) -> dict[str, Rule]:
    """Rules for operations whose inputs and weights are quantized; their output is quantized for its readers."""
    return dict.fromkeys(kinds, Rule())


def quantize_io(*kinds: str) -> dict[str, Rule]:
    """Rules for operations whose inputs, weights and outputs are quantized."""
    return dict.fromkeys(kinds, Rule(output=True))


def chains(
    ops: tuple[str, ...], activations: tuple[str, ...] = CLIPPING, *, norm: bool = False
) -> tuple[tuple[str, ...], ...]:
    """Each of `ops`, then perhaps a batch norm (if `norm`), then perhaps an activation: all that are longer than one.

    >>> chains(("add",), ("relu",))
    (('add', 'relu'),)
    """
    norms: tuple[tuple[str, ...], ...] = ((), ("batchnorm",)) if norm else ((),)
    ends: tuple[tuple[str, ...], ...] = ((), *((activation,) for activation in activations))
    return tuple((op, *middle, *end) for op in ops for middle in norms for end in ends if middle or end)


FUSED = chains(WEIGHTED, norm=True)
"""Weighted operation, batch norm, then an activation that only clips: what nearly every target runs as one."""

VANISHES = tuple(kind.name for kind in KINDS.values() if kind.vanishes)
"""Kinds that are gone in a deployed network, on every target: what goes in comes out, or is part of what is next."""

MOVES = tuple(
    kind.name
    for kind in KINDS.values()
    if kind.moves and kind.inputs == 1 and not kind.vanishes and kind.name != "dequant_stub"
)
"""Kinds whose output values are values of their one input, so that most targets leave them on its grid: what moves
values and is deployed. What is behind a dequant stub is on no grid."""


_RENAMED = {
    "aligns": "common_qparams",
    "any_place": "arbitrary_qdq_placement",
    "bias_offer": "bias_schemes",
    "ends_bits": "first_last_bits",
    "shares": "passthrough",
}


@renamed_fields(_RENAMED)
@dataclass(frozen=True, kw_only=True)
class Backend:
    """A target, as data for the planner.

    What is quantized:

    - `rules`: the quantized kinds, and which of their tensors are; a kind that is neither here nor in `passthrough`
      stays float.
    - `fusions`: chains of kinds that run as one; tensors inside a chain do not exist.
    - `passthrough`: kinds whose output has the scale of their input. They follow their neighbors: they run on integers
      if their input or output is quantized anyway.
    - `conv_axes`: the numbers of spatial axes of convolutions that run on integers; others stay float.
    - `common_qparams`: kinds whose inputs all share one scale; if they are also in `passthrough`, so does the output.
    - `unquantized_edges`: kinds of (producer, consumer), or (producer, activation, consumer), that the target fuses, so
      that nothing is quantized before the consumer in spite of the rules. Only one input of a consumer is fused: the
      first possible one.
    - `quantize_outputs`: whether the network's outputs are quantized; `float_outputs` are kinds with kernels that can
      return real numbers, so that an output need not be quantized if one of them is last.

    How:

    - `weight`, `activation`: the supported schemes; `network_input`, if it differs from other activations.
    - `per_tensor_weights`: kinds whose weights have one scale, whatever `weight` supports.
    - `int4_weights`: whether 4-bit weights with one scale, or one per channel, are stored in 4 bits in the ONNX file,
      rather than in 8, for which more engines have kernels.
    - `depthwise_bits`: the default width for weights of depthwise convolutions, if it differs from other weights.
    - `saturates_on`: the kinds of CPU on which the engine adds products in pairs that saturate. Weights are chosen so
      that they do not, unless a recipe names another kind of CPU. Depthwise kernels do not add in pairs.
    - `factor_bits`: the width of the second factor of a product of two activations, if it is signed, such that the
      product does not saturate on any CPU.
    - `bias`; and `bias_schemes` for its width, and for its whole scheme if it has a quantizer of its own.
    - `ranges`: kinds whose output has a fixed range; `wide_ranges`: the same for 16-bit activations, if they differ.
    - `first_last_bits`: the minimum width of the weights and inputs of the first and last layers.
    - `batch_norm`: the default strategy; 4 instead of 0 if the recipe trains.

    How it is deployed:

    - `repeats_grids`: whether Q and DQ are repeated after operations that keep the grid of their input. Some engines
      run such operations on integers only with them; others move a DQ through them and would compute the second pair.
    - `rewrites`: names of `detent.targets.rewrites.REWRITES`, in order: operations that the engine does not run on
      integers, does not load, or computes wrongly are written differently.
    - `opset`: the minimum opset of the ONNX file.
    - `arbitrary_qdq_placement`: whether the engine supports Q and DQ anywhere, if need be in float. Then those of an
      ONNX file that is already quantized are kept in place, whatever the rules say. `file_weight` and `file_activation`
      are schemes that such a file may have but a recipe may not request, because they run in float.
    - `mix`: the place ("module:function") of the target's rules for which weight gets which format, for a recipe that
      names one of its mixes: from that name and the weights (`planning.mixes.MixedWeight`) to rules of a recipe.
    - `arithmetic`, `files` and `engine`: the names of the twin's arithmetic, the written formats, and the engine.
    """

    name: str
    about: str
    weight: SupportedSchemes
    activation: SupportedSchemes
    network_input: SupportedSchemes | None = None
    bias: BiasRule = "float"
    bias_schemes: SupportedSchemes = field(default_factory=lambda: SupportedSchemes(bits=(32,)))
    rules: Mapping[str, Rule] = field(hash=False)
    fusions: tuple[tuple[str, ...], ...] = FUSED
    passthrough: tuple[str, ...] = MOVES
    common_qparams: tuple[str, ...] = ()
    conv_axes: tuple[int, ...] = (1, 2, 3)
    unquantized_edges: tuple[tuple[str, ...], ...] = ()
    per_tensor_weights: tuple[str, ...] = ()
    int4_weights: bool = False
    depthwise_bits: int | None = None
    saturates_on: tuple[str, ...] = ()
    factor_bits: int | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    wide_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    quantize_outputs: bool = False
    float_outputs: tuple[str, ...] = ()
    first_last_bits: int | None = None
    batch_norm: int = 0
    repeats_grids: bool = True
    rewrites: tuple[str, ...] = ()
    opset: int = 17
    arbitrary_qdq_placement: bool = False
    file_weight: SupportedSchemes | None = None
    file_activation: SupportedSchemes | None = None
    arithmetic: str = "onnx_spec"
    files: tuple[str, ...] = ("onnx",)
    engine: str | None = None
    mix: str | None = None

    def __post_init__(self) -> None:
        named = {
            "rules": tuple(self.rules),
            "fusions": tuple(kind for chain in self.fusions for kind in chain),
            "passthrough": self.passthrough,
            "common_qparams": self.common_qparams,
            "unquantized_edges": tuple(kind for edge in self.unquantized_edges for kind in edge),
            "per_tensor_weights": self.per_tensor_weights,
            "float_outputs": self.float_outputs,
            "ranges": (*self.ranges, *self.wide_ranges),
        }
        for where, kinds in named.items():
            for kind in kinds:
                if kind not in KINDS:
                    near = difflib.get_close_matches(kind, KINDS, n=1)
                    raise UnknownNameError(
                        f"{where} of backend {self.name!r}: kind {kind!r}",
                        "no operation has that kind",
                        f"did you mean {near[0]!r}?" if near else "use a kind of detent.graph.KINDS",
                    )

        for kind in self.passthrough:
            if KINDS[kind].inputs != 1 and kind not in self.common_qparams:
                raise SchemeError(
                    f"passthrough of backend {self.name!r}: {kind!r}",
                    "it has several inputs, and so no one scale to keep",
                    "put it in common_qparams too",
                )

    def weight_schemes(self, kind: str, *, depthwise: bool = False) -> SupportedSchemes:
        """The schemes that are supported for the weights of a kind."""
        found = self.weight
        if kind in self.per_tensor_weights:
            found = replace(found, granularities=(PerTensor,), also=())
        return found.preferring(self.depthwise_bits) if depthwise else found
