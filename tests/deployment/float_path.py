"""A deployed model computed in float, as its QDQ nodes say: what the prepared model computes in torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor

from detent.graph import flat


def float_path(model: onnx.ModelProto, tensors: Iterable[Tensor]) -> list[np.ndarray]:
    """The outputs of `model` on `tensors`, in its order of inputs, with no operation fused into an integer kernel."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {port.name: t.detach().numpy() for port, t in zip(session.get_inputs(), tensors, strict=True)}
    return session.run(None, feeds)


def tensors_of(value: Any) -> list[Tensor]:
    """Every tensor inside of arguments or results, in the order in which they are deployed."""
    return [part for part in flat(value) if isinstance(part, Tensor)]


def initializer(model: onnx.ModelProto, name: str) -> np.ndarray:
    """A constant of the model, as it is stored."""
    held = next(one for one in model.graph.initializer if one.name == name)
    return np.asarray(onnx.numpy_helper.to_array(held))


def node(model: onnx.ModelProto, output: str) -> onnx.NodeProto:
    """The node that gives a tensor."""
    return next(one for one in model.graph.node if output in one.output)


def attribute(found: onnx.NodeProto, name: str) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in found.attribute if a.name == name), None)


def prepared_for(net: torch.nn.Module, inputs: Any, backend: str, **options: Any) -> Any:
    """Prepared, calibrated on its example, in eval mode."""
    import detent

    prepared = detent.prepare(net.eval(), inputs, backend=backend, **options)
    detent.calibrate(prepared, [inputs])
    return prepared.eval()
