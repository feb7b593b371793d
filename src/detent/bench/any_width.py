"""The targets at any bit width: MQBench compares the numeric requirements of chips at widths that they do not support.

A target at 4 bits quantizes where it does at 8, with its symmetry, granularity, kind of scale and rounding. First and
last layers have 8 bits, as in MQBench. There is no engine for it; its twin is the arithmetic of ONNX.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from detent.planning import Backend, SupportedSchemes
from detent.targets import BACKENDS

__all__ = ["ANY_WIDTH", "at_any_width", "setting_of"]

_WIDTHS = (8, 2, 3, 4, 5, 6, 7)


def at_any_width(backend: Backend) -> Backend:
    """`backend` without its chip: the same graph and kinds of scales, 2 to 8 bits.

    A target of affine schemes takes symmetric ones too: these are affine schemes whose zero point is in the middle.
    """
    return replace(
        backend,
        name=f"{backend.name}_any_width",
        about=f"{backend.name} at any width, in simulation",
        weight=_widened(backend.weight),
        activation=_widened(backend.activation),
        network_input=None if backend.network_input is None else _widened(backend.network_input),
        depthwise_bits=None,
        saturates_on=(),
        factor_bits=None,
        first_last_bits=8,
        rewrites=(),
        arithmetic="onnx_spec",
        files=("onnx",),
        engine=None,
    )


def _widened(schemes: SupportedSchemes) -> SupportedSchemes:
    affine = False in schemes.symmetric
    return replace(
        schemes,
        bits=_WIDTHS,
        symmetric=(*schemes.symmetric, True) if affine and True not in schemes.symmetric else schemes.symmetric,
        signed=(*schemes.signed, *(sign for sign in (True, False) if affine and sign not in schemes.signed)),
        also=tuple(_widened(other) for other in schemes.also),
    )


ANY_WIDTH = SimpleNamespace(**{name: at_any_width(BACKENDS[name]) for name in BACKENDS})
"""By name, so that a config can say `backend: detent.bench.any_width:ANY_WIDTH.tensorrt`."""


def setting_of(target: str, weight_bits: int, activation_bits: int) -> str:
    """What a config says for a target at these widths: its own name where it has them, else the one at any width."""
    backend = BACKENDS[target]
    held = all(
        any(bits in schemes.bits for schemes in offered.alternatives)
        for bits, offered in ((weight_bits, backend.weight), (activation_bits, backend.activation))
    )
    return target if held else f"{__name__}:ANY_WIDTH.{target}"
