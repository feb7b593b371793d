"""What the model returns as outputs of the ONNX graph, each under a name of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from onnx import helper

from detent.errors import DeployError
from detent.frontends.torch.builder import ONNX_TYPES, Builder
from detent.frontends.torch.values import Free, Ref

__all__ = ["write_outputs"]


def write_outputs(b: Builder, value: Any) -> None:
    """`value` is what the model returns, with a `Ref` for each tensor."""
    ends = list(_named("output", value))
    if len(ends) == 1:
        ends = [("output", ends[0][1])]
    renamed: dict[str, str] = {}  # tensors that have the name of an output now
    for name, ref in ends:
        _write(b, name, ref, renamed)


def _write(b: Builder, name: str, ref: Ref, renamed: dict[str, str]) -> None:
    """Give the tensor the output's name if nobody else needs its own; else copy it."""
    free, given = b.fresh(name), renamed.get(ref.name, ref.name)
    maker = next((node for node in b.nodes if given in node.output), None)
    if maker is not None and maker.op_type == "DequantizeLinear" and ref.name not in renamed:
        renamed[given] = free
        for node in b.nodes:
            for names in (node.input, node.output):
                names[:] = [free if held == given else held for held in names]
    else:
        b.nodes.append(helper.make_node("Identity", [given], [free], name=free))
    b.outputs.append(helper.make_tensor_value_info(free, ONNX_TYPES[ref.dtype], list(ref.shape)))


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
