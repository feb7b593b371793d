"""Fourier transforms, as used at the input of speech networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.reading.sizes import bounded

__all__ = ["CONVERTERS"]


def _dft(call: Call) -> Any:
    inverse, onesided = bool(call.integer("inverse")), bool(call.integer("onesided"))
    if inverse and onesided:
        call.refuse("an inverse transform of half a spectrum", "transform the whole one")
    if call.opset < 20:
        return call.op(
            dft, call.value(0), call.optional(1), None, axis=call.integer("axis"), inverse=inverse, onesided=onesided
        )
    given = (call.value(0), call.optional(1), call.optional(2))
    return call.op(dft, *given, axis=-2, inverse=inverse, onesided=onesided)


def dft(x: Tensor, length: Tensor | None, along: Tensor | None, *, axis: int, inverse: bool, onesided: bool) -> Tensor:
    """The last axis holds real and imaginary parts, or real ones only."""
    at = (axis if along is None else int(along)) % x.ndim
    count = x.shape[at] if length is None else int(length)
    bounded([*x.shape[:at], count, *x.shape[at + 1 :]])
    numbers = x[..., 0] if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())
    spectrum = (torch.fft.ifft if inverse else torch.fft.fft)(numbers, n=count, dim=at)
    if onesided:
        spectrum = spectrum.narrow(at, 0, count // 2 + 1)
    return torch.view_as_real(spectrum)


def _stft(call: Call) -> Any:
    given = (call.value(0), call.value(1), call.optional(2), call.optional(3))
    return call.op(stft, *given, onesided=bool(call.integer("onesided")))


def stft(signal: Tensor, step: Tensor, window: Tensor | None, length: Tensor | None, *, onesided: bool) -> Tensor:
    """(batch, frames, bins, 2)."""
    if length is None and window is None:
        raise ValueError("neither a window nor a frame length is given")
    count = int(length) if length is not None else window.shape[0] if window is not None else 0
    numbers = signal  # a real one may lack the last axis, as runtimes take it
    if signal.ndim > 2:
        numbers = signal[..., 0] if signal.shape[-1] == 1 else torch.view_as_complex(signal.contiguous())
    frames = numbers.unfold(1, count, int(step))
    spectrum = torch.fft.fft(frames if window is None else frames * window)
    return torch.view_as_real(spectrum[..., : count // 2 + 1] if onesided else spectrum)


CONVERTERS: dict[str, Converter] = {"DFT": _dft, "STFT": _stft}
