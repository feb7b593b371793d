"""Caffe's `net.prototxt` and `net.caffemodel` as a GraphModule, without Caffe."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from detent.errors import OnnxError
from detent.frontends.caffe.layer import Layer
from detent.frontends.caffe.layers import CONVERTERS, DROPPED
from detent.frontends.caffe.schema import message
from detent.frontends.onnx.builder import FxBuilder
from detent.frontends.onnx.reading.inference import Inference
from detent.graph import Runner

__all__ = ["load_caffe"]

_V1_TYPES = {
    "ABSVAL": "AbsVal", "ACCURACY": "Accuracy", "CONCAT": "Concat", "CONVOLUTION": "Convolution",
    "DECONVOLUTION": "Deconvolution", "DROPOUT": "Dropout", "ELTWISE": "Eltwise", "FLATTEN": "Flatten",
    "INNER_PRODUCT": "InnerProduct", "LRN": "LRN", "POOLING": "Pooling", "POWER": "Power", "RELU": "ReLU",
    "SIGMOID": "Sigmoid", "SOFTMAX": "Softmax", "SOFTMAX_LOSS": "SoftmaxWithLoss", "SPLIT": "Split", "SLICE": "Slice",
    "TANH": "TanH",
}  # fmt: skip
_MOST = 2**31 - 1  # bytes protobuf can parse


class _Step(NamedTuple):
    """A layer with its bottoms and tops as values that are given once, although Caffe writes in place."""

    kind: str
    message: Any
    bottoms: list[str]
    tops: list[str]


def load_caffe(network: str | os.PathLike[str], weights: str | os.PathLike[str]) -> fx.GraphModule:
    """A GraphModule in eval mode: its inputs are those of the network, its outputs the tops that no layer takes."""
    net, blobs = _read_text(Path(network)), _read_blobs(Path(weights))
    builder = FxBuilder(Inference(17))
    values: dict[str, Any] = {}
    ranks: dict[fx.Node, int] = {}
    for name, rank in _inputs(net).items():
        builder.placeholder(name)
        values[name] = builder.values[name]
        ranks[values[name]] = rank
    steps = _steps(net, list(values))
    merged: set[int] = set()
    for index, step in enumerate(steps):
        if index in merged:
            continue
        follower = _scale_after(steps, index)
        scale = None
        if follower is not None:
            merged.add(follower)
            after = steps[follower]
            scale = Layer(after.kind, after.message, [], blobs.get(after.message.name, []), builder)
        given = _converted(step, values, ranks, blobs, scale, builder)
        tops = steps[follower].tops if follower is not None else step.tops
        values.update(zip(tops, given, strict=True))
    taken = {name for step in steps for name in step.bottoms}
    results = [value for name, value in values.items() if name not in taken and value.op != "placeholder"]
    if not results:
        raise OnnxError(f"load {str(network)!r}", "it computes nothing", "give the .prototxt of a network")
    builder.graph.output(results[0] if len(results) == 1 else tuple(results))
    builder.graph.lint()
    return Runner(builder.root, builder.graph).eval()


def _converted(
    step: _Step,
    values: dict[str, Any],
    ranks: dict[fx.Node, int],
    blobs: dict[str, list[Tensor]],
    scale: Layer | None,
    builder: FxBuilder,
) -> tuple[Any, ...]:
    missing = [name for name in step.bottoms if name not in values]
    inputs = [values[name] for name in step.bottoms if name in values]
    rank = ranks[inputs[0]] if inputs else 4
    own = blobs.get(step.message.name, [])
    layer = Layer(step.kind, step.message, inputs, own, builder, rank=rank, scale=scale)
    if missing:
        layer.refuse(f"no layer before it gives {missing[0].split(' ')[0]!r}", "check its bottoms")
    if step.kind not in CONVERTERS:
        layer.refuse("this layer is not imported", f"imported are {', '.join(sorted(CONVERTERS))}")
    try:
        given = CONVERTERS[step.kind](layer)
    except OnnxError:
        raise
    except Exception as error:  # sizes that contradict each other
        layer.refuse(f"{type(error).__name__}: {error}", "the network contradicts itself here")
    results = given if isinstance(given, tuple) else (given,)
    if len(results) != len(step.tops):
        layer.refuse(f"{len(step.tops)} tops", f"it gives {len(results)}")
    ranks.update(dict.fromkeys(results, layer.rank))
    return results


def _inputs(net: Any) -> dict[str, int]:
    """The names of the inputs, with how many dimensions they have."""
    found = {str(name): 4 for name in net.input}
    found.update({str(name): len(shape.dim) for name, shape in zip(net.input, net.input_shape, strict=False)})
    for layer in net.layer:
        if layer.type == "Input":
            shapes = [len(shape.dim) for shape in layer.input_param.shape] or [4]
            found.update({str(top): shapes[min(at, len(shapes) - 1)] for at, top in enumerate(layer.top)})
    return found


def _steps(net: Any, inputs: list[str]) -> list[_Step]:
    """The layers of the deployed network in order. A blob that is written again is another value from then on."""
    if len(net.layer) and len(net.layers):
        raise OnnxError("load a Caffe network", "it has layers of two formats", "upgrade it with Caffe's own tool")
    now = {name: name for name in inputs}
    steps: list[_Step] = []
    for index, layer in enumerate([*net.layer, *net.layers]):
        kind = str(layer.type) if len(net.layer) else _V1_TYPES.get(_v1_name(layer), _v1_name(layer))
        if kind == "Input" or kind in DROPPED or _only_in_training(layer):
            continue
        bottoms = [now.get(str(name), str(name)) for name in layer.bottom]
        tops = []
        for top in layer.top:
            tops.append(f"{top} {index}")  # no blob has a space and a number: it is this layer's
            now[str(top)] = tops[-1]
        steps.append(_Step(kind, layer, bottoms, tops))
    return steps


def _v1_name(layer: Any) -> str:
    return str(layer.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number[layer.type].name)


def _only_in_training(layer: Any) -> bool:
    included = [rule.phase for rule in layer.include if rule.HasField("phase")]
    excluded = [rule.phase for rule in layer.exclude if rule.HasField("phase")]
    return (bool(included) and 1 not in included) or 1 in excluded


def _scale_after(steps: list[_Step], index: int) -> int | None:
    """The Scale layer that alone takes the output of a BatchNorm."""
    if steps[index].kind != "BatchNorm":
        return None
    users = [at for at, step in enumerate(steps) if steps[index].tops[0] in step.bottoms] if steps[index].tops else []
    if len(users) != 1 or steps[users[0]].kind != "Scale" or len(steps[users[0]].bottoms) != 1:
        return None
    parameter = steps[users[0]].message.scale_param
    return users[0] if parameter.axis == 1 and parameter.num_axes == 1 else None


def _read_text(file: Path) -> Any:
    net = message("NetParameter")
    try:
        import_module("google.protobuf.text_format").Parse(_content(file).decode("utf-8"), net)
    except OnnxError:
        raise
    except Exception as error:  # of protobuf: it names the line and the word
        raise OnnxError(f"load {str(file)!r}", str(error), "give a .prototxt that describes a network") from None
    return net


def _read_blobs(file: Path) -> dict[str, list[Tensor]]:
    net = message("NetParameter")
    try:
        net.ParseFromString(_content(file))
    except OnnxError:
        raise
    except Exception as error:
        raise OnnxError(f"load {str(file)!r}", f"it is not a .caffemodel ({error})", "get it again") from None
    layers = [*net.layer, *net.layers]
    return {str(layer.name): [_tensor(blob, layer.name) for blob in layer.blobs] for layer in layers if layer.blobs}


def _content(file: Path) -> bytes:
    if not file.is_file():
        raise OnnxError(f"load {str(file)!r}", "there is no such file", "give a .prototxt and a .caffemodel")
    if file.stat().st_size > _MOST:
        raise OnnxError(f"load {str(file)!r}", "the file is larger than 2 GB", "Caffe cannot read it either")
    return file.read_bytes()


def _tensor(blob: Any, name: str) -> Tensor:
    data = blob.double_data or blob.data
    values = torch.from_numpy(np.array(data, np.float32))
    shape = list(blob.shape.dim) if blob.HasField("shape") else [blob.num, blob.channels, blob.height, blob.width]
    count = 1
    for size in shape:
        count *= size
    if min(shape, default=1) < 0 or count != values.numel():
        raise OnnxError(
            f"read the weights of {name!r}", f"{values.numel()} values for {shape[:8]}", "get the file again"
        )
    return values.reshape(shape)
