"""The twin's nets as ncnn takes them: integers only on the way into convolutions and linear layers."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from detent.ir.metadata import CODE_RANGE, ROLE
from tests.twin.nets import SMALL, Builder, Net, Style, conv, linear

__all__ = ["followed", "ncnn_form"]

_WEIGHTED = ("Conv", "Gemm", "MatMul")


def followed(kind: str, style: Style) -> Net:
    """A small net and one more weighted layer, which puts what the net gives on its grid, ties and all."""
    builder = Builder(style)
    made = SMALL[kind](builder)
    shape = made.value.shape
    if len(shape) == 4:
        made = conv(builder, made, 8, 1)
    elif len(shape) == 2:
        made = linear(builder, made, 8)
    else:
        made = builder.weighted("MatMul", made, (shape[-1], 8), axis=1)
    builder.output(made)
    return ncnn_form(builder.net())


def ncnn_form(net: Net) -> Net:
    """Without the grids that ncnn does not have, and with codes -127 to 127 on the others."""
    model = onnx.ModelProto()
    model.CopyFrom(net.model)
    graph = model.graph
    made = {name: node for node in graph.node for name in node.output}
    arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    source = {
        name: made[node.input[0]].input[0]
        for name, node in made.items()
        if node.op_type == "DequantizeLinear" and node.input[0] in made
    }
    clips: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        for index, name in enumerate(node.input):
            if name in source and node.op_type in _WEIGHTED and index == 0:
                clips[source[name]] = _clip(graph, source[name], arrays[f"{source[name]}_scale"])
            elif name in source:
                node.input[index] = source[name]
    for value in graph.output:
        value.name = source.get(value.name, value.name)
    kept = []
    for node in graph.node:
        quantizes = node.op_type == "QuantizeLinear"
        dropped = node.output[0] in source and source[node.output[0]] not in clips
        if quantizes and node.input[0] in clips:
            kept.append(clips[node.input[0]])
            node.input[0] = clips[node.input[0]].output[0]
            kept.append(node)
        elif not quantizes and not dropped:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    onnx.checker.check_model(model)
    return Net(model, net.feeds)


def _clip(graph: onnx.GraphProto, tensor: str, scale: np.ndarray) -> onnx.NodeProto:
    names = [f"{tensor}_least", f"{tensor}_greatest"]
    if not any(each.name == names[0] for each in graph.initializer):
        for name, bound in zip(names, (-127, 127), strict=True):
            graph.initializer.append(numpy_helper.from_array(np.array(np.float32(bound) * scale, np.float32), name))
    clip = helper.make_node("Clip", [tensor, *names], [f"{tensor}.clipped"], name=f"{tensor}.clip")
    clip.metadata_props.add(key=ROLE, value=CODE_RANGE)
    return clip
