"""Stores tensors that autograd saves for the backward pass as one-byte codes if they are on a grid.

A convolution keeps its quantized input and weight for the backward pass. Both are `code * scale`, so the codes, a
quarter of the memory, give them back bit for bit, and the gradients with them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from detent.graph.recomputing import Watch
from detent.numerics import QParams, Scheme, keep_residues
from detent.quantizers import Quantizer

__all__ = ["compress_saved_activations"]


@dataclass(frozen=True)
class _Codes:
    """A tensor on a grid, stored as codes counted from the lowest one: one byte each."""

    codes: Tensor
    qparams: QParams
    scheme: Scheme
    like: Tensor  # of no elements: remembers dtype and layout

    @classmethod
    def of(cls, values: Tensor, qparams: QParams, scheme: Scheme) -> _Codes:
        scale, offset = _expanded(qparams, scheme, values.ndim)
        codes = torch.round(scheme.granularity.blocked(values) / scale) + offset
        return cls(codes.to(torch.uint8).reshape(values.shape), qparams, scheme, values.new_empty(0))

    def values(self) -> Tensor:
        """The same product, code times scale, that the quantizer computed."""
        scale, offset = _expanded(self.qparams, self.scheme, self.codes.ndim)
        blocked = self.scheme.granularity.blocked(self.codes.to(scale.dtype)) - offset
        return (blocked * scale).reshape(self.codes.shape).to(self.like.dtype)


@dataclass(frozen=True)
class _View:
    """A tensor that shares its memory with the output of a quantizer: the codes of that, and where in it this lies."""

    whole: _Codes
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def values(self) -> Tensor:
        return self.whole.values().as_strided(self.size, self.stride, self.offset)


@dataclass
class _Output:
    """The output of a quantizer, and its codes once they are needed, so that two views share them."""

    tensor: weakref.ref[Tensor]
    qparams: QParams
    scheme: Scheme
    codes: _Codes | None = None

    def kept(self, tensor: Tensor) -> Tensor | _View:
        """`tensor`, which shares this memory, as codes if they reproduce it exactly."""
        output = self.tensor()
        # The output must still be alive: the memory of a dead one may be another tensor's by now.
        if output is None or output.dtype != tensor.dtype or output.nbytes != output.untyped_storage().nbytes():
            return tensor
        codes = self.codes or _Codes.of(output, self.qparams, self.scheme)
        view = _View(codes, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
        if not torch.equal(view.values(), tensor):
            return tensor
        self.codes = codes
        return view


def _expanded(qparams: QParams, scheme: Scheme, rank: int) -> tuple[Tensor, Tensor]:
    expand = scheme.granularity.expand
    offset = (qparams.zero_point - scheme.grid.qmin).to(qparams.scale.dtype)
    return expand(qparams.scale, rank), expand(offset, rank)


@contextmanager
def compress_saved_activations(prepared: nn.Module, *, exact: bool = True) -> Iterator[None]:
    """Inside the block, forward passes keep codes instead of floats; no bit of a gradient changes.

        with detent.compress_saved_activations(prepared):
            loss = criterion(prepared(x), y)
        loss.backward()

    For grids of up to 8 bits. A tensor that its codes would not give back exactly (one that a method leaves partly
    float in training) is kept as it is.

    A learned scale (`lsq`) needs its input as well, which is on no grid. With `exact=False` one byte an element is kept
    of that too. Gradients of weights and activations are then still the same; each element's share in the gradient of a
    scale is off by up to 1/504 of the gradient of that element. Second derivatives are an error.
    """
    outputs: dict[int, _Output] = {}

    def pack(tensor: Tensor) -> Tensor | _View:
        output = outputs.get(tensor.untyped_storage().data_ptr())
        return tensor if output is None else output.kept(tensor)

    handles = [
        module.register_forward_hook(Watch(partial(_remember, outputs)))
        for module in prepared.modules()
        if isinstance(module, Quantizer) and module.scheme.grid.is_uniform and module.scheme.grid.bits <= 8
    ]
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, _unpack), nullcontext() if exact else keep_residues():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _unpack(kept: Tensor | _View) -> Tensor:
    return kept.values() if isinstance(kept, _View) else kept


def _remember(outputs: dict[int, _Output], quantizer: Quantizer, output: Tensor) -> None:
    found = quantizer.qparams()
    # Copies: an optimizer step before the backward pass must not move them.
    qparams = QParams(found.scale.clone(), found.zero_point.clone())
    outputs[output.untyped_storage().data_ptr()] = _Output(weakref.ref(output), qparams, quantizer.scheme)
