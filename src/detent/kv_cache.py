"""Simulates a low-bit KV cache: Liu et al., "KIVI", ICML 2024 (arXiv 2402.02750).

Keys have a few channels that are large for every token, values do not. So keys get a range for each channel over
`group` tokens, values one for each token over `group` channels, both from the least number to the greatest. The last
`residual` tokens stay float; what is older is quantized, whole groups at a time, once and for all.

    cache = quantized_cache(bits=4)
    model.generate(ids, past_key_values=cache)          # any causal model of transformers that keeps keys and values

KIVI gives the first pass over a prompt its own keys and values in float. Here every token sees what the cache holds, so
that one pass over a text shows what the quantized cache costs: the older tokens are quantized in it as they would be
later. Nothing is saved in memory: numbers are rounded, not packed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from detent.errors import SchemeError, install_hint
from detent.numerics import IntGrid, PerGroup, Scheme
from detent.quantizers import on_grid

if TYPE_CHECKING:
    from transformers import Cache

__all__ = ["quantized_cache", "rounded_keys", "rounded_values"]

_TOKENS, _CHANNELS = 2, 3
"""Axes of keys and values: (batch, heads, tokens, channels)."""


def quantized_cache(
    bits: int = 4, *, key_bits: int | None = None, value_bits: int | None = None, group: int = 32, residual: int = 128
) -> Cache:
    """A cache for `past_key_values` whose keys and values have so many bits; `residual` is 0 to quantize all groups."""
    if group < 1 or residual < 0:
        raise SchemeError(
            f"a KV cache with group={group} and residual={residual}", "there is none", "give group >= 1, residual >= 0"
        )
    try:
        from transformers import Cache
    except ImportError:
        hint = install_hint("transformers")
        raise SchemeError("a quantized KV cache", "transformers is not installed", hint) from None
    widths = [IntGrid(own or bits, signed=False).bits for own in (key_bits, value_bits)]
    made = partial(_layer_class(), *widths, group, residual)
    return Cache(layer_class_to_replicate=made)


def rounded_keys(keys: Tensor, bits: int, group: int) -> Tensor:
    """With a range for each channel over `group` tokens, whose number `group` divides."""
    return _rounded(keys, bits, PerGroup(_TOKENS, group))


def rounded_values(values: Tensor, bits: int, group: int) -> Tensor:
    """With a range for each token over `group` channels, or over all if `group` does not divide them."""
    channels = values.shape[_CHANNELS]
    return _rounded(values, bits, PerGroup(_CHANNELS, channels if channels % group else group))


def _rounded(x: Tensor, bits: int, granularity: PerGroup) -> Tensor:
    """On 2**bits points from the least to the greatest number of each group, which are points themselves."""
    scheme = Scheme(IntGrid(bits, signed=False), granularity=granularity)
    least, greatest = (granularity.reduce(x.detach(), ends) for ends in (torch.amin, torch.amax))
    low = granularity.expand(least, x.ndim)
    step = ((greatest - least).float() / scheme.grid.qmax).clamp_min(torch.finfo(torch.float32).tiny)
    above = (granularity.blocked(x) - low).reshape(x.shape)
    rounded = on_grid(above, step, torch.zeros((), dtype=torch.int64), scheme)
    return (granularity.blocked(rounded) + low).reshape(x.shape)


def _layer_class() -> Any:
    from transformers.cache_utils import DynamicLayer

    class QuantizedLayer(DynamicLayer):  # type: ignore[misc]
        """Keys and values of one layer, of which the first `rounded` tokens are quantized."""

        def __init__(self, key_bits: int, value_bits: int, group: int, residual: int):
            super().__init__()
            self.bits, self.group, self.residual, self.rounded = (key_bits, value_bits), group, residual, 0

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            keys, values = super().update(key_states, value_states, *args, **kwargs)
            old = keys.shape[_TOKENS] - self.residual
            until = max(old - old % self.group, self.rounded)
            if until > self.rounded:
                key_bits, value_bits = self.bits
                self.keys = self._with(keys, rounded_keys(keys[:, :, self.rounded : until], key_bits, self.group))
                self.values = self._with(
                    values, rounded_values(values[:, :, self.rounded : until], value_bits, self.group)
                )
                self.rounded = until
            return self.keys, self.values

        def _with(self, held: Tensor, new: Tensor) -> Tensor:
            behind = self.rounded + new.shape[_TOKENS]
            return torch.cat([held[:, :, : self.rounded], new, held[:, :, behind:]], _TOKENS)

        def reset(self) -> None:
            super().reset()
            self.rounded = 0

        def crop(self, tokens_to_remove: int) -> None:
            super().crop(tokens_to_remove)
            self.rounded = min(self.rounded, self.get_seq_length())

    return QuantizedLayer
