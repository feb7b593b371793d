"""A hardware target as a value: what it can store, where it quantizes, what it fuses."""

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
    """A target, as data that the planner reads.

    What is quantized:

    - `rules`: which kinds are, and where; a kind that is neither here nor in `passthrough` stays float.
    - `fusions`: chains of kinds that run as one; inside of them there is no tensor.
    - `passthrough`: kinds whose output has the scale of their input. They follow their neighbors: they run on integers
      where their input or their output is on a grid anyway.
    - `conv_axes`: over how many axes a convolution may slide that runs on integers; others stay float.
    - `common_qparams`: kinds all of whose inputs have one scale; if they are in `passthrough` too, so has their output.
    - `unquantized_edges`: kinds of (producer, consumer), or (producer, activation, consumer), that the target fuses, so
      that nothing is quantized before the consumer although the rules say so. It fuses one input of a consumer: the
      first that can be.
    - `quantize_outputs`: whether what the network gives is quantized; `float_outputs` are the kinds whose kernels give
      real numbers as well as codes, so that it need not be where one of them is the last.

    How:

    - `weight`, `activation`: the supported schemes; `network_input`, if it differs from other activations.
    - `per_tensor_weights`: kinds whose weights have one scale, whatever `weight` supports.
    - `int4_weights`: whether weights of four bits, one scale or one per channel, are held in four bits in the ONNX
      file, rather than in eight, which more engines have kernels for.
    - `depthwise_bits`: the width of the weights of depthwise convolutions that a recipe gets that does not ask, if it
      is not that of other weights.
    - `saturates_on`: the kinds of CPU on which the engine adds products in pairs that saturate. Weights are kept from
      it, unless a recipe names another kind. Depthwise kernels do not add in pairs.
    - `factor_bits`: the width of the second factor of a product of two activations, where it is a signed one: what
      keeps these from saturating on every CPU.
    - `bias`, and `bias_schemes` for its width, and for all of it if it has a quantizer of its own.
    - `ranges`: kinds whose output has a fixed range; `wide_ranges`: those for activations of 16 bits, if they differ.
    - `first_last_bits`: the least width of the first and last weights, and of what these layers take in.
    - `batch_norm`: the strategy a recipe gets that does not name one; 4 in place of 0 if it trains.

    How it is deployed:

    - `repeats_grids`: whether Q and DQ are written again behind operations that keep the grid of their input. Some
      engines run those on integers only then; others move a DQ through them and would compute the second pair.
    - `rewrites`: what is written otherwise than the model has it, in order, because the engine does not run it on
      integers, does not load it or computes it wrongly (names of `detent.targets.rewrites.REWRITES`).
    - `opset`: of the ONNX file, at least.
    - `arbitrary_qdq_placement`: whether the engine computes Q and DQ wherever they stand, if need be in float: then
      those of an ONNX file that was quantized before stay where they are, whatever the rules say. `file_weight` and
      `file_activation` are schemes that such a file may have and a recipe not ask for, because they run in float.
    - `mix`: the place ("module:function") of the target's own rules for which weight gets what, for a recipe that names
      one of its mixes: from that name and the weights (`planning.mixes.MixedWeight`) to rules of a recipe.
    - `arithmetic`, `files` and `engine` name what the twin computes with, what is written, and what runs it.
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
