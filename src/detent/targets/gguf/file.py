"""`model.gguf`: weights in the blocks of their types, all else as float32, under llama.cpp's names.

`detent.parameters` lists, for each tensor, the parameters of the model that it is: two where head and table are one.
The tokenizer is that of the folder that the model was loaded from, if there is one that llama.cpp runs the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import ArtifactError, DeployError, refusing
from detent.ir import DeployedTensor, Layout, Network, StoredAs
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.format import Roles
from detent.targets.gguf.architecture import heads_of, interleaved, name_of, split_halves, tensors_of, values_of
from detent.targets.gguf.block_types import F32, TYPES, BlockType, Coded, real_numbers, type_of
from detent.targets.gguf.container import Container, GgufTensor, damaged, read, write
from detent.targets.gguf.mix import file_type
from detent.targets.gguf.tokenizer import NoTokenizer, tokenizer_values

__all__ = ["FILE", "FORMAT", "PARAMETERS", "SIZES", "GgufFormat", "as_float", "read_gguf"]

FILE = "model.gguf"
PARAMETERS = "detent.parameters"
SIZES = {F32: (1, 4), **{one.number: (one.block, one.width) for one in TYPES.values()}}
_ASKED = "write the format 'gguf'"

Array = npt.NDArray[Any]


class GgufFormat(Format):
    name = "gguf"
    files: Mapping[str, Roles | None] = {FILE: ("weight",)}
    weights = FILE

    def write(self, deployment: Deployment) -> Written:
        notes: tuple[str, ...] = ()
        container = _container(deployment)
        try:
            words = container.tensors["token_embd.weight"].shape[0]
            text = tokenizer_values(deployment.companions, words)
        except NoTokenizer as reason:
            text = {"tokenizer.ggml.model": "no_vocab"}
            notes = (f"model.gguf has no tokenizer, and llama.cpp runs it on token ids: {reason}",)
        return Written({FILE: write(replace(container, values={**container.values, **text}))}, notes)

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        for name, held, coded in read_gguf(files[file]):
            facts = {"bits": held.bits, "scale": coded.scale, "numbers": real_numbers(coded)}
            yield TensorFacts(name, facts)


FORMAT = GgufFormat()


def _container(deployment: Deployment) -> Container:
    quantized = {tensor.tensor: tensor for tensor in deployment.parameters}
    arrays = _parameters(deployment.graph)
    table = next((array for name, array in arrays.items() if name_of(_layer(name)) == "token_embd"), None)
    with refusing(DeployError, _ASKED, "correct config.json, or use another target"):
        values = values_of(deployment.config, words=0 if table is None else len(table))
    tensors: dict[str, GgufTensor] = {}
    parameters: dict[str, list[str]] = {}
    types, places = [], tensors_of(values)
    for name, array in arrays.items():
        own = f"{name_of(_layer(name))}.{name.rpartition('.')[2]}"
        if own not in places:
            if name in quantized or name.endswith((".weight", ".bias")):
                raise DeployError(_ASKED, f"llama.cpp has no place for the parameter {name}", "use another target")
            continue
        held, kind = _held(array, quantized.get(name), heads_of(own, values))
        tensors[own], parameters[own] = held, [name]
        types.append(kind)
    absent = [name for name in places if name not in tensors]
    if absent:
        raise DeployError(
            _ASKED, f"the network has no {', '.join(absent[:3])}", "deploy the whole model, with its head"
        )
    if "output.weight" in tensors and _equal(tensors["output.weight"], tensors["token_embd.weight"]):
        del tensors["output.weight"]
        parameters["token_embd.weight"] += parameters.pop("output.weight")
    values |= {
        "general.name": deployment.name,
        "general.file_type": file_type([kind for kind in types if kind]),
        "general.quantization_version": 2,
        PARAMETERS: ["\n".join(parameters[own]) for own in tensors],
    }
    return Container(values, tensors)


def _layer(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _parameters(graph: Network) -> dict[str, Array]:
    """The real numbers of every parameter, as the model has it."""
    encodings = {read.tensor: read.encoding for op in graph.ops for read in op.reads if read.encoding}
    found = {}
    for tensor, stored in graph.constants.items():
        array = encodings[tensor].dequantize(stored) if tensor in encodings else stored
        told = graph.stored_as.get(tensor, StoredAs(tensor))
        if array.dtype == np.float32 and told.layout in (Layout.SAME, Layout.TRANSPOSED):
            found[told.parameter] = array.T if told.layout is Layout.TRANSPOSED else array
    return found


def _held(array: Array, tensor: DeployedTensor | None, heads: int | None) -> tuple[GgufTensor, str]:
    """A parameter as it stands in the file, and the name of its type; "" if that is float32."""
    if tensor is None:
        return GgufTensor(array.shape, F32, np.ascontiguousarray(interleaved(array, heads), "<f4").tobytes()), ""
    kind = type_of(tensor.scheme)
    if kind is None:
        raise DeployError(
            _ASKED, f"{tensor.tensor} is {tensor.scheme}, which no GGUF type stores", "use another recipe"
        )
    rows, groups = tensor.scale.shape
    values, offset = array.reshape(rows, groups, -1), tensor.offset
    steps = values.astype(np.float64) if offset is None else values.astype(np.float64) + offset[..., None]
    codes = np.rint(steps / tensor.scale[..., None]).astype(np.int64).reshape(array.shape)
    coded = Coded(codes, tensor.scale, offset)
    if not np.array_equal(real_numbers(coded), array):
        raise AssertionError(f"{tensor.tensor} is not on its grid")
    packed = kind.pack(coded)
    if not np.array_equal(real_numbers(kind.unpack(packed, array.shape[1])), array):
        raise DeployError(_ASKED, f"the scales of {tensor.tensor} are no numbers of {kind.name}", "calibrate it again")
    return GgufTensor(array.shape, kind.number, interleaved(packed, heads).tobytes()), kind.name


def _equal(first: GgufTensor, second: GgufTensor) -> bool:
    return (first.type, first.shape, first.content) == (second.type, second.shape, second.content)


def read_gguf(content: bytes) -> Iterator[tuple[str, BlockType, Coded]]:
    """The weights in blocks of such a file, by the names of the model's parameters, rows in the model's order."""
    container = read(content, SIZES)
    names = container.values.get(PARAMETERS)
    if not isinstance(names, list) or len(names) != len(container.tensors):
        raise _without_names()
    kinds = {one.number: one for one in TYPES.values()}
    for (own, held), parameters in zip(container.tensors.items(), names, strict=True):
        if held.type == F32:
            continue
        kind = kinds[held.type]
        if len(held.shape) != 2:
            raise damaged(f"{own} has {len(held.shape)} dimensions")
        rows, columns = held.shape
        packed = np.frombuffer(held.content, np.uint8).reshape(rows, columns // kind.block * kind.width)
        try:
            heads = heads_of(own, container.values)
            ordered = split_halves(packed, heads)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise damaged(f"the heads of {own}: {error}") from None
        for parameter in str(parameters).split("\n"):
            yield parameter, kind, kind.unpack(ordered, columns)


def as_float(container: Container) -> Container:
    """The same network with dequantized weights."""
    kinds = {one.number: one for one in TYPES.values()}

    def plain(held: GgufTensor) -> GgufTensor:
        if held.type == F32:
            return held
        packed = np.frombuffer(held.content, np.uint8).reshape(held.shape[0], -1)
        numbers = real_numbers(kinds[held.type].unpack(packed, held.shape[1]))
        return GgufTensor(held.shape, F32, numbers.astype("<f4").tobytes())

    return Container(container.values, {name: plain(held) for name, held in container.tensors.items()})


def _without_names() -> ArtifactError:
    return damaged(f"{PARAMETERS} does not name its tensors")
