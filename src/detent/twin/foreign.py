"""Float operations without a function in the twin (an LSTM, a loop): a model of one node, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from onnx import helper
from torch import Tensor

from detent.errors import DeployError
from detent.ir import Network, Op
from detent.ir.one_node import OneNode

__all__ = ["foreign_kernel"]


def foreign_kernel(graph: Network, op: Op) -> Callable[..., Any]:
    """Computes `op` from its `arguments`."""
    places, outputs = ([name and str(n) for n, name in enumerate(names)] for names in (op.input_names, op.outputs))
    node = helper.make_node(op.type, places, outputs, op.name, domain=op.domain, **op.onnx_attributes)
    computes = OneNode(node, graph.opset)

    def compute(*inputs: Tensor | None) -> Any:
        given = [None if value is None else value.numpy() for value in inputs]
        try:
            computes.session(*given)
        except Exception as error:  # its own classes, which are not public
            raise DeployError(
                f"compute {op.type} {op.name!r}",
                f"neither the twin nor onnxruntime has it: {str(error).strip().splitlines()[0]}",
                "leave it out of the network that is verified, or write it with operations of ONNX",
            ) from None
        found = [_tensor(op, value) for value in computes(*given)]
        return found[0] if len(found) == 1 else tuple(found)

    return compute


def _tensor(op: Op, value: Any) -> Tensor:
    if not isinstance(value, np.ndarray):
        raise DeployError(
            f"compute {op.type} {op.name!r}",
            f"it gives a {type(value).__name__}, and the twin computes with tensors",
            "leave it out of the network that is verified",
        )
    return torch.from_numpy(value)
