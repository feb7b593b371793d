"""Requests for some layers only."""

from __future__ import annotations

from fnmatch import fnmatchcase

from pydantic import model_validator

from detent.quantizers import Role
from detent.recipes.checks import Text
from detent.recipes.refusal import RefusalError
from detent.recipes.section import Section
from detent.recipes.tensor_request import TensorRequest

__all__ = ["Match", "Rule"]


class Match(Section, frozen=True):
    """Selects layers: globs (`*`, `?`, `[abc]`, case-sensitive) for the name, the kind of operator, or both.

    >>> Match(name="layer1.*", kind="conv*").matches("layer1.0.up", "conv_transpose")
    True
    """

    name: Text | None = None
    kind: Text | None = None

    def matches(self, name: str, kind: str) -> bool:
        """Whether every glob that is given fits."""
        globs = ((self.name, name), (self.kind, kind))
        return all(glob is None or fnmatchcase(word, glob) for glob, word in globs)

    def __str__(self) -> str:
        return " and ".join(f"{field} {glob!r}" for field, glob in self._stated())

    @model_validator(mode="after")
    def _check(self) -> Match:
        if self.name is None and self.kind is None:
            raise RefusalError("it has neither name nor kind", "add a name glob, a kind glob, or both")
        return self


class Rule(Section, frozen=True):
    """Requests for the tensors of the layers that match, laid over the recipe's own.

    `quantize` speaks for all tensors of the layer, unless the request for one of them says otherwise. A rule
    that asks for nothing keeps the rules after it away.
    """

    match: Match
    weight: TensorRequest = TensorRequest()
    activation: TensorRequest = TensorRequest()
    bias: TensorRequest = TensorRequest()
    quantize: bool | None = None

    def request(self, role: Role) -> TensorRequest:
        """The rule's request for the tensor with that role."""
        request: TensorRequest = getattr(self, role)
        if request.quantize is None and self.quantize is not None:
            return request.model_copy(update={"quantize": self.quantize})
        return request
