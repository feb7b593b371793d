"""A rewrite: a change of the deployed network that computes the same with other operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from detent.rewrites.network_editor import NetworkEditor

__all__ = ["Rewrite", "rewrite"]


@dataclass(frozen=True)
class Rewrite:
    """A target's answer to an operation that its engine does not run on integers, does not load or computes wrongly.

    - `name`: what a backend calls it in `rewrites`.
    - `why`: a sentence for users: what becomes of the operation otherwise, with the damage that was measured.
    - `needed_for`: the releases that it was measured with ("openvino<=2026.4.1"). A newer one is measured again, so
      that a workaround can expire.
    - `apply`: changes a network in the making.
    """

    name: str
    why: str
    needed_for: tuple[str, ...]
    apply: Callable[[NetworkEditor], None]


def rewrite(*, why: str, needed_for: tuple[str, ...]) -> Callable[[Callable[[NetworkEditor], None]], Rewrite]:
    """Make a function a Rewrite, under its own name."""

    def made(apply: Callable[[NetworkEditor], None]) -> Rewrite:
        return Rewrite(apply.__name__, why, needed_for, apply)

    return made
