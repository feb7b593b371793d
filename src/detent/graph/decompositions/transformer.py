"""The `forward` methods of torch's transformer layers, as symbolic tracing can follow them.

Theirs ask for the types and numbers of masks, to choose between paths that compute the same. `is_causal` given as None
asks whether the mask is a causal one; it is added to the scores as any other.
"""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["decoder", "decoder_layer", "encoder", "encoder_layer", "transformer"]


def encoder_layer(
    self: nn.TransformerEncoderLayer,
    src: Any,
    src_mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool = False,
) -> Any:
    def attention(x: Any) -> Any:
        return _attention(self.self_attn, self.dropout1, x, x, src_mask, src_key_padding_mask, is_causal)

    if self.norm_first:
        x = src + attention(self.norm1(src))
        return x + _feed_forward(self, self.norm2(x), self.dropout2)
    x = self.norm1(src + attention(src))
    return self.norm2(x + _feed_forward(self, x, self.dropout2))


def decoder_layer(
    self: nn.TransformerDecoderLayer,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: bool = False,
    memory_is_causal: bool = False,
) -> Any:
    def attention(x: Any) -> Any:
        return _attention(self.self_attn, self.dropout1, x, x, tgt_mask, tgt_key_padding_mask, tgt_is_causal)

    def from_memory(x: Any) -> Any:
        masks = memory_mask, memory_key_padding_mask
        return _attention(self.multihead_attn, self.dropout2, x, memory, *masks, memory_is_causal)

    if self.norm_first:
        x = tgt + attention(self.norm1(tgt))
        x = x + from_memory(self.norm2(x))
        return x + _feed_forward(self, self.norm3(x), self.dropout3)
    x = self.norm1(tgt + attention(tgt))
    x = self.norm2(x + from_memory(x))
    return self.norm3(x + _feed_forward(self, x, self.dropout3))


def _attention(
    layer: nn.Module, dropout: nn.Module, x: Any, source: Any, mask: Any, padding_mask: Any, is_causal: bool
) -> Any:
    given = {"attn_mask": mask, "key_padding_mask": padding_mask, "need_weights": False, "is_causal": is_causal}
    return dropout(layer(x, source, source, **given)[0])


def _feed_forward(self: Any, x: Any, dropout: nn.Module) -> Any:
    return dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))


def encoder(
    self: nn.TransformerEncoder,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    for layer in self.layers:
        src = layer(src, mask, src_key_padding_mask, bool(is_causal))
    return src if self.norm is None else self.norm(src)


def decoder(
    self: nn.TransformerDecoder,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Any:
    masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
    for layer in self.layers:
        tgt = layer(tgt, memory, *masks, bool(tgt_is_causal), memory_is_causal)
    return tgt if self.norm is None else self.norm(tgt)


def transformer(
    self: nn.Transformer,
    src: Any,
    tgt: Any,
    src_mask: Any = None,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    src_key_padding_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    src_is_causal: bool | None = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Any:
    memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
    masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
    return self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
