"""The operation before a rewrite, stored with the one that replaces it so that the rewrite can be undone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Op

__all__ = ["ORIGINAL", "Original"]

ORIGINAL = "detent.form"
"""The key in the metadata of an operation that keeps what it was."""
_REWRITE = "form"  # what rewrites are called in files


@dataclass(frozen=True)
class Original:
    """The name of the rewrite, and the attributes, the shape of the weights and the size of the images before it."""

    rewrite: str
    attributes: Mapping[str, Any]
    weight: tuple[int, ...]
    image: tuple[int, ...]

    @property
    def metadata(self) -> dict[str, str]:
        kept = asdict(self)
        return {ORIGINAL: json.dumps({_REWRITE: kept.pop("rewrite"), **kept})}

    @classmethod
    def of(cls, op: Op) -> Original | None:
        """The original that an operation stores, if it was rewritten."""
        if ORIGINAL not in op.metadata:
            return None
        stored = json.loads(op.metadata[ORIGINAL])
        return cls(stored[_REWRITE], stored["attributes"], tuple(stored["weight"]), tuple(stored["image"]))

    def gathered(
        self, spread: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], weights: npt.NDArray[Any]
    ) -> npt.NDArray[Any]:
        """The inverse of `spread`, which only moves weights and adds zeros."""
        count = int(np.prod(self.weight))
        places = spread(np.arange(1, count + 1).reshape(self.weight))
        found = np.empty(count, weights.dtype)
        found[places[places > 0] - 1] = weights[places > 0]
        return found.reshape(self.weight)
