"""`model.safetensors` and `config.json`, in the layouts "pack-quantized" and "float-quantized" of compressed-tensors.

A weight `w` of a linear layer is `w_packed` (int32: codes without a sign, the first in the lowest bits), `w_scale`
(rows, groups) and `w_shape`; one of E4M3 is `w` (float8_e4m3fn) and `w_scale` (rows, 1). All else is float32 under the
names of the model, without the prefix that the model of transformers has inside of the model that was deployed; the
metadata tells that prefix.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from detent.errors import DeployError
from detent.ir import Layout, StoredAs
from detent.numerics import E4M3Grid
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.blocks import Blocks, blocks_of, facts_of_blocks, unpack
from detent.targets.base.content import parse_json, unreadable
from detent.targets.base.format import Roles
from detent.targets.compressed_tensors.layout import PREFIX, config_of, file_of, packed, scheme_of

__all__ = ["CONFIG", "FILE", "FORMAT", "CompressedTensorsFormat", "read_packed"]

FILE, CONFIG = "model.safetensors", "config.json"
_NAME = "compressed_tensors"
_ASKED = f"write the format {_NAME!r}"


class CompressedTensorsFormat(Format):
    name = _NAME
    files: Mapping[str, Roles | None] = {FILE: ("weight",), CONFIG: None}

    def write(self, deployment: Deployment) -> Written:
        if deployment.config is None:
            to_do = "deploy a model of transformers, or a folder of save_pretrained"
            raise DeployError(_ASKED, "the model has no config to write", to_do)
        prefix = deployment.config_prefix
        _require_linear_layers(deployment)
        blocks = _blocks(deployment)
        floats, small = _floats(deployment), _small_floats(deployment)
        if blocks and small:
            raise DeployError(_ASKED, "it has integers and floats of 8 bits", "ask for one of them for all layers")
        tensors: dict[str, Tensor] = {}
        for name, held in blocks.items():
            tensors |= packed(_own(name, prefix), held)
        for name, scale in small.items():
            steps = torch.from_numpy(floats.pop(name)) / scale
            tensors[_own(name, prefix)], tensors[f"{_own(name, prefix)}_scale"] = steps.to(torch.float8_e4m3fn), scale
        for name, array in floats.items():
            tensors.setdefault(_own(name, prefix), torch.from_numpy(array))
        for name in deployment.checkpoint.keys() - blocks.keys():  # such as norms that multiply by 1 + weight
            tensors.setdefault(_own(name, prefix), deployment.checkpoint[name].float().contiguous())
        widths = {_own(name, prefix): (held.bits, held.size) for name, held in blocks.items()}
        scheme = scheme_of(widths, [_own(name, prefix) for name in small], _ignored(blocks, small, deployment, prefix))
        files = {FILE: file_of(tensors, prefix), CONFIG: config_of(deployment.config, scheme)}
        return Written({**deployment.companions, **files})

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        yield from facts_of_blocks(read_packed(files[file], files[CONFIG]))
        yield from _facts_of_small_floats(files[file])


FORMAT = CompressedTensorsFormat()


def _require_linear_layers(deployment: Deployment) -> None:
    """transformers' Conv1D, of GPT-2, has a row for each input. Its weight got a layer of its own, "weight.weight";
    what loads the checkpoint would look for another name, not find it, and leave the weight at random."""
    graph = deployment.graph
    for tensor in graph.constants:
        layer, _, name = graph.stored_as.get(tensor, StoredAs(tensor)).parameter.rpartition(".")
        if name == "weight" and layer.rpartition(".")[2] == "weight":
            found = (
                f"{layer.rpartition('.')[0] or layer} is no linear layer of torch: its weight has a row for each input"
            )
            raise DeployError(_ASKED, found, "use another target")


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
        found[told.parameter] = np.array(array.T if told.layout is Layout.TRANSPOSED else array, order="C")
    return found


def _small_floats(deployment: Deployment) -> dict[str, Tensor]:
    """The scales (rows, 1) of weights of E4M3, by the names of parameters."""
    return {
        tensor.tensor: torch.from_numpy(np.array(tensor.scale, order="C")).reshape(-1, 1)
        for tensor in deployment.parameters
        if isinstance(tensor.scheme.grid, E4M3Grid)
    }


def _own(name: str, prefix: str) -> str:
    return name.removeprefix(f"{prefix}.") if prefix else name


def _ignored(
    blocks: Mapping[str, Blocks], small: Mapping[str, Tensor], deployment: Deployment, prefix: str
) -> list[str]:
    """The linear layers that are float."""
    linear = {
        deployment.graph.stored_as.get(read.tensor, StoredAs(read.tensor)).parameter
        for op in deployment.graph.ops
        if op.type in ("MatMul", "Gemm") and (read := op.inputs[1]) is not None
    }
    return [_own(name, prefix) for name in linear - blocks.keys() - small.keys() if "." in name]


def read_packed(content: bytes, config: bytes) -> list[Blocks]:
    """The packed weights of such a checkpoint, by the names of the deployed model's parameters."""
    prefix, tensors = _loaded(content)
    try:
        asked = parse_json(config, _NAME)["quantization_config"]["config_groups"]
        widths = {name: group["weights"] for group in asked.values() for name in group["targets"]}
    except (AttributeError, KeyError, TypeError) as error:
        raise unreadable(_NAME, str(error) or type(error).__name__) from None
    found = []
    for name, held in tensors.items():
        if not name.endswith(".weight_packed"):
            continue
        own = name.removesuffix("_packed")
        try:
            said = widths[own.removesuffix(".weight")]
            found.append(_read(f"{prefix}.{own}" if prefix else own, held.numpy(), tensors, own, said))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise unreadable(_NAME, f"{name}: {error}") from None
    return found


def _facts_of_small_floats(content: bytes) -> Iterator[TensorFacts]:
    prefix, tensors = _loaded(content)
    for own, held in tensors.items():
        if held.dtype == torch.float8_e4m3fn:
            scale = tensors.get(f"{own}_scale")
            if scale is None or scale.shape != (len(held), 1):
                raise unreadable(_NAME, f"{own} has no scale for each row")
            name = f"{prefix}.{own}" if prefix else own
            yield TensorFacts(name, {"scale": scale.numpy(), "numbers": (held.float() * scale).numpy()})


def _loaded(content: bytes) -> tuple[str, dict[str, Tensor]]:
    """The prefix of names, and the tensors."""
    try:
        length = int.from_bytes(content[:8], "little")
        return str(json.loads(content[8 : 8 + length])["__metadata__"][PREFIX]), load(content)
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise unreadable(_NAME, str(error) or type(error).__name__) from None


def _read(name: str, packed: npt.NDArray[Any], tensors: Mapping[str, Any], own: str, said: Mapping[str, Any]) -> Blocks:
    bits, size = int(said["num_bits"]), int(said["group_size"])
    if bits not in (4, 8) or size < 1:
        raise ValueError(f"{bits} bits in groups of {size}")
    rows, columns = (int(number) for number in tensors[f"{own}_shape"])
    scale = tensors[f"{own}_scale"].float().numpy()
    held = np.ascontiguousarray(packed.astype("<i4")).view(np.uint8).reshape(rows, -1)
    codes = unpack(held, bits, columns).astype(np.int64)
    if codes.shape != (rows, columns) or scale.shape != (rows, columns // size) or columns % size:
        raise ValueError("it has other sizes than its scales")
    return Blocks(name, bits, size, codes, scale, np.full(scale.shape, 1 << (bits - 1), np.int64))
