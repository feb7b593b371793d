"""The table of torch functions and modules that are decomposed while capturing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

from detent.graph.decompositions.attention import (
    multi_head_attention_forward,
    multihead_attention,
    scaled_dot_product_attention,
)
from detent.graph.decompositions.cells import CELL_MODULES, CELLS
from detent.graph.decompositions.gated import gated
from detent.graph.decompositions.products import addmm, baddbmm, einsum
from detent.graph.decompositions.transformer import decoder, decoder_layer, encoder, encoder_layer, transformer

__all__ = [
    "DECOMPOSED_FUNCTIONS",
    "decomposed_modules",
    "is_decomposed_module",
    "is_wrapped_function",
    "without_fast_path",
]

DECOMPOSED_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    F.glu: gated,
    F.multi_head_attention_forward: multi_head_attention_forward,
    F.scaled_dot_product_attention: scaled_dot_product_attention,
    torch.addmm: addmm,
    torch.baddbmm: baddbmm,
    torch.einsum: einsum,
    **CELLS,
}
"""What computes the same, of proxies, in operations that targets know."""

_FORWARDS: Mapping[type[nn.Module], Callable[..., Any]] = {
    nn.MultiheadAttention: multihead_attention,
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerDecoderLayer: decoder_layer,
    nn.TransformerEncoder: encoder,
    nn.TransformerDecoder: decoder,
    nn.Transformer: transformer,
}


def is_decomposed_module(module: nn.Module) -> bool:
    """Whether it is traced into, though torch.fx takes the layers of torch for single operations."""
    return type(module) in (nn.GLU, *CELL_MODULES) or isinstance(module, tuple(_FORWARDS))


def is_wrapped_function(target: Any) -> bool:
    """Whether a node calls a function of Python that is neither torch's nor ours: its author hides it from tracing by
    `torch.fx.wrap`."""
    home = str(getattr(target, "__module__", "")).partition(".")[0]
    return isinstance(target, FunctionType) and home not in ("torch", "detent")


@contextmanager
def decomposed_modules() -> Iterator[None]:
    """A context for tracing, in which the `forward` methods of these classes can be traced and compute the same as
    before."""
    with ExitStack() as stack:
        for owner, forward in _FORWARDS.items():
            stack.enter_context(mock.patch.object(owner, "forward", forward))
        yield


@contextmanager
def without_fast_path() -> Iterator[None]:
    """A context in which torch's attention computes as in training: its inference path returns zeros for padding
    tokens."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
