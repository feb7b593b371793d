"""LSTM and GRU, in float, over the steps of one sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Op, default_activations
from detent.targets.ncnn.file.lowering import ONE_SAMPLE, NcnnLowering, refuse
from detent.targets.ncnn.file.model import Value

__all__ = ["gru", "lstm"]

Array = npt.NDArray[Any]

_DIRECTIONS = {"forward": 0, "reverse": 1, "bidirectional": 2}


def lstm(low: NcnnLowering, op: Op) -> None:
    """ONNX has the gates in the order input, output, forget, cell; ncnn input, forget, output, cell."""
    _check(low, op)
    weights, recurrences, biases = _held(low, op, gates=4)
    order = [0, 2, 1, 3]
    total = (biases[0] + biases[1])[:, order]
    _write(low, op, "LSTM", weights[:, order], total, recurrences[:, order])


def gru(low: NcnnLowering, op: Op) -> None:
    """ONNX has the gates in the order update, reset, hidden; ncnn reset, update, hidden, whose biases stay apart."""
    _check(low, op)
    if not op.attribute("linear_before_reset"):
        refuse(op, "it resets before its product", "use linear_before_reset=1, as PyTorch does")
    weights, recurrences, biases = _held(low, op, gates=3)
    both, order = biases[0] + biases[1], [1, 0, 2]
    rows = np.stack([both[:, 1], both[:, 0], biases[0][:, 2], biases[1][:, 2]], axis=1)
    _write(low, op, "GRU", weights[:, order], rows, recurrences[:, order])


def _check(low: NcnnLowering, op: Op) -> None:
    unusual = list(op.attribute("activations")) != default_activations(op.type, op.attributes)
    if unusual or "clip" in op.attributes or op.attribute("layout"):
        refuse(op, "other functions than the usual, clipping or the batch first", "use PyTorch's layers")
    lengths = op.optional(4)
    states = [low.constant(read) for read in op.inputs[5:7] if read is not None]
    if lengths is not None or any(state is None or state.any() for state in states):
        refuse(op, "it has lengths, or begins with a state that is not zero", "begin with zeros")
    if op.optional(7) is not None:
        refuse(op, "it has peepholes", "use PyTorch's layers")


def _held(low: NcnnLowering, op: Op, *, gates: int) -> tuple[Array, Array, Array]:
    """Weights and recurrences (directions, gates, hidden, ...), biases (two, directions, gates, hidden)."""
    weight, recurrence = low.constant(op.inputs[1]), low.constant(op.inputs[2])
    if weight is None or recurrence is None:
        refuse(op, "its weights are computed", "give constant weights")
    ways, hidden = len(recurrence), recurrence.shape[2]
    bias = low.constant(op.optional(3))
    bias = np.zeros((ways, 2 * gates * hidden)) if bias is None else bias
    split = (ways, gates, hidden, -1)
    return weight.reshape(split), recurrence.reshape(split), bias.reshape(ways, 2, gates, hidden).swapaxes(0, 1)


def _write(low: NcnnLowering, op: Op, layer: str, weights: Array, biases: Array, recurrences: Array) -> None:
    steps, samples, taken = low.shape(low.data(op))
    if samples != 1:
        refuse(op, f"{samples} sequences for one of the network", ONE_SAMPLE)
    ways, _, hidden, _ = recurrences.shape
    direction = _DIRECTIONS[op.attribute("direction")]
    params: dict[int, Value] = {0: hidden, 1: weights.size, 2: direction}
    if layer == "LSTM":
        params[3] = hidden
    arrays = [array.astype(np.float32).ravel() for array in (weights, biases, recurrences)]
    source = low.view(low.data(op), (steps, taken))
    states = [name for name in op.outputs[1:] if name and (low.graph.readers(name) or low.given(name))]
    if not states:
        low.layer(layer, op, [source], params, arrays, dims=(steps, ways * hidden))
        return
    # With the last states behind it, all of them or none: one row for each direction.
    given = [f"{name or f'{op.outputs[0]}:state'}:raw" for name in (*op.outputs, "")[: 3 if layer == "LSTM" else 2]]
    low.part(layer, op, "", [source], given, params, arrays)
    for name in (*([op.outputs[0]] if op.outputs[0] else []), *states):
        low.finish(f"{name}:raw", name)
