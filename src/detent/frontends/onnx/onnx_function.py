"""An ONNX operation without an equivalent torch function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["OnnxFunction"]


class OnnxFunction(nn.Module):
    """A function of this package with its attributes, as one node of the graph that tracing does not look into.

    `kind` is the name it has in the table of kinds, or "" if it has none; `operator` is that of the node in the file.
    """

    def __init__(self, function: Callable[..., Any], kind: str, attributes: dict[str, Any], *, operator: str):
        super().__init__()
        self.function, self.kind, self.attributes, self.operator = function, kind, attributes, operator

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs, **self.attributes)

    def extra_repr(self) -> str:
        return ", ".join([self.function.__name__, *(f"{name}={value}" for name, value in self.attributes.items())])
