"""`nbits.onnx`: the network with MatMulNBits for products and GatherBlockQuantized for tables, both com.microsoft.

Everything else is as in `model.onnx`, under the same names; a language model has a cache in place of its attention to
whole sequences, and `genai_config.json` beside it. The codes of a weight `w` are the initializer `w_quantized`, in the
types of the operators: unsigned, two of 4 bits in a byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from detent.errors import ArtifactError, DeployError, refusing
from detent.ir import Network, Op, Operand, write_qdq
from detent.ir.names import TensorNames
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.blocks import Blocks, facts_of_blocks, pack, unpack
from detent.targets.base.content import parse_json, unreadable
from detent.targets.base.format import Roles
from detent.targets.onnxruntime_genai.blocks import blocks_of
from detent.targets.onnxruntime_genai.decoder import NotADecoder, with_cache
from detent.targets.onnxruntime_genai.genai_config import GENAI_CONFIG, genai_config

__all__ = ["A8_FORMAT", "FILE", "FORMAT", "MatMulNBits", "read_nbits"]

FILE = "nbits.onnx"
_DOMAIN = "com.microsoft"


class MatMulNBits(Format):
    """`accuracy_level` is the operator's attribute: 0 computes on real numbers, 4 on activations of 8 bits."""

    files: Mapping[str, Roles | None] = {FILE: ("weight",)}
    weights = FILE

    def __init__(self, name: str, accuracy_level: int):
        self.name, self._level = name, accuracy_level

    def write(self, deployment: Deployment) -> Written:
        graph = deployment.graph
        files: dict[str, bytes] = {}
        notes: tuple[str, ...] = ()
        try:
            decoder = None if deployment.config is None else with_cache(graph, deployment.config)
        except NotADecoder as reason:
            decoder, notes = None, (f"onnxruntime-genai does not generate words with it: {reason}",)
        if decoder is not None and deployment.config is not None:
            generation = deployment.companions.get("generation_config.json")
            said = {} if generation is None else parse_json(generation, self.name)
            graph = decoder.graph
            with refusing(DeployError, f"write {GENAI_CONFIG}", "correct config.json, or generation_config.json"):
                told = genai_config(decoder, deployment.config, said, FILE)
            files = {**deployment.companions, GENAI_CONFIG: told}
        model = write_qdq(_in_blocks(graph, self._level))
        return Written({FILE: model.SerializeToString(deterministic=True), **files}, notes)

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        return facts_of_blocks(read_nbits(files[file]))


FORMAT = MatMulNBits("matmul_nbits", 0)
A8_FORMAT = MatMulNBits("matmul_nbits_a8", 4)


def _in_blocks(graph: Network, level: int) -> Network:
    names = TensorNames(graph.names, ".")
    constants: dict[str, Any] = dict(graph.constants)
    held: dict[tuple[str, str], tuple[Operand | None, ...]] = {}
    ops = []
    for op in graph.ops:
        blocks = blocks_of(graph, op)
        if blocks is None:
            ops.append(op)
            continue
        kind = "Gather" if op.type == "Gather" else "product"
        if (blocks.tensor, kind) not in held:
            held[blocks.tensor, kind] = _parameters(blocks, kind, constants, names)
        ops.append((_table if kind == "Gather" else _product)(op, blocks, held[blocks.tensor, kind], level))
    domains = {**graph.domains, _DOMAIN: 1} if held else graph.domains
    return replace(graph, ops=tuple(ops), constants=constants, domains=domains).pruned()


def _parameters(blocks: Blocks, kind: str, constants: dict[str, Any], names: TensorNames) -> tuple[Operand | None, ...]:
    """Codes, scales and zero points, as constants; no zero points where they are the middle code."""
    rows, columns = blocks.codes.shape
    shape = (rows, columns) if kind == "Gather" else (rows, columns // blocks.size, blocks.size)
    arrays = {"quantized": pack(blocks.codes.reshape(shape), blocks.bits), "scales": np.ascontiguousarray(blocks.scale)}
    if not blocks.centered:
        arrays["zero_points"] = pack(blocks.zero_point, blocks.bits)
    made = []
    for what, array in arrays.items():
        made.append(Operand(names.unique(f"{blocks.tensor}_{what}")))
        constants[made[-1].tensor] = array
    return tuple(made)


def _product(op: Op, blocks: Blocks, parameters: tuple[Operand | None, ...], level: int) -> Op:
    rows, columns = blocks.codes.shape
    bias = op.optional(2)
    inputs: list[Operand | None] = [op.inputs[0], *parameters]
    if bias is not None:  # it stands behind zero points and an order of columns
        inputs.extend([None] * (5 - len(inputs)))
        inputs.append(bias)
    attributes = {"K": columns, "N": rows, "bits": blocks.bits, "block_size": blocks.size, "accuracy_level": level}
    return replace(op, type="MatMulNBits", domain=_DOMAIN, inputs=tuple(inputs), attributes=attributes)


def _table(op: Op, blocks: Blocks, parameters: tuple[Operand | None, ...], level: int) -> Op:
    del level  # rows are taken, not multiplied
    codes, *rest = parameters
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": blocks.size, "bits": blocks.bits}
    inputs = (codes, op.inputs[1], *rest)
    return replace(op, type="GatherBlockQuantized", domain=_DOMAIN, inputs=inputs, attributes=attributes)


def read_nbits(content: bytes) -> list[Blocks]:
    """The weights in blocks of such a file, each once, under the names of their codes."""
    try:
        graph = onnx.load_model_from_string(content).graph
    except Exception as error:
        raise unreadable("matmul_nbits", f"it is not an ONNX model: {error}") from None
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    found: dict[str, Blocks] = {}
    for node in graph.node:
        if node.op_type not in ("MatMulNBits", "GatherBlockQuantized"):
            continue
        own = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        places = (1, 2, 3) if node.op_type == "MatMulNBits" else (0, 2, 3)
        codes, scale, zero_point = (node.input[at] if at < len(node.input) else "" for at in places)
        absent = [name for name in (codes, scale, zero_point) if name and name not in arrays]
        if absent or "bits" not in own or "block_size" not in own:
            raise unreadable("matmul_nbits", f"{node.name} lacks {absent[0] if absent else 'bits or block_size'}")
        found.setdefault(codes, _read(codes, arrays[codes], arrays[scale], arrays.get(zero_point), own))
    return list(found.values())


def _read(name: str, packed: Any, scale: Any, zero_point: Any, own: Mapping[str, Any]) -> Blocks:
    bits, size = int(own["bits"]), int(own["block_size"])
    rows = packed.shape[0] if packed.ndim else 0
    codes = unpack(packed.reshape(rows, -1), bits, packed.size * 8 // bits // max(rows, 1)).astype(np.int64)
    if bits not in (4, 8) or size < 1 or codes.size != scale.size * size:
        raise _damaged(name)
    scale = scale.reshape(rows, -1)
    if zero_point is None:
        zeros = np.full(scale.shape, 1 << (bits - 1), np.int64)
    else:
        zeros = unpack(zero_point.reshape(rows, -1), bits, scale.shape[1]).astype(np.int64)
    if zeros.shape != scale.shape:
        raise _damaged(name)
    return Blocks(name, bits, size, codes, scale, zeros)


def _damaged(name: str) -> ArtifactError:
    return unreadable("matmul_nbits", f"{name} has other sizes than its scales and zero points")
