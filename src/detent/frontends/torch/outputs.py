"""Turns what the model returns into outputs of the network with unique names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from detent.errors import DeployError
from detent.frontends.torch.builder import Builder, dtype_name, operand_of
from detent.frontends.torch.values import Free, Ref
from detent.ir import Output

__all__ = ["write_outputs"]


def write_outputs(b: Builder, value: Any) -> None:
    """`value` is what the model returns, with a `Ref` for each tensor."""
    ends = list(_named("output", value))
    if len(ends) == 1:
        ends = [("output", ends[0][1])]
    b.outputs += [
        Output(b.fresh(name), operand_of(ref), dtype=dtype_name(ref.dtype), shape=ref.shape) for name, ref in ends
    ]


def _named(stem: str, value: Any) -> Iterator[tuple[str, Ref]]:
    if isinstance(value, Ref):
        yield stem, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _named(str(key), part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            yield from _named(one.name, getattr(value, one.name))
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _named(f"{stem}_{index}", part)
    elif isinstance(value, Free):
        raise DeployError("deploy the model", "it returns a size of the batch", "return tensors")
