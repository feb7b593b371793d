"""The file for ExecuTorch: a .pte whose quantized operations run in its XNNPACK delegate."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.deploy.deployment import Deployment
from detent.deploy.encoding import BOUNDS, Encoding
from detent.deploy.qdq_graph import Op, QdqGraph, Read
from detent.deploy.torch_graph import FloatGrids, Grids, TorchGraph, with_linear_layers
from detent.errors import DeployError

__all__ = ["PLACES_FILE", "PTE_FILE", "lower_executorch", "write_executorch"]

PTE_FILE, PLACES_FILE = "model.pte", "model.places.json"
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm")
_MERGED = "IS_IMPLICIT_Q_DQ_TAG"
"""Marks a Q or DQ that the delegate made part of a kernel on integers; others are kernels themselves."""
_BATCH = 1


def write_executorch(deployment: Deployment) -> dict[str, bytes]:
    """`model.pte`, and `model.places.json`: how each ONNX operation runs in it."""
    if importlib.util.find_spec("executorch") is None:
        raise DeployError("write a .pte file", "executorch is not installed", "pip install 'detent[executorch]'")
    content, places = lower_executorch(deployment.graph)
    deployment.notes.append("the .pte file takes one sample at a time: ExecuTorch's sizes are fixed when it is written")
    in_float = [name for name, (_, place) in places.items() if place.startswith("float")]
    if in_float:
        deployment.notes.append(f"ExecuTorch runs in float: {', '.join(in_float)}")
    return {PTE_FILE: content, PLACES_FILE: json.dumps(places, indent=1).encode()}


def lower_executorch(graph: QdqGraph, *, as_float: bool = False) -> tuple[bytes, dict[str, tuple[str, str]]]:
    """A .pte file, and for each operation its type and where it runs: "integer", "folded", "float ..."."""
    samples = tuple(_sample(name, port.dtype, port.shape) for name, port in graph.inputs.items())
    linear = _with_float_weights(with_linear_layers(graph))
    with _quiet():
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        module = TorchGraph(linear, FloatGrids() if as_float else DecomposedGrids()).eval()
        # Not strict: the tracer behind `strict` does not know the Q and DQ operators.
        exported = torch.export.export(module, samples, strict=False)
        edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
        places = _places(graph, linear, edge.exported_program())
        content = bytes(edge.to_executorch().buffer)
        _check(content)
        return content, places


def _check(content: bytes) -> None:
    """Refuse a file that ExecuTorch itself does not load: its delegate finds some faults only then."""
    from executorch.runtime import Runtime

    try:
        program = Runtime.get().load_program(content)
        program.load_method("forward")
    except RuntimeError as error:
        raise DeployError(
            "write a .pte file",
            f"ExecuTorch writes it and does not load it: {error}",
            "give the parts of a Concat one scale, or keep the operation that it names in float",
        ) from None


def _with_float_weights(graph: QdqGraph) -> QdqGraph:
    """The same network, where weights of layers that do not run on integers are floats: outside of an integer kernel
    ExecuTorch has no operator for codes with a scale for each channel."""
    constants = dict(graph.constants)
    ops = []
    for op in graph.ops:
        weight = op.inputs[1] if op.type in _WEIGHTED else None
        if weight is not None and weight.encoding is not None and not _runs_on_codes(graph, op):
            name = f"{weight.tensor}_dequantized"
            constants[name] = weight.encoding.dequantize(graph.constants[weight.tensor])
            op = replace(op, inputs=(op.inputs[0], Read(name), *op.inputs[2:]))
        ops.append(op)
    return replace(graph, ops=tuple(ops), constants=constants)


def _runs_on_codes(graph: QdqGraph, op: Op) -> bool:
    """Whether a layer gets codes and gives codes, perhaps through a ReLU or Clip."""
    if op.inputs[0] is None or op.inputs[0].encoding is None:
        return False
    readers = graph.readers(op.outputs[0])
    if len(readers) == 1 and readers[0][1].encoding is None and readers[0][0].type in ("Relu", "Clip"):
        op = readers[0][0]
    return graph.grid_of(op.outputs[0]) is not None


class DecomposedGrids(Grids):
    """The Q and DQ operators that ExecuTorch's compilers look for: signed 8 bits, weights kept as codes."""

    def activation(self, values: Tensor, encoding: Encoding) -> Tensor:
        grid = _signed(encoding)
        library = torch.ops.quantized_decomposed
        codes = library.quantize_per_tensor(values, *grid)
        return library.dequantize_per_tensor(codes, *grid)  # type: ignore[no-any-return]

    def constant(self, codes: npt.NDArray[Any], encoding: Encoding) -> Mapping[str, Tensor]:
        if not _is_weight(encoding):
            return {"values": torch.from_numpy(encoding.dequantize(codes))}
        held = {"codes": torch.from_numpy(codes.astype(np.int8))}
        if encoding.axis is not None:
            held["scale"] = torch.from_numpy(encoding.scale.copy())
            held["zero_point"] = torch.from_numpy(encoding.zero_point.copy())
        return held

    def restore(self, buffers: Mapping[str, Tensor], encoding: Encoding) -> Tensor:
        if "values" in buffers:
            return buffers["values"]
        library, bounds = torch.ops.quantized_decomposed, (encoding.qmin, encoding.qmax, torch.int8)
        if encoding.axis is None:
            scale, zero_point = float(encoding.scale), int(encoding.zero_point)
            return library.dequantize_per_tensor(buffers["codes"], scale, zero_point, *bounds)  # type: ignore[no-any-return]
        parts = (buffers["codes"], buffers["scale"], buffers["zero_point"])
        return library.dequantize_per_channel(*parts, encoding.axis, *bounds)  # type: ignore[no-any-return]


def _is_weight(encoding: Encoding) -> bool:
    """Codes that fit 8 signed bits; a bias becomes a float, which the delegate rounds again."""
    least, greatest = BOUNDS[encoding.dtype]
    return least >= -128 and greatest <= 127 and encoding.block is None


def _signed(encoding: Encoding) -> tuple[float, int, int, int, torch.dtype]:
    least, greatest = BOUNDS[encoding.dtype]
    if not encoding.per_tensor or greatest - least > 255:
        raise DeployError(
            f"write {encoding.dtype} activations to a .pte file",
            "the delegate takes 8 bits and one scale",
            "quantize activations with 8 bits, one scale for each tensor",
        )
    offset = 128 if least == 0 and greatest == 255 else 0
    zero_point, low, high = int(encoding.zero_point) - offset, encoding.qmin - offset, encoding.qmax - offset
    return float(encoding.scale), zero_point, low, high, torch.int8


def _sample(name: str, dtype: str, shape: tuple[int | str, ...]) -> Tensor:
    if any(isinstance(size, str) for size in shape[1:]):
        raise DeployError(
            f"write the input {name!r} of shape {shape} to a .pte file",
            "only the batch may be free: ExecuTorch's sizes are fixed",
            "deploy with example inputs of the size to run",
        )
    sizes = [_BATCH if isinstance(size, str) else size for size in shape]
    return torch.zeros(sizes, dtype=getattr(torch, dtype))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of packages that ExecuTorch imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# --- what runs where ---------------------------------------------------------------------------------------


def _places(graph: QdqGraph, linear: QdqGraph, program: Any) -> dict[str, tuple[str, str]]:
    """By the ONNX name: type, and where it runs. Operations that left no node behind count with the next one."""
    found: dict[str, str] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and "executorch_call_delegate" in str(node.target):
            lowered = getattr(program.graph_module, node.args[0].target)
            for inner in lowered.original_module.graph.nodes:
                _note(found, linear, inner, inside=True)
        else:
            _note(found, linear, node, inside=False)
    ran = {op.name: found.get(op.outputs[0], "folded") for op in linear.ops}
    return {op.name: (op.type, ran.get(op.name, "folded")) for op in graph.ops}


def _note(found: dict[str, str], graph: QdqGraph, node: Any, *, inside: bool) -> None:
    index = _operation(node)
    if index is None or node.op != "call_function" or _is_conversion(node):
        return
    tensor = graph.ops[index].outputs[0]
    on_codes = inside and _meets_codes(node, back=True) and _meets_codes(node, back=False)
    place = "integer" if on_codes else "float in the delegate" if inside else "float outside of the delegate"
    if found.get(tensor, "integer") == "integer":
        found[tensor] = place


def _operation(node: Any) -> int | None:
    """Which operation a node is of: the number in the path of its module."""
    for path, _ in reversed(list(node.meta.get("nn_module_stack", {}).values())):
        room, _, number = path.rpartition(".")
        if room.endswith("operations") and number.isdigit():
            return int(number)
    return None


def _is_conversion(node: Any) -> bool:
    return node.op == "call_function" and "quantize_per" in str(node.target)


def _meets_codes(node: Any, *, back: bool) -> bool:
    """Whether every way from a node through others of the same delegate ends at a Q or DQ that is part of a kernel."""
    nexts = node.all_input_nodes if back else list(node.users)
    for each in nexts:
        if _is_conversion(each):
            if not each.meta.get(_MERGED, False):
                return False
            continue
        if each.op == "placeholder" and back and _is_constant(each):
            continue
        if each.op != "call_function" or not _meets_codes(each, back=back):
            return False
    return True


def _is_constant(node: Any) -> bool:
    return str(node.target).startswith(("b_", "p_", "c_", "_lifted"))
