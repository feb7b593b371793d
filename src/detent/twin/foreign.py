"""Float operations without a function in the twin (such as an LSTM): a model of one node, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper
from torch import Tensor

from detent.errors import DeployError
from detent.ir import Network, Op

__all__ = ["foreign_kernel"]


def foreign_kernel(graph: Network, op: Op) -> Callable[..., Any]:
    """Computes `op`; the session is made when the types of its inputs are seen."""
    sessions: dict[tuple[Any, ...], onnxruntime.InferenceSession] = {}

    def compute(*inputs: Tensor | None) -> Any:
        given = {f"i{n}": value.numpy() for n, value in enumerate(inputs) if value is not None}
        key = tuple((name, array.dtype.str) for name, array in given.items())
        if key not in sessions:
            sessions[key] = _session(graph, op, inputs)
        wanted = [f"o{n}" for n, name in enumerate(op.outputs) if name]
        found = [_tensor(op, value) for value in sessions[key].run(wanted, given)]
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


def _session(graph: Network, op: Op, inputs: tuple[Tensor | None, ...]) -> onnxruntime.InferenceSession:
    names = ["" if value is None else f"i{n}" for n, value in enumerate(inputs)]
    outputs = [f"o{n}" if name else "" for n, name in enumerate(op.outputs)]
    node = helper.make_node(op.type, names, outputs, domain=op.domain, **op.onnx_attributes)
    ports = [
        helper.make_tensor_value_info(f"i{n}", helper.np_dtype_to_tensor_dtype(value.numpy().dtype), None)
        for n, value in enumerate(inputs)
        if value is not None
    ]
    ends = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    model = helper.make_model(
        helper.make_graph([node], op.type, ports, ends), opset_imports=[helper.make_opsetid("", graph.opset)]
    )
    model.ir_version = 10
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own classes, which are not public
        raise DeployError(
            f"compute {op.type} {op.name!r}",
            f"neither the twin nor onnxruntime has it: {str(error).strip().splitlines()[0]}",
            "leave it out of the network that is verified, or write it with operations of ONNX",
        ) from None
