"""A hardware target as one value: what the planner reads, and the code that comes with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from detent.errors import RegistrationError
from detent.planning import Backend
from detent.rewrites import Rewrite

__all__ = ["Target"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """All that is known of a target. What is given as a place, "module:object", is imported when it is first used.

    - `backend`: what the planner reads. It names the rewrites, files, engine and arithmetic that are used.
    - `rewrites`: those that it names, in the same order.
    - `formats`: the place of each `Format` of its own.
    - `readers`: by the suffix of a file, the place of a function from its bytes to a `Network`, for the twin to run.
    - `engine`: the place of the `Engine` that `backend.engine` names, if it is of its own.
    - `arithmetics`: the place of each `Arithmetic` of its own.
    - `layer_format`: the place of the `LayerFormat` of a target that takes language models a layer at a time.
    - `library`: what Hugging Face calls the library that loads its files (`library_name` of a model card).

    What belongs to another target, or to none, such as the format "onnx", is named and not given again.
    """

    backend: Backend
    rewrites: tuple[Rewrite, ...] = ()
    formats: Mapping[str, str] = field(default_factory=dict, hash=False)
    readers: Mapping[str, str] = field(default_factory=dict, hash=False)
    engine: str | None = None
    arithmetics: Mapping[str, str] = field(default_factory=dict, hash=False)
    layer_format: str | None = None
    library: str = "onnx"

    def __post_init__(self) -> None:
        given = tuple(each.name for each in self.rewrites)
        if given != self.backend.rewrites:
            raise RegistrationError(
                f"rewrites of target {self.name!r}: {', '.join(given)}",
                f"its backend names {', '.join(self.backend.rewrites)}",
                "give those that the backend names, in its order",
            )
        if self.engine is not None and self.backend.engine is None:
            raise RegistrationError(
                f"engine of target {self.name!r}: {self.engine}", "its backend names none", "name it in the backend"
            )

    @property
    def name(self) -> str:
        return self.backend.name
