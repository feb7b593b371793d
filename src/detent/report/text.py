"""How figures are written, and which of six classes of color they are in."""

from __future__ import annotations

import math
from enum import Enum

from detent.report.facts import Node

__all__ = ["Scale", "bits_class", "byte_size", "decibels", "percent", "share", "short", "width_text"]


class Scale(Enum):
    """Bounds of the classes 0 (good) to 5 (bad), and what they are called in a legend."""

    SQNR = (40.0, 30.0, 20.0, 15.0, 10.0), "dB", False
    ALONE = (50.0, 40.0, 30.0, 20.0, 10.0), "dB", False
    LSB = (0.0, 1.0, 2.0, 4.0, 8.0), "LSB", True

    def class_of(self, value: float | None) -> str:
        """
        >>> Scale.SQNR.class_of(35.0), Scale.SQNR.class_of(3.0), Scale.LSB.class_of(1.0), Scale.LSB.class_of(None)
        ('1', '5', '1', 'none')
        """
        bounds, _, rising = self.value
        if value is None or math.isnan(value):
            return "none"
        return str(next((i for i, b in enumerate(bounds) if (value <= b if rising else value >= b)), len(bounds)))

    @property
    def labels(self) -> tuple[str, ...]:
        bounds, unit, rising = self.value
        sign, last = ("\N{LESS-THAN OR EQUAL TO}", ">") if rising else ("\N{GREATER-THAN OR EQUAL TO}", "<")
        first = [f"{bound:g} {unit}" if rising and not bound else f"{sign} {bound:g} {unit}" for bound in bounds]
        return (*first, f"{last} {bounds[-1]:g} {unit}")


def bits_class(bits: int | None) -> str:
    """
    >>> bits_class(None), bits_class(1), bits_class(3), bits_class(8), bits_class(16)
    ('float', '2', '4', '8', '16')
    """
    return "float" if bits is None else next((str(b) for b in (2, 4, 6, 8, 16) if bits <= b), "16")


def width_text(node: Node) -> str:
    """The widths that an operation reads: W4 A8."""
    parts = (("W", node.weight_bits), ("A", node.activation_bits))
    return " ".join(f"{letter}{bits}" for letter, bits in parts if bits is not None) or "float"


def decibels(value: float | None, absent: str = "\N{EN DASH}") -> str:
    """
    >>> decibels(41.26), decibels(math.inf), decibels(None, "")
    ('41.3 dB', 'equal', '')
    """
    return absent if value is None else "equal" if value == math.inf else f"{value:.1f} dB"


def percent(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{value:.2f} %"


def share(value: float) -> str:
    """A part of all, with no false zero.

    >>> share(0.0), share(0.00001), share(0.125), share(0.0012)
    ('0 %', '< 0.01 %', '12.5 %', '0.12 %')
    """
    if not value:
        return "0 %"
    return "< 0.01 %" if value < 1e-4 else f"{100 * value:.3g} %" if value >= 0.01 else f"{100 * value:.2f} %"


def byte_size(count: float) -> str:
    """
    >>> byte_size(999), byte_size(93157), byte_size(12.3e6)
    ('999 B', '93.2 kB', '12.3 MB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def short(text: str, most: int) -> str:
    """The beginning and the end, which tell names of layers apart.

    >>> short("layer1.0.downsample.conv", 15)
    'layer1\N{HORIZONTAL ELLIPSIS}ple.conv'
    """
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 5 + 1
    return f"{text[:head]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - (most - 1 - head) :]}"
