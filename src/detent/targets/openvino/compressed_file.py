"""OpenVINO's own files with compressed weights: what its compiler keeps as integers in kernels of their own.

A weight (rows, columns) in groups, `w`, is

    Constant w_quantized (rows, groups, size) -> Convert -> Subtract -> Multiply w_scale -> Reshape (rows, columns)
                              Constant w_zero_point -> Convert -^

without Reshape where a row is one group, and without Subtract where it is symmetric; then codes are i4 or i8, else u4
or u8. MatMul reads it with `transpose_b`, Gather takes rows of it. Scales are float32, so that all of it decodes to the
numbers of `model.onnx`.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import ArtifactError, DeployError
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.blocks import Blocks, blocks_of, facts_of_blocks, pack, unpack
from detent.targets.base.content import unreadable
from detent.targets.base.format import Roles
from detent.targets.openvino.ir_model import CONSTANTS, LAYERS, finish, read_model, save, stand_in

__all__ = ["FORMAT", "CompressedIrFormat", "read_compressed"]

_NAME = "openvino_compressed"
_TYPES = {"i4": (4, -8), "u4": (4, 0), "i8": (8, -128), "u8": (8, 0)}
"""Of each type of codes, its width and its least code."""


class CompressedIrFormat(Format):
    name = _NAME
    files: Mapping[str, Roles | None] = {LAYERS: ("weight",), CONSTANTS: None}
    weights = CONSTANTS
    requires = ("openvino", "openvino")

    def write(self, deployment: Deployment) -> Written:
        model, graph = read_model(deployment), deployment.graph
        nodes = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
        for blocks in {found.tensor: found for op in graph.ops if (found := blocks_of(graph, op))}.values():
            decoded = nodes.get(f"{blocks.tensor}/DequantizeLinear")
            if decoded is None:
                raise DeployError(
                    f"write the weight {blocks.tensor!r} as {_NAME}",
                    "OpenVINO's reader gave its node another name",
                    "rename the layer, or deploy for 'openvino'",
                )
            _compress(decoded, blocks)
        finish(model, keep={op.name for op in graph.ops})
        layers, constants = save(model)
        return Written({LAYERS: layers.encode(), CONSTANTS: constants})

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        return facts_of_blocks(read_compressed(files[file], files[CONSTANTS]))


FORMAT = CompressedIrFormat()


def _compress(decoded: Any, blocks: Blocks) -> None:
    """The weight, decoded as OpenVINO's tools write it, for all that read it."""
    from openvino import opset13

    made = _decoding(blocks)
    for reader in list(decoded.output(0).get_target_inputs()):
        node = reader.get_node()
        if node.get_type_name() != "MatMul":
            reader.replace_source_output(made.output(0))
            continue
        turned = opset13.matmul(node.input_value(0), made, node.get_attributes()["transpose_a"], True)
        stand_in(turned.output(0), node.output(0))


def _decoding(blocks: Blocks) -> Any:
    from openvino import opset13

    (rows, columns), groups = blocks.codes.shape, blocks.scale.shape[1]
    grouped = (rows, groups, blocks.size) if groups > 1 else (rows, columns)
    one_each = (rows, groups, 1) if groups > 1 else (rows, 1)
    kind = f"{'i' if blocks.centered else 'u'}{blocks.bits}"
    codes = _constant(blocks.codes.reshape(grouped), kind, f"{blocks.tensor}_quantized")
    steps = opset13.convert(codes, "f32")
    if not blocks.centered:
        zero_point = _constant(blocks.zero_point.reshape(one_each), kind, f"{blocks.tensor}_zero_point")
        steps = opset13.subtract(steps, opset13.convert(zero_point, "f32"))
    scale = opset13.constant(np.ascontiguousarray(blocks.scale.reshape(one_each), np.float32))
    scale.set_friendly_name(f"{blocks.tensor}_scale")
    real = opset13.multiply(steps, scale)
    return opset13.reshape(real, np.array([rows, columns], np.int64), False) if groups > 1 else real


def _constant(codes: npt.NDArray[Any], kind: str, name: str) -> Any:
    """Unsigned codes as that type: signed ones are less by the middle code."""
    import openvino

    bits, least = _TYPES[kind]
    packed = pack((codes + least).reshape(1, -1) & (1 << bits) - 1, bits)
    tensor = openvino.Tensor(getattr(openvino.Type, kind), list(codes.shape))
    held = tensor.data
    held.reshape(-1)[:] = packed.reshape(-1).view(held.dtype)
    made = openvino.opset13.constant(tensor)
    made.set_friendly_name(name)
    return made


# --- reading -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    name: str
    kind: str
    data: Mapping[str, str]
    inputs: tuple[str, ...]


def read_compressed(layers: bytes, numbers: bytes) -> list[Blocks]:
    """The compressed weights of such a file, under the names of their codes."""
    try:
        root = ElementTree.fromstring(layers)
        known = {layer.attrib["id"]: layer for layer in root.iterfind("layers/layer")}
        reads: dict[str, dict[int, str]] = {}
        for edge in root.iterfind("edges/edge"):
            ports = reads.setdefault(edge.attrib["to-layer"], {})
            ports[int(edge.attrib["to-port"])] = edge.attrib["from-layer"]
        graph = {
            key: _Layer(
                layer.attrib["name"],
                layer.attrib["type"],
                {} if (data := layer.find("data")) is None else data.attrib,
                tuple(source for _, source in sorted(reads.get(key, {}).items())),
            )
            for key, layer in known.items()
        }
        found = [_weight(graph, layer, numbers) for layer in graph.values() if layer.kind == "Multiply"]
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise unreadable(_NAME, str(error) or type(error).__name__) from None
    return [blocks for blocks in found if blocks is not None]


def _weight(graph: Mapping[str, _Layer], multiply: _Layer, numbers: bytes) -> Blocks | None:
    steps, scale = (graph[name] for name in multiply.inputs)
    zero_point = None
    if steps.kind == "Subtract":
        steps, zero_point = (graph[name] for name in steps.inputs)
        if zero_point.kind != "Convert":
            return None
        zero_point = graph[zero_point.inputs[0]]
    codes = graph[steps.inputs[0]] if steps.kind == "Convert" else steps
    if codes.kind != "Const" or scale.kind != "Const" or codes.data["element_type"] not in _TYPES:
        return None
    array, factors = _codes(codes, numbers), _array(scale, numbers).reshape(-1)
    rows, size = len(array), array.shape[-1]
    bits = _TYPES[codes.data["element_type"]][0]
    zeros = np.full(factors.shape, 1 << (bits - 1)) if zero_point is None else _codes(zero_point, numbers).reshape(-1)
    if array.size != factors.size * size or zeros.size != factors.size:
        raise _damaged(codes.name)
    return Blocks(codes.name, bits, size, array.reshape(rows, -1), factors.reshape(rows, -1), zeros.reshape(rows, -1))


def _codes(layer: _Layer, numbers: bytes) -> npt.NDArray[np.int64]:
    """Unsigned."""
    bits, least = _TYPES[layer.data["element_type"]]
    shape = _shape(layer)
    packed = np.frombuffer(_held(layer, numbers), np.uint8)
    count = math.prod(shape)
    if packed.size != -(-count * bits // 8):
        raise _damaged(layer.name)
    codes = unpack(packed, bits, count).astype(np.int64).reshape(shape)
    return codes if least == 0 else codes ^ (1 << (bits - 1))  # of two's complement


def _array(layer: _Layer, numbers: bytes) -> npt.NDArray[np.float32]:
    held = _held(layer, numbers)
    if layer.data["element_type"] != "f32" or len(held) != 4 * math.prod(_shape(layer)):
        raise _damaged(layer.name)
    return np.frombuffer(held, np.float32)


def _shape(layer: _Layer) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in layer.data["shape"].split(",") if size.strip())
    if not sizes or min(sizes) < 1:
        raise _damaged(layer.name)
    return sizes


def _held(layer: _Layer, numbers: bytes) -> bytes:
    start, size = int(layer.data["offset"]), int(layer.data["size"])
    if start < 0 or size < 0 or start + size > len(numbers):
        raise _damaged(layer.name)
    return numbers[start : start + size]


def _damaged(name: str) -> ArtifactError:
    return unreadable(_NAME, f"{name} has other sizes than its numbers, scales or zero points")
