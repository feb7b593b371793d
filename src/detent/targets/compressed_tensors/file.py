"""`model.safetensors` and `config.json`, in the layout "pack-quantized" of compressed-tensors.

A weight `w` of a linear layer is `w_packed` (int32: codes without a sign, the first in the lowest bits), `w_scale`
(rows, groups) and `w_shape`. All else is float32 under the names of the model, without the prefix that the model of
transformers has inside of the model that was deployed; the metadata tells that prefix.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from detent.errors import DeployError
from detent.ir import Layout, StoredAs
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.blocks import Blocks, blocks_of, facts_of_blocks, pack, unpack
from detent.targets.base.content import as_json, parse_json, unreadable
from detent.targets.base.format import Roles

__all__ = ["CONFIG", "FILE", "FORMAT", "CompressedTensorsFormat", "read_packed"]

FILE, CONFIG = "model.safetensors", "config.json"
_NAME = "compressed_tensors"
_PREFIX = "detent.prefix"
_ASKED = f"write the format {_NAME!r}"


class CompressedTensorsFormat(Format):
    name = _NAME
    files: Mapping[str, Roles | None] = {FILE: ("weight",), CONFIG: None}

    def write(self, deployment: Deployment) -> Written:
        if deployment.config is None:
            to_do = "deploy a model of transformers, or a folder of save_pretrained"
            raise DeployError(_ASKED, "the model has no config to write", to_do)
        prefix = deployment.config_prefix
        blocks = _blocks(deployment)
        tensors: dict[str, npt.NDArray[Any]] = {}
        for name, held in blocks.items():
            rows, columns = held.codes.shape
            own = _own(name, prefix)
            tensors[f"{own}_packed"] = np.ascontiguousarray(pack(held.codes, held.bits)).view("<i4")
            tensors[f"{own}_scale"] = np.ascontiguousarray(held.scale)
            tensors[f"{own}_shape"] = np.array([rows, columns], np.int64)
        for name, array in _floats(deployment).items():
            tensors.setdefault(_own(name, prefix), array)
        config = {**deployment.config, "quantization_config": _scheme(blocks, deployment, prefix)}
        config["tie_word_embeddings"] = False  # the head has codes of its own, or is there as a copy
        config["dtype"] = "float32"
        content = save(tensors, metadata={"format": "pt", _PREFIX: prefix})
        return Written({FILE: content, CONFIG: as_json(config)})

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        return facts_of_blocks(read_packed(files[file], files[CONFIG]))


FORMAT = CompressedTensorsFormat()


def _blocks(deployment: Deployment) -> dict[str, Blocks]:
    """The weights in groups, by the names of parameters."""
    graph, found = deployment.graph, {}
    for op in graph.ops:
        held = blocks_of(graph, op)
        if held is None:
            continue
        if not held.centered or held.scale.shape[1] * held.size != held.codes.shape[1]:
            raise DeployError(_ASKED, f"{held.tensor} is not symmetric in groups", "use another recipe")
        found[graph.stored_as.get(held.tensor, StoredAs(held.tensor)).parameter] = held
    return found


def _floats(deployment: Deployment) -> dict[str, npt.NDArray[Any]]:
    """The float parameters: constants that the model has a name for."""
    graph, found = deployment.graph, {}
    coded = {read.tensor for op in graph.ops for read in op.reads if read.encoding is not None}
    for tensor, array in graph.constants.items():
        told = graph.stored_as.get(tensor, StoredAs(tensor))
        if tensor in coded or not told.parameter.endswith((".weight", ".bias")) or array.dtype != np.float32:
            continue
        found[told.parameter] = np.ascontiguousarray(array.T if told.layout is Layout.TRANSPOSED else array)
    return found


def _own(name: str, prefix: str) -> str:
    return name.removeprefix(f"{prefix}.") if prefix else name


def _scheme(blocks: Mapping[str, Blocks], deployment: Deployment, prefix: str) -> dict[str, Any]:
    """A group of layers for each width and size of groups; linear layers that are float are named too."""
    groups: dict[tuple[int, int], list[str]] = {}
    for name, held in blocks.items():
        groups.setdefault((held.bits, held.size), []).append(_own(name, prefix).removesuffix(".weight"))
    linear = {
        deployment.graph.stored_as.get(read.tensor, StoredAs(read.tensor)).parameter
        for op in deployment.graph.ops
        if op.type in ("MatMul", "Gemm") and (read := op.inputs[1]) is not None
    }
    ignored = sorted(_own(name, prefix).removesuffix(".weight") for name in linear - blocks.keys() if "." in name)
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{index}": {
                "targets": names,
                "weights": {
                    "num_bits": bits,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": size,
                    "dynamic": False,
                },
            }
            for index, ((bits, size), names) in enumerate(groups.items())
        },
        "ignore": ignored,
    }


def read_packed(content: bytes, config: bytes) -> list[Blocks]:
    """The packed weights of such a checkpoint, by the names of the deployed model's parameters."""
    try:
        length = int.from_bytes(content[:8], "little")
        prefix = json.loads(content[8 : 8 + length])["__metadata__"][_PREFIX]
        tensors = load(content)
        asked = parse_json(config, _NAME)["quantization_config"]["config_groups"]
        widths = {name: group["weights"] for group in asked.values() for name in group["targets"]}
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise unreadable(_NAME, str(error) or type(error).__name__) from None
    found = []
    for name, packed in tensors.items():
        if not name.endswith(".weight_packed"):
            continue
        own = name.removesuffix("_packed")
        try:
            said = widths[own.removesuffix(".weight")]
            found.append(_read(f"{prefix}.{own}" if prefix else own, packed, tensors, own, said))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise unreadable(_NAME, f"{name}: {error}") from None
    return found


def _read(name: str, packed: npt.NDArray[Any], tensors: Mapping[str, Any], own: str, said: Mapping[str, Any]) -> Blocks:
    bits, size = int(said["num_bits"]), int(said["group_size"])
    if bits not in (4, 8) or size < 1:
        raise ValueError(f"{bits} bits in groups of {size}")
    rows, columns = (int(number) for number in tensors[f"{own}_shape"])
    scale = tensors[f"{own}_scale"].astype(np.float32)
    held = np.ascontiguousarray(packed.astype("<i4")).view(np.uint8).reshape(rows, -1)
    codes = unpack(held, bits, columns).astype(np.int64)
    if codes.shape != (rows, columns) or scale.shape != (rows, columns // size) or columns % size:
        raise ValueError("it has other sizes than its scales")
    return Blocks(name, bits, size, codes, scale, np.full(scale.shape, 1 << (bits - 1), np.int64))
