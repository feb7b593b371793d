"""A deployed network as a .tflite file, without TensorFlow.

What is on a grid runs in int8 and everything else in float, with QUANTIZE and DEQUANTIZE between them, so that the
file computes what the QDQ model says. The network takes and gives real numbers: it begins with QUANTIZE and ends with
DEQUANTIZE, unless the QDQ model itself takes or gives codes. Images have their channels last, as LiteRT wants
them, also at the two ends: every input and output of four axes. The batch is free.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
import onnx

from detent.errors import DeployError
from detent.ir import Network, Op, Operand, read_qdq
from detent.ir.free_sizes import FreeSizes
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.format import Roles
from detent.targets.litert.file.container import TfliteModel, read_tflite, to_bytes
from detent.targets.litert.file.fusing import fused
from detent.targets.litert.file.lowering import TfliteLowering, Variant, refusal
from detent.targets.litert.file.numbers import activation_encoding
from detent.targets.litert.file.ops_composed import COMPOSED
from detent.targets.litert.file.ops_elementwise import ELEMENTWISE
from detent.targets.litert.file.ops_pad import PADS
from detent.targets.litert.file.ops_pool import POOLS
from detent.targets.litert.file.ops_recurrent import RECURRENT
from detent.targets.litert.file.ops_shape import SHAPES
from detent.targets.litert.file.ops_weighted import WEIGHTED

__all__ = [
    "FORMAT",
    "METADATA",
    "MICRO_FORMAT",
    "Origin",
    "TfliteFormat",
    "model_to_tflite",
    "origin_of",
    "tensor_names",
]

Array = npt.NDArray[Any]

_FILE = "model.tflite"

METADATA = "detent"
"""Names the buffer in the file that says where its tensors and operators come from."""

_LOWERERS = {**WEIGHTED, **ELEMENTWISE, **COMPOSED, **POOLS, **PADS, **RECURRENT, **SHAPES}
_SHAPE_INPUTS = {"Reshape": 1, "Expand": 1, "Resize": 1, "Unsqueeze": 1, "Squeeze": 1, "LSTM": 5, "GRU": 5}
"""Operations of which only the first inputs are data; the shapes and first states that the others say are known."""

_FROM_SIZES = ("Shape", "Size", "ConstantOfShape", "Range")


@dataclass(frozen=True)
class Origin:
    """Where a file that Detent wrote comes from.

    - `inputs`, `outputs`: the names they have in the ONNX network, in the order of the file;
    - `tensors`: of the file's tensors that the ONNX network has, its name there, and whether channels are last here;
    - `operations`: for each operator the names of the ONNX nodes that it stands for.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[int, tuple[str, bool]]
    operations: tuple[tuple[str, ...], ...]


class TfliteFormat(Format):
    """`short_sums`: whether biases of 16-bit activations have 32 bits, as in `model_to_tflite`."""

    files: Mapping[str, Roles | None] = {_FILE: ()}
    weights = _FILE
    operators = frozenset(_LOWERERS)
    requires = ("ai_edge_litert", "litert")

    def __init__(self, name: str, *, short_sums: bool):
        self.name, self._short_sums = name, short_sums

    def write(self, deployment: Deployment) -> Written:
        made = _lowered(deployment.graph, FreeSizes.of(deployment.model, strict=True), short_sums=self._short_sums)
        note = f"{_FILE} takes one sample at a time: an operator of it holds the size of its output"
        return Written({_FILE: _bytes(made)}, (note,) if made.fixed_batch else ())

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        tensors = read_tflite(files[file]).tensors
        names = {tensor.name for tensor in tensors}
        for tensor in tensors:
            # An operator that keeps the grid of its input, as a maximum does, is requantized by the one behind it.
            if tensor.encoding is not None and f"{tensor.name}_quantized" not in names:
                grid = {"scale": tensor.encoding.scale, "zero_point": tensor.encoding.zero_point}
                held = {} if tensor.data is None else {"numbers": tensor.data}
                yield TensorFacts(tensor.name, {**grid, **held})


FORMAT = TfliteFormat("tflite", short_sums=True)
MICRO_FORMAT = TfliteFormat("tflite_micro", short_sums=False)
"""The kernels for microcontrollers have biases of 64 bits for activations of 16."""


def model_to_tflite(model: onnx.ModelProto, *, short_sums: bool = True) -> bytes:
    """A .tflite file of a QDQ or float ONNX model. `short_sums`: convolutions of 16-bit codes have biases of 32 bits
    where their sums fit in them; LiteRT has fast kernels for those, and microcontrollers have none."""
    return _bytes(_lowered(read_qdq(model), FreeSizes.of(model, strict=True), short_sums=short_sums))


def origin_of(model: TfliteModel) -> Origin:
    """The origin that Detent recorded in a file. For any other file, every tensor keeps its own name, and those with
    four axes have channels last."""
    if METADATA in model.metadata:
        held = json.loads(model.metadata[METADATA])
        return Origin(
            tuple(held["inputs"]),
            tuple(held["outputs"]),
            {int(index): (str(name), bool(last)) for index, (name, last) in held["tensors"].items()},
            tuple(tuple(names) for names in held["operations"]),
        )
    names = tensor_names(model)
    tensors = {
        index: (names[index], len(tensor.shape) == 4)
        for index, tensor in enumerate(model.tensors)
        if tensor.data is None
    }
    return Origin(
        tuple(names[index] for index in model.inputs),
        tuple(names[index] for index in model.outputs),
        tensors,
        tuple((names[operator.outputs[0]],) for operator in model.operators),
    )


def tensor_names(model: TfliteModel) -> list[str]:
    """A unique name for each tensor, which files do not guarantee."""
    counts = Counter(tensor.name for tensor in model.tensors)
    return [
        tensor.name if counts[tensor.name] == 1 and tensor.name else f"{tensor.name}_{index}"
        for index, tensor in enumerate(model.tensors)
    ]


class _Written(TfliteLowering):
    """The state of writing a network, from its inputs to its outputs."""

    def __init__(self, graph: Network, sizes: FreeSizes, *, short_sums: bool):
        super().__init__(graph, sizes, short_sums=short_sums)
        self.inputs = [self._input(name) for name in graph.inputs]
        for node in fused(graph):
            self.current = tuple(op.name for op in node.ops)
            if node.main.type not in _LOWERERS or node.main.domain not in ("", "ai.onnx"):
                raise refusal(node.main, "the format has no such operation, or Detent does not write it")
            _LOWERERS[node.main.type](self, node)
            if node.bounds is not None:
                self.clip(node.output, node.bounds)
        self.current = ()
        self.outputs = [self._output(position) for position in range(len(graph.outputs))]

    def _input(self, name: str) -> int:
        encoding = None
        if name in self.graph.coded:
            read = next(read for _, read in self.graph.readers(name))
            assert read.encoding is not None
            encoding = activation_encoding(read.encoding, name)
        return self.make(name, Variant(encoding, self.rank(name) == 4))

    def _output(self, position: int) -> int:
        output = self.graph.outputs[position]
        read = output.read
        last = self.rank(read.tensor) == 4
        index = self.take(read, last=last, integer=output.as_codes)
        if index not in self.inputs:
            self.tensors[index] = replace(self.tensors[index], name=output.name)
        self.shown.setdefault(index, (output.name, last))
        return index


def _lowered(graph: Network, sizes: FreeSizes, *, short_sums: bool) -> _Written:
    data = _data_only(_computed(graph, sizes.value))
    if all(op.type not in _FROM_SIZES for op in data.ops):
        return _Written(data, sizes, short_sums=short_sums)
    # Numbers that are made for each sample are constants only for one.
    if sizes.inner:
        raise DeployError(
            "write a network as .tflite",
            f"it computes with its sizes, of which {', '.join(sizes.inner)} are free",
            f"fix them when loading the model: {' '.join(f'--size {name}=SIZE' for name in sizes.inner)}",
        )
    written = _Written(_data_only(_computed(graph, sizes.one.values.get)), sizes, short_sums=short_sums)
    written.fixed_batch = True
    return written


def _computed(graph: Network, value: Callable[[str], Array | None]) -> Network:
    """The network with everything that is computed from sizes and constants replaced by constants."""
    constants, coded = dict(graph.constants), set(graph.coded)
    kept: list[Op] = []
    for op in graph.ops:
        values = {name: value(name) for name in op.outputs if name}
        held = {name: array for name, array in values.items() if array is not None}
        grids = {name: graph.encodings(name) for name in held}
        if len(held) < len(values) or any(len(found) > 1 for found in grids.values()):
            kept.append(op)
            continue
        for name, array in held.items():
            encoding = grids[name][0] if grids[name] else None
            constants[name] = array if encoding is None else encoding.quantize(array)
            coded.update([name] if encoding is not None else [])
    return replace(graph, ops=tuple(kept), constants=constants, coded=frozenset(coded))


def _data_only(graph: Network) -> Network:
    """The network without the operations that only compute shapes."""
    wanted = set(graph.output_tensors)
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if wanted.intersection(op.outputs):
            kept.append(op)
            data = op.inputs[: _SHAPE_INPUTS.get(op.type, len(op.inputs))]
            wanted.update(read.tensor for read in data if isinstance(read, Operand))
    return replace(graph, ops=tuple(reversed(kept)))


def _bytes(made: _Written) -> bytes:
    tensors = made.tensors
    if made.fixed_batch:
        tensors = [replace(tensor, signature=tensor.shape) for tensor in tensors]
    origin = {
        "inputs": list(made.graph.inputs),
        "outputs": [output.name for output in made.graph.outputs],
        # Those in the order of channels last are not the tensors that the network has.
        "tensors": {str(i): shown for i, shown in sorted(made.shown.items()) if shown[0] not in made.flattened},
        "operations": made.written,
    }
    metadata = {METADATA: json.dumps(origin, separators=(",", ":")).encode()}
    return to_bytes(
        TfliteModel(tuple(tensors), tuple(made.operators), tuple(made.inputs), tuple(made.outputs), metadata)
    )
