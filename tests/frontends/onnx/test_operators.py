"""The operator tests that ship with ONNX: every case is computed as ONNX says or refused, in three settings.

A case is loaded as it is, with every input but the first as an initializer (so that operations with weights become
modules), and with all inputs as initializers (so that the importer folds the whole graph).
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, TensorProto, numpy_helper
from torch import Tensor

from detent import load
from detent.errors import OnnxError

# Operators of vision, speech and transformer networks as exporters write them today.
NETWORK_OPS = frozenset(
    re.findall(
        r"\w+",
        """
    Abs Add And ArgMax ArgMin Attention AveragePool BatchNormalization Cast CastLike Ceil Celu Clip Concat Constant
    ConstantOfShape Conv ConvTranspose Cos CumSum DepthToSpace Div Dropout Einsum Elu Equal Erf Exp Expand Flatten
    Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample
    GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization
    LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul Max MaxPool Mean MeanVarianceNormalization
    Min Mish Mod Mul Neg NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow RMSNormalization RNN Range Reciprocal
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
    Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding Round STFT DFT ScatterElements ScatterND Selu Shape
    Sigmoid Sign Sin Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tanh
    ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
        """,
    )
)

ORDINARY_NAMES = "FLOAT DOUBLE FLOAT16 BFLOAT16 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL"
ORDINARY = frozenset(getattr(TensorProto, name) for name in ORDINARY_NAMES.split())

# Of the types whose last place is coarser than the tolerance of the tests: two units of it.
COARSE = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}


@cache
def cases() -> dict[str, Any]:
    """The node tests of the standard domain. Making them divides by zero, on purpose."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    return {case.name: case for case in found if {entry.domain for entry in case.model.opset_import} == {""}}


def operator_of(name: str) -> str:
    """The operator a case is about; an expanded case is about the one it writes out."""
    base = name.split("_expanded")[0]
    nodes = cases()[base if base in cases() else name].model.graph.node
    return str(nodes[0].op_type) if len(nodes) == 1 else "several"


@cache
def by_operator() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in cases():
        found.setdefault(operator_of(name), []).append(name)
    return found


def as_array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.array(value)


def as_tensor(array: Any) -> Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def with_constants(model: ModelProto, inputs: list[Any], computed: int) -> ModelProto:
    """The model with all but the first `computed` inputs as initializers."""
    changed = ModelProto()
    changed.CopyFrom(model)
    names = [value.name for value in changed.graph.input]
    del changed.graph.input[computed:]
    for name, value in list(zip(names, inputs, strict=True))[computed:]:
        changed.graph.initializer.append(numpy_helper.from_array(value, name))
    return changed


def check(given: Any, wanted: Any, rtol: float, atol: float) -> None:
    tensors = given if isinstance(given, tuple) else (given,)
    assert len(tensors) == len(wanted)
    for tensor, value in zip(tensors, wanted, strict=True):
        expected = as_tensor(as_array(value))
        assert tensor.dtype == expected.dtype
        rtol = COARSE.get(tensor.dtype, rtol)
        torch.testing.assert_close(tensor.detach(), expected, rtol=rtol, atol=max(atol, 1e-6), equal_nan=True)


def run(name: str, computed: int | None) -> None:
    case = cases()[name]
    for inputs, outputs in case.data_sets:
        arrays: list[Any] = []
        model = case.model
        if computed is not None and all(isinstance(value, (np.ndarray, np.generic, TensorProto)) for value in inputs):
            arrays = [as_array(value) for value in inputs]
            model = with_constants(model, arrays, computed)
        graph = load(model)
        values = arrays or [as_array(value) for value in inputs]
        given = graph(*(as_tensor(value) for value in values[: len(model.graph.input)]))
        check(given, outputs, case.rtol, case.atol)


@cache
def outcome(name: str, computed: int | None) -> str:
    try:
        run(name, computed)
    except OnnxError as refusal:
        return f"refused: {refusal.found}"
    except AssertionError as wrong:
        return f"WRONG: {wrong}"
    except Exception as error:
        return f"CRASH: {type(error).__name__}: {error}"
    return "passed"


# By the schemas: to make the cases takes ten seconds. Some operators have none, and some cases are of several.
OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""} | {"several"})


@pytest.mark.parametrize("operator", OPERATORS)
def test_right_or_refused(operator: str) -> None:
    for name in by_operator().get(operator, ()):
        # What an expanded case is made of is tested on its own in all three settings.
        for computed in (None,) if "_expanded" in name else (None, 1, 0):
            found = outcome(name, computed)
            assert found == "passed" or found.startswith("refused"), f"{name}, {computed} inputs computed: {found}"


def is_ordinary(name: str) -> bool:
    """Whether a case is about tensors of floats and integers, not of 2 to 8 bit floats, text or sequences."""
    graph = cases()[name].model.graph
    values = (*graph.input, *graph.output)
    return all(v.type.HasField("tensor_type") and v.type.tensor_type.elem_type in ORDINARY for v in values)


def test_pass_rate(capsys: pytest.CaptureFixture[str]) -> None:
    every = Counter(outcome(name, None) == "passed" for name in cases())
    names = [name for op in NETWORK_OPS & set(by_operator()) for name in by_operator()[op] if is_ordinary(name)]
    networks = Counter(outcome(name, None) == "passed" for name in names)
    rate = networks[True] / networks.total()
    with capsys.disabled():
        print(
            f"\nONNX operator tests: {every[True]} of {every.total()} pass, the others are refused; "
            f"of the operators of networks {networks[True]} of {networks.total()} ({rate:.1%})"
        )
    assert rate >= 0.85


def test_the_tests_are_those_of_onnx() -> None:
    assert len(cases()) > 1000, onnx.__version__
    assert NETWORK_OPS - set(by_operator()) == set()
    assert set(by_operator()) - set(OPERATORS) == set()


def test_a_wrong_answer_is_found() -> None:
    case = cases()["test_relu"]
    with pytest.raises(AssertionError):
        check(torch.zeros(3, 4, 5), case.data_sets[0][1], case.rtol, case.atol)
