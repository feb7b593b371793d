"""Weights that ONNX has no codes for because their groups have real offsets: noted at the operations that read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir.deployed_tensor import DeployedTensor
from detent.ir.network import Network, Op, StoredAs
from detent.ir.packed_numbers import pack_numbers, unpack_numbers

__all__ = ["note_offsets", "noted_offsets"]

_KEY = "detent.offset"


def note_offsets(network: Network, tensors: Iterable[DeployedTensor]) -> Network:
    """The same network, where an operation that reads such a weight says so in its metadata."""
    offsets = {tensor.tensor: tensor.offset for tensor in tensors if tensor.offset is not None}
    if not offsets:
        return network

    def noted(op: Op) -> Op:
        for read in op.reads:
            offset = offsets.get(network.stored_as.get(read.tensor, StoredAs(read.tensor)).parameter)
            if offset is not None:
                return replace(op, metadata={**op.metadata, _KEY: json.dumps(pack_numbers(offset))})
        return op

    return replace(network, ops=tuple(noted(op) for op in network.ops))


def noted_offsets(op: Op) -> npt.NDArray[np.float32] | None:
    """The offsets (rows, groups) of the weight that an operation reads; None if it has none."""
    said: Any = op.metadata.get(_KEY)
    return None if said is None else np.asarray(unpack_numbers(json.loads(said)), np.float32)
