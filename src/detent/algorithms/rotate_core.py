"""Ashkboos et al., "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", NeurIPS 2024 (arXiv 2404.00456).

An orthogonal R turns the channels of the residual stream, x -> R' x. A norm x / rms(x) without gains commutes with it,
so the network computes the same if what writes into the stream is turned too and what reads it is turned back:

    reader:   W (x g) = (W diag(g) R) (R' x)          writer:   R' (W y + b) = (R' W) y + R' b

R is a Hadamard matrix with signs at random, which spreads an outlier evenly over the channels.

>>> turn = rotation(4, seed=0)
>>> torch.equal(turn @ turn.T, torch.eye(4, dtype=turn.dtype)), turn.abs().unique().tolist()
(True, [0.5])
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["read_turned", "rotation", "write_turned"]


def rotation(size: int, *, seed: int) -> Tensor:
    """A random orthogonal (size, size) matrix in float64: a Hadamard matrix for the largest power of two that divides
    `size`, times a random orthogonal matrix for the rest."""
    random = torch.Generator().manual_seed(seed)
    power = size & -size
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    while len(hadamard) < power:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    hadamard /= math.sqrt(power)
    rest = size // power
    if rest > 1:
        mixed, _ = torch.linalg.qr(torch.randn(rest, rest, generator=random, dtype=torch.float64))
        hadamard = torch.kron(mixed.contiguous(), hadamard)
    signs = torch.randint(0, 2, (size, 1), generator=random, dtype=torch.float64) * 2 - 1
    return signs * hadamard


def read_turned(weight: Tensor, gain: Tensor, turn: Tensor) -> Tensor:
    """The rotated weight (outputs, inputs) of a layer after a norm, with the gains of the norm folded in."""
    return ((weight.double() * gain.double()) @ turn).to(weight.dtype)


def write_turned(values: Tensor, turn: Tensor) -> Tensor:
    """Rotates the last axis of what is added to the stream: rows of an embedding, a transposed weight, a bias."""
    return (values.double() @ turn).to(values.dtype)
