"""Short-time spectra without complex numbers: convolutions whose kernels are waves under a window."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["stft_channels", "stft_kernels"]


def stft_channels(
    input: Tensor,  # noqa: A002 - torch's name
    n_fft: int,
    hop_length: int,
    win_length: int,
    window: Tensor | None,
    center: bool,
    pad_mode: str,
    normalized: bool,
    onesided: bool,
) -> Tensor:
    """The result of `torch.stft` with the real parts of all frequencies followed by the imaginary ones: (..., 2 F,
    T)."""
    kernels = stft_kernels(n_fft, win_length, window, normalized=normalized, onesided=onesided).to(input)
    x = input.unsqueeze(-2)
    if center:
        half = n_fft // 2
        x = F.pad(x, (half, half), mode=pad_mode)
    return F.conv1d(x, kernels, stride=hop_length)


def stft_kernels(n_fft: int, win_length: int, window: Tensor | None, *, normalized: bool, onesided: bool) -> Tensor:
    """The kernels, (2 F, 1, n_fft): cosines and, behind them, sines."""
    shape = torch.ones(win_length).double() if window is None else window.detach().double().cpu()
    before = (n_fft - win_length) // 2
    shape = F.pad(shape, (before, n_fft - win_length - before)) / (n_fft**0.5 if normalized else 1)
    count = n_fft // 2 + 1 if onesided else n_fft
    turns = torch.outer(torch.arange(count), torch.arange(n_fft)) % n_fft
    angles = 2 * torch.pi * turns.double() / n_fft
    waves = torch.cat([torch.cos(angles), -torch.sin(angles)]) * shape
    # Sines of whole turns are 0, and not the 1e-16 that is left of them.
    return waves.round(decimals=12).float().unsqueeze(1)
