"""A deployed network as ncnn files."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx

from detent.ir import Network, Op, Trait, ops_with, read_qdq
from detent.ir.folding import fold_constants
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.format import Roles
from detent.targets.ncnn.file import gathering, logic, pointwise, recurrent, weighted, windows
from detent.targets.ncnn.file import movement as moves
from detent.targets.ncnn.file.lowering import NcnnLowering, refuse, sample_sizes
from detent.targets.ncnn.file.model import NcnnModel
from detent.targets.ncnn.file.simplify import without_repetition
from detent.targets.ncnn.file.table import TableEntry, read_ncnn_table, table_of, write_table

__all__ = [
    "BIN",
    "FORMAT",
    "PARAM",
    "TABLE",
    "TABLE_FORMAT",
    "NcnnFormat",
    "NcnnTableFormat",
    "ncnn_model",
    "read_ncnn",
]

PARAM, BIN, TABLE = "model.ncnn.param", "model.ncnn.bin", "model.table"

Rule = Callable[[NcnnLowering, Op], None]

RULES: dict[str, Rule] = {
    "Conv": weighted.conv,
    "ConvTranspose": weighted.conv_transpose,
    "Gemm": weighted.gemm,
    "MatMul": windows.matmul,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"), pointwise.binary),
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Softplus", "Mish", "HardSwish", "HardSigmoid"), pointwise.named),
    **dict.fromkeys(
        ("LeakyRelu", "Elu", "Celu", "Selu", "Gelu", "Abs", "Neg", "Floor", "Ceil", "Sqrt"), pointwise.named
    ),
    **dict.fromkeys(("Round", "Sign"), pointwise.named),
    **dict.fromkeys(("Exp", "Log", "Sin", "Cos", "Tan", "Reciprocal"), pointwise.named),
    "Clip": pointwise.clip,
    "Cast": logic.cast,
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), logic.compare),
    **dict.fromkeys(("And", "Or", "Xor"), logic.combine),
    "Not": logic.negate,
    "CumSum": windows.cumulative_sum,
    "PRelu": pointwise.prelu,
    **dict.fromkeys(("MaxPool", "AveragePool"), windows.pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), windows.global_pool),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"), windows.reduce),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare"), windows.reduce),
    "Softmax": windows.softmax,
    "LogSoftmax": windows.log_softmax,
    "LayerNormalization": windows.layer_norm,
    "BatchNormalization": windows.batch_norm,
    "InstanceNormalization": windows.instance_norm,
    "RMSNormalization": windows.rms_norm,
    "LSTM": recurrent.lstm,
    "GRU": recurrent.gru,
    "Where": logic.where,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"), moves.reshape),
    "Transpose": moves.transpose,
    "Concat": moves.concat,
    "Split": moves.split,
    "Slice": moves.slice_,
    "Gather": gathering.gather,
    "GatherElements": gathering.gather_elements,
    "Expand": moves.expand,
    "Tile": moves.tile,
    "Pad": moves.pad,
    "Resize": moves.resize,
    "DepthToSpace": moves.depth_to_space,
}

_INTEGER = ops_with(Trait.WEIGHTED) - {"ConvTranspose"}  # which ncnn computes in float


_DEPTHWISE = (
    "on x86 ncnn computes depthwise convolutions with a reciprocal of 12 bits unless `use_packing_layout` is "
    "false in its options: set it so where the verified numbers are wanted; it is slower"
)


class NcnnFormat(Format):
    """The network with its integers."""

    name = "ncnn"
    files: Mapping[str, Roles | None] = {PARAM: None, BIN: ()}
    weights = BIN
    operators = frozenset(RULES)

    def write(self, deployment: Deployment) -> Written:
        model = _lowered(deployment.graph, deployment.model)
        depthwise = any(layer.int8 and layer.type == "ConvolutionDepthWise" for layer in model.layers)
        return Written({PARAM: model.param(), BIN: model.bin()}, (_DEPTHWISE,) if depthwise else ())

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        model = NcnnModel.read(files[PARAM], files[file])
        yield from _table_facts(table_of(model))
        for layer in model.layers:
            if layer.int8 and ":" not in layer.name:  # of a group, a part of the weights
                yield TensorFacts(layer.name, {"numbers": layer.weights[0]}, 1)
            if layer.gives_codes:
                yield TensorFacts(layer.outputs[0], {"factor": layer.weights[-1]})


class NcnnTableFormat(Format):
    """The calibration table, for `ncnn2int8`."""

    name = "ncnn_table"
    files: Mapping[str, Roles | None] = {TABLE: ()}
    operators = frozenset(RULES)

    def write(self, deployment: Deployment) -> Written:
        return Written({TABLE: write_table(table_of(_lowered(deployment.graph, deployment.model)))})

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        return _table_facts(read_ncnn_table(files[file]))


FORMAT, TABLE_FORMAT = NcnnFormat(), NcnnTableFormat()


def _table_facts(entries: Iterable[TableEntry]) -> Iterator[TensorFacts]:
    for entry in entries:
        yield TensorFacts(entry.layer, {"factor": entry.input}, 0)
        yield TensorFacts(entry.layer, {"factor": entry.weight}, 1)


def ncnn_model(model: onnx.ModelProto) -> NcnnModel:
    """An ONNX model, QDQ or float, as ncnn layers."""
    return _lowered(read_qdq(model), model)


def read_ncnn(files: Mapping[str, bytes]) -> NcnnModel:
    """The network in the files of ncnn."""
    return NcnnModel.read(files[PARAM], files[BIN])


def _lowered(graph: Network, model: onnx.ModelProto) -> NcnnModel:
    known = sample_sizes(graph, model)
    low = NcnnLowering(without_repetition(fold_constants(graph, known.shapes)), known)
    for op in low.graph.ops:
        if low.absorbed(op):
            continue
        rule = RULES.get(op.type) if not op.domain else None
        if rule is None:
            near = difflib.get_close_matches(op.type, RULES, n=1)
            refuse(op, "ncnn has no layer for it here", f"replace it, perhaps with {near[0]}" if near else "replace it")
        _check_reads(low, op)
        rule(low, op)
    for output in low.graph.outputs:
        low.blob(output.read.tensor)  # a constant that nobody else reads
        if output.read.encoding is not None:
            producer = graph.producer(output.read.tensor)
            what = producer or Op("Output", output.name, (), (output.name,))
            refuse(
                what, f"the output {output.name!r} is quantized", "plan for the backend ncnn, which leaves it in float"
            )
    return low.model()


def _check_reads(low: NcnnLowering, op: Op) -> None:
    """Only the data input of a weighted operation can be quantized."""
    for index, read in enumerate(op.inputs):
        if read is None or read.encoding is None or low.constant(read) is not None:
            continue
        linear = op.type != "MatMul" or weighted.is_linear(low, op)
        if op.type not in _INTEGER or index or not linear:
            refuse(
                op,
                f"it reads {read.tensor!r} as integers",
                "plan for the backend ncnn: only convolutions and linear layers run on integers there",
            )
