"""Decomposes attention: targets have integer kernels for its operations, but none for attention as a whole.

Each function computes what torch's of the same name does, of tensors and of proxies alike. Truth values become what is
added to the scores, a number so low that softmax gives 0 for it: infinities are no number that a grid, or every engine,
holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

__all__ = [
    "HIDDEN",
    "example_of",
    "multi_head_attention_forward",
    "multihead_attention",
    "scaled_dot_product_attention",
]

HIDDEN = -1e30
"""What is added to a score that takes no part; the sum of two is a float32 as well."""


def example_of(value: Any) -> Any:
    """The value of a proxy for the example inputs; anything else is its own example."""
    if not isinstance(value, fx.Proxy):
        return value
    tracer: Any = value.tracer
    return tracer.example(value)


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if enable_gqa:
        heads = [int(example_of(each).shape[-3]) for each in (query, key, value)]
        key, value = _repeated(key, heads[0] // heads[1]), _repeated(value, heads[0] // heads[2])
    factor = 1 / math.sqrt(int(example_of(query).shape[-1])) if scale is None else scale
    masks = [] if example_of(attn_mask) is None else [_added(attn_mask, hides=False)]
    if is_causal:
        masks.append(_later_hidden(query, key))
    # Also with probability 0: in training mode, in which the network is traced again, it may be another.
    weights = F.dropout(_nothing_of_hidden(_weights(query * factor, key, masks), masks), dropout_p, dropout_p > 0)
    return torch.matmul(weights, value)


def multihead_attention(
    self: nn.MultiheadAttention,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Any, Any]:
    """`nn.MultiheadAttention.forward`."""
    is_batched = example_of(query).dim() == 3
    tokens = 1 if self.batch_first and is_batched else 0  # the axis of the sequence
    q, k, v = _projected(self, query, key, value)
    if self.bias_k is not None and self.bias_v is not None:
        k, v = (_with_row(each, row, tokens) for each, row in ((k, self.bias_k), (v, self.bias_v)))
    q, k, v = (_in_heads(each, self.num_heads, self.head_dim, tokens, is_batched) for each in (q, k, v))
    if self.add_zero_attn:
        k, v = (torch.cat([each, torch.zeros_like(each[..., :1, :])], -2) for each in (k, v))
    added = (self.bias_k is not None) + self.add_zero_attn
    masks = []
    has_mask, has_padding = (example_of(mask) is not None for mask in (attn_mask, key_padding_mask))
    if has_mask and is_causal and not has_padding and not need_weights:
        masks.append(_padded(_later_hidden(query, key, tokens), added))
    elif has_mask:
        per_head = example_of(attn_mask).dim() == 3 and is_batched
        mask = attn_mask.unflatten(0, (-1, self.num_heads)) if per_head else attn_mask
        masks.append(_padded(_added(mask, hides=True), added))
    if has_padding:
        mask = key_padding_mask.unsqueeze(-2)
        masks.append(_padded(_added(mask.unsqueeze(-2) if is_batched else mask, hides=True), added))
    weights = _weights(q * (1 / math.sqrt(self.head_dim)), k, masks)
    if self.dropout > 0:
        weights = F.dropout(weights, self.dropout, self.training)
    heads = torch.matmul(weights, v)
    order = [0, 2, 1, 3] if tokens else [2, 0, 1, 3]
    joined = (heads.permute(order) if is_batched else heads.transpose(0, 1)).flatten(-2)
    if not need_weights:
        return self.out_proj(joined), None
    return self.out_proj(joined), weights.mean(-3) if average_attn_weights else weights


def multi_head_attention_forward(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """`F.multi_head_attention_forward`: the same of parameters that are handed over. Keys and values that are given as
    they are, without a projection, are not implemented."""
    if static_k is not None or static_v is not None:
        return NotImplemented
    parameters: Any = SimpleNamespace(
        embed_dim=embed_dim_to_check,
        num_heads=num_heads,
        head_dim=embed_dim_to_check // num_heads,
        batch_first=False,
        in_proj_weight=None if use_separate_proj_weight else in_proj_weight,
        in_proj_bias=in_proj_bias,
        q_proj_weight=q_proj_weight,
        k_proj_weight=k_proj_weight,
        v_proj_weight=v_proj_weight,
        bias_k=bias_k,
        bias_v=bias_v,
        add_zero_attn=add_zero_attn,
        dropout=dropout_p,
        training=training,
        out_proj=lambda heads: F.linear(heads, out_proj_weight, out_proj_bias),
    )
    given = (query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
    return multihead_attention(parameters, *given)


def _projected(self: nn.MultiheadAttention, query: Any, key: Any, value: Any) -> Sequence[Any]:
    """Queries, keys and values: of one tensor by one product, as torch does it."""
    size, bias = self.embed_dim, self.in_proj_bias
    weight: Any = self.in_proj_weight
    thirds = [(place * size, (place + 1) * size) for place in range(3)]
    if weight is not None and key is value:
        if query is key:
            return torch.chunk(F.linear(query, weight, bias), 3, -1)
        q = F.linear(query, _rows(weight, 0, size), _rows(bias, 0, size))
        both = F.linear(key, _rows(weight, size, 3 * size), _rows(bias, size, 3 * size))
        return [q, *torch.chunk(both, 2, -1)]
    weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
    if weight is not None:
        weights = [_rows(weight, *part) for part in thirds]
    given = zip((query, key, value), weights, thirds, strict=True)
    return [F.linear(x, each, _rows(bias, *part)) for x, each, part in given]


def _rows(parameter: Any, start: int, stop: int) -> Any:
    return None if parameter is None else parameter[start:stop]


def _with_row(x: Any, row: Any, tokens: int) -> Any:
    """`x` with the token `row` appended in each sample."""
    first = x[:, :1] if tokens else x[:1]
    if example_of(x).dim() == 2:
        return torch.cat([x, row.squeeze(0)])
    return torch.cat([x, row.expand_as(first)], tokens)


def _in_heads(x: Any, heads: int, size: int, tokens: int, is_batched: bool) -> Any:
    """Splits the features of tokens into heads: (..., head, token, feature)."""
    parted = x.unflatten(-1, (heads, size))
    if not is_batched:
        return parted.transpose(0, 1)
    return parted.permute([0, 2, 1, 3] if tokens else [1, 2, 0, 3])


def _weights(query: Any, key: Any, masks: Sequence[Any]) -> Any:
    """Attention weights, which sum up to 1."""
    scores = torch.matmul(query, key.transpose(-2, -1))
    for mask in masks:
        scores = scores + mask
    return torch.softmax(scores, -1)


def _nothing_of_hidden(weights: Any, masks: Sequence[Any]) -> Any:
    """Sets the weights of a token that sees no other to 0, as torch's fused attention does. Only if the example inputs
    have such a token, because it costs an operation of the size of the weights."""
    if not masks:
        return weights
    sees = sum(masks[1:], start=masks[0]).amax(-1, keepdim=True) > HIDDEN / 2
    return weights if example_of(sees).all() else weights * torch.where(sees, 1.0, 0.0)


def _added(mask: Any, *, hides: bool) -> Any:
    """A mask as an addend of the scores. A boolean mask either hides scores or lets them be seen."""
    if example_of(mask).dtype == torch.bool:
        return torch.where(mask, HIDDEN, 0.0) if hides else torch.where(mask, 0.0, HIDDEN)
    return mask.clamp(min=HIDDEN)


def _later_hidden(query: Any, key: Any, tokens: int = -2) -> Any:
    """A causal mask, which hides later tokens."""
    rows, columns = (torch.arange(each.size(tokens), device=each.device) for each in (query, key))
    return torch.where(rows.unsqueeze(1) < columns, HIDDEN, 0.0)


def _padded(mask: Any, columns: int) -> Any:
    return F.pad(mask, (0, columns)) if columns else mask


def _repeated(x: Any, times: int) -> Any:
    """Each head repeated consecutively."""
    if times == 1:
        return x
    sizes = [-1] * (example_of(x).dim() - 2)
    return x.unsqueeze(-3).expand(*sizes, times, -1, -1).flatten(-4, -3)
