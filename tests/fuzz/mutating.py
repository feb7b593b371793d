"""Damage to files: bytes at random, and values of JSON by others of any kind."""

from __future__ import annotations

import json
import random
from typing import Any

__all__ = ["mutated"]

_NUMBERS = (0, 1, -1, 127, 128, 255, 256, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63, 10**12, 10**400)
_VALUES: tuple[Any, ...] = (
    *_NUMBERS, 0.5, -0.0, 1e308, float("inf"), float("nan"), True, None, "", "x", "../x", "/", "a\0b", "\ud800" * 2,
    "x" * 5000, "os:system", [], [None], {}, {"": None}, [[[[]]]], [0] * 3000,
)  # fmt: skip
_WORDS = (
    b"",
    b"\0",
    b"\xff" * 8,
    b"0",
    b"-1",
    b"nan",
    b"inf",
    b"1e999",
    b"99999999999999999999",
    b"{",
    b"[",
    b"\n",
    b":",
)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """The content with one to four damages; as JSON, if it is that, every other time."""
    if draw.random() < 0.5 and content[:1] in (b"{", b"["):
        try:
            return _damaged_json(content, draw)
        except (ValueError, RecursionError):
            pass
    made = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 4))):
        _damage(made, draw)
    return bytes(made)


def _damage(made: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(made) + 1)
    match draw.randrange(8):
        case 0:
            del made[at:]
        case 1:
            del made[at : at + draw.choice((1, 2, 4, 64))]
        case 2:
            made[at:at] = draw.choice(_WORDS)
        case 3 if made:
            made[at % len(made)] ^= 1 << draw.randrange(8)
        case 4 if made:
            made[at % len(made)] = draw.choice((0, 1, 127, 128, 255))
        case 5:
            width = draw.choice((2, 4, 8))
            made[at : at + width] = (draw.choice(_NUMBERS[:-1]) % 2 ** (8 * width)).to_bytes(width, "little")
        case 6:
            part = made[at : at + draw.choice((1, 8, 64))]
            made[at:at] = part * draw.choice((1, 3, 50))
        case _:
            _replace_number(made, at, draw)


def _replace_number(made: bytearray, at: int, draw: random.Random) -> None:
    """The next number of a text by another."""
    start = next((i for i in range(at, len(made)) if 48 <= made[i] <= 57), None)
    if start is None:
        return
    end = next((i for i in range(start, len(made)) if not 48 <= made[i] <= 57), len(made))
    made[start:end] = str(draw.choice(_NUMBERS[:-1])).encode()


def _damaged_json(content: bytes, draw: random.Random) -> bytes:
    data = json.loads(content)
    places: list[tuple[Any, Any]] = []
    waiting = [data]
    while waiting:
        held = waiting.pop()
        for key, value in held.items() if isinstance(held, dict) else enumerate(held):
            places.append((held, key))
            if isinstance(value, (dict, list)):
                waiting.append(value)
    for _ in range(draw.choice((1, 1, 2))):
        if not places:
            break
        held, key = draw.choice(places)
        match draw.randrange(4):
            case 0 if isinstance(held, dict) and key in held:
                del held[key]
            case 1 if isinstance(held, dict):
                held["other"] = draw.choice(_VALUES)
            case _:
                if not isinstance(held, list) or key < len(held):
                    held[key] = draw.choice(_VALUES)
    return json.dumps(data).encode("utf-8", "surrogatepass")
