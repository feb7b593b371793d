"""One layer of a Caffe network as its converter sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from torch import Tensor, fx, nn

from detent.errors import OnnxError
from detent.frontends.onnx.builder import Constant, FxBuilder

__all__ = ["Layer", "pair"]


class Layer:
    """One layer: its message, the nodes it takes, its weights, and how to answer."""

    def __init__(
        self,
        kind: str,
        message: Any,
        inputs: Sequence[fx.Node],
        blobs: Sequence[Tensor],
        builder: FxBuilder,
        *,
        rank: int = 4,
        scale: Layer | None = None,
    ):
        self.kind, self.message, self.inputs, self.blobs = kind, message, list(inputs), list(blobs)
        self.scale = scale  # the Scale layer that alone follows a BatchNorm and is part of it
        self.rank = rank  # of its inputs, and, once it is converted, of its outputs
        self._builder = builder

    @property
    def x(self) -> fx.Node:
        if len(self.inputs) != 1:
            self.refuse(f"{len(self.inputs)} bottoms", "it takes one")
        return self.inputs[0]

    def blob(self, index: int, what: str) -> Tensor:
        if index >= len(self.blobs):
            self.refuse(f"the .caffemodel has no {what} for it", "give the .caffemodel that belongs to the .prototxt")
        return self.blobs[index]

    def shaped(self, index: int, what: str, *shape: int) -> nn.Parameter:
        """A weight of the size that the layer says it has."""
        values = self.blob(index, what)
        # Sizes of one are not compared: the old format has four dimensions for everything.
        if [size for size in values.shape if size != 1] != [size for size in shape if size != 1]:
            self.refuse(
                f"a {what} of {list(values.shape)}", f"it should be {list(shape)}: is it the right .caffemodel?"
            )
        return nn.Parameter(values.reshape(shape).clone())

    def apply(self, function: Callable[..., Any], *args: Any, step: str = "", **kwargs: Any) -> Any:
        return self._builder.function(self._named(step), function, args, kwargs)

    def module(self, module: nn.Module, *inputs: fx.Node, step: str = "") -> fx.Node:
        return self._builder.module(self._named(step), str(self.message.name), module, inputs)

    def learned(self, values: Tensor, what: str) -> fx.Node:
        """A parameter that a function takes."""
        return self._builder.read(Constant(values, f"{self.message.name}.{what}", learned=True))

    def _named(self, step: str) -> str:
        return f"{self.message.name}_{step}" if step else str(self.message.name)

    def refuse(self, found: str, to_do: str) -> NoReturn:
        raise OnnxError(f"import the {self.kind} layer {self.message.name!r}", found, to_do)


def pair(layer: Layer, parameter: Any, name: str, short: str, default: int) -> tuple[int, int]:
    """Sizes that Caffe writes once, twice, or as `_h` and `_w`."""
    if parameter.HasField(f"{short}_h") or parameter.HasField(f"{short}_w"):
        return int(getattr(parameter, f"{short}_h")), int(getattr(parameter, f"{short}_w"))
    given = getattr(parameter, name)
    values = [int(given)] if isinstance(given, int) else [int(value) for value in given]
    if len(values) > 2:
        layer.refuse(f"{name} of {len(values)} axes", "two spatial axes are imported")
    return (default, default) if not values else (values[0], values[-1])
