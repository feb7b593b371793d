"""The operation before a rewrite, stored with its node so that the rewrite can be undone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from detent.ir import attribute_value

__all__ = ["Original", "attribute_of", "attributes_of"]

_KEY = "detent.form"


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Plain Python types; without tensors and graphs."""
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {
        name: value.decode() if isinstance(value, bytes) else list(value) if hasattr(value, "__len__") else value
        for name, value in found.items()
        if isinstance(value, (bytes, int, float)) or hasattr(value, "__len__")
    }


def attribute_of(node: onnx.NodeProto, name: str, rank: int | None = None) -> Any:
    """One attribute, which is the default of ONNX where the node does not say it (see `attribute_value`)."""
    return attribute_value(node.op_type, attributes_of(node), name, rank)


@dataclass(frozen=True)
class Original:
    """The rewrite (`form`), and the attributes, the shape of the weights and the size of the images before it."""

    form: str
    attributes: Mapping[str, Any]
    weight: tuple[int, ...]
    image: tuple[int, ...]

    def keep(self, node: onnx.NodeProto) -> None:
        node.metadata_props.add(key=_KEY, value=json.dumps(asdict(self)))

    @classmethod
    def of(cls, node: onnx.NodeProto) -> Original | None:
        """What a node keeps, if it was rewritten so."""
        held = next((entry.value for entry in node.metadata_props if entry.key == _KEY), None)
        if held is None:
            return None
        said = json.loads(held)
        return cls(said["form"], said["attributes"], tuple(said["weight"]), tuple(said["image"]))

    def gathered(
        self, spread: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], weights: npt.NDArray[Any]
    ) -> npt.NDArray[Any]:
        """The weights that `spread` made `weights` of: it only moves them, and adds zeros."""
        count = int(np.prod(self.weight))
        places = spread(np.arange(1, count + 1).reshape(self.weight))
        found = np.empty(count, weights.dtype)
        found[places[places > 0] - 1] = weights[places > 0]
        return found.reshape(self.weight)
