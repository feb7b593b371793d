"""OpenMMLab's registries: names to a user's classes, in front of Detent's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from detent.errors import RegistrationError, UnknownNameError

__all__ = ["DATASETS", "LOOPS", "MODELS", "TASK_UTILS", "Registry"]

T = TypeVar("T", bound=type)


class Registry:
    """`@REGISTRY.register_module()` and `REGISTRY.build(dict(type=..., ...))`; scopes before a dot are dropped.

    What a user registers comes before what is built in under the same name. A second class of the user's under one
    name needs `force=True`.
    """

    def __init__(self, name: str):
        self.name = name
        self._own: dict[str, type] = {}
        self._built_in: dict[str, type] = {}

    def register_module(self, name: str | None = None, *, force: bool = False) -> Callable[[T], T]:
        def register(cls: T) -> T:
            called = name or cls.__name__
            if called in self._own and self._own[called] is not cls and not force:
                raise RegistrationError(
                    f"register {called!r} in {self.name}", "the name is taken", "choose another, or force=True"
                )
            self._own[called] = cls
            return cls

        return register

    def offer(self, *classes: type, **named: type) -> None:
        """What is there without being registered."""
        self._built_in.update({cls.__name__: cls for cls in classes} | named)

    def registered(self, name: str) -> type | None:
        """What the user registered under a name."""
        return self._own.get(name)

    def get(self, name: str) -> type:
        """The class of a name, with or without a scope in front."""
        for table in (self._own, self._built_in):
            for key in (name, name.rpartition(".")[2]):
                if key in table:
                    return table[key]
        known = sorted({*self._own, *self._built_in})
        near = get_close_matches(name.rpartition(".")[2], known, n=1)
        raise UnknownNameError(
            f"{name!r} in {self.name}",
            f"not one of {', '.join(known)}",
            f"did you mean {near[0]!r}?" if near else f"@{self.name}.register_module() it",
        )

    def build(self, cfg: Any, **default: Any) -> Any:
        """What a dict with a `type` describes; anything but a dict is given back."""
        if not isinstance(cfg, Mapping):
            return cfg
        given = {key: value for key, value in {**default, **cfg}.items() if key != "_scope_"}
        kind = given.pop("type", None)
        if kind is None:
            raise UnknownNameError(f"build {dict(cfg)!r} from {self.name}", "it has no type", "add type='...'")
        return (kind if isinstance(kind, type) else self.get(kind))(**given)


MODELS, TASK_UTILS = Registry("MODELS"), Registry("TASK_UTILS")
LOOPS, DATASETS = Registry("LOOPS"), Registry("DATASETS")
