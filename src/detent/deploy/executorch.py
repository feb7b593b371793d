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
from detent.deploy.executorch_partition import xnnpack_partitioner
from detent.deploy.fixed_sizes import with_fixed_sizes
from detent.deploy.qdq_graph import Op, QdqGraph, Read
from detent.deploy.torch_graph import FloatGrids, Grids, TorchGraph, with_linear_layers
from detent.errors import DeployError, DetentError

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
    grids = FloatGrids() if as_float else DecomposedGrids()
    fixed = _with_own_biases(with_linear_layers(with_fixed_sizes(graph, samples)))
    with _quiet():
        outside: frozenset[str] = frozenset()
        while True:
            linear = _with_float_weights(fixed, outside)
            edge = _lowered(TorchGraph(linear, grids).eval(), samples)
            left = _left_outside(linear, edge.exported_program()) - outside
            if not left:
                break
            outside |= left
        places = _places(graph, linear, edge.exported_program())
        with _refusing():
            content = bytes(edge.to_executorch().buffer)
        _check(content, TorchGraph(linear, grids).eval(), samples)
        return content, places


def _lowered(module: TorchGraph, samples: tuple[Tensor, ...]) -> Any:
    """ExecuTorch's program, with what the delegate takes in it."""
    from executorch.exir import to_edge_transform_and_lower

    with _refusing():
        # Not strict: the tracer behind `strict` does not know the Q and DQ operators.
        exported = torch.export.export(module, samples, strict=False)
        return to_edge_transform_and_lower(exported, partitioner=[xnnpack_partitioner()])


@contextmanager
def _refusing() -> Iterator[None]:
    """What ExecuTorch raises is a refusal of the network."""
    try:
        yield
    except DetentError:
        raise
    except Exception as error:  # of many kinds: assertions, plain exceptions, torch's own
        raise DeployError(
            "write a .pte file",
            f"ExecuTorch does not lower the network: {str(error) or type(error).__name__}",
            "replace the operation that it names, or choose another target",
        ) from error


def _check(content: bytes, module: TorchGraph, samples: tuple[Tensor, ...]) -> None:
    """Refuse a file that ExecuTorch does not load, or with which it computes something else than torch does: its
    delegate finds some faults only then, and mistakes the order of channels of codes that leave it and come back."""
    from executorch.runtime import Runtime

    try:
        program = Runtime.get().load_program(content)
        found = program.load_method("forward").execute(samples)
    except RuntimeError as error:
        raise DeployError(
            "write a .pte file",
            f"ExecuTorch writes it and does not run it: {error}",
            "see what ExecuTorch printed, keep that operation in float, or choose another target",
        ) from None
    with torch.no_grad():
        expected = module(*samples)
    if not all(_is_near(ours, theirs) for ours, theirs in zip(expected, found, strict=True)):
        raise DeployError(
            "write a .pte file",
            "ExecuTorch runs it and computes something else",
            "exclude the operations of the plan that are next to one that its delegate does not take, such as a slice",
        )


def _is_near(ours: Tensor, theirs: Tensor) -> bool:
    """Whether at least half of the numbers agree to a sixteenth of the largest: a mistake of layout is none of
    rounding, which may flip a few steps of 8 bits."""
    if not ours.is_floating_point():
        return True
    largest = float(ours.abs().amax()) if ours.numel() else 0.0
    return float(((ours - theirs).abs() <= largest / 16).double().mean()) >= 0.5 if largest else True


def _with_own_biases(graph: QdqGraph) -> QdqGraph:
    """The same network, where layers do not share a bias: the delegate makes integers of one once, for the scales of
    the first layer that reads it."""
    constants = dict(graph.constants)
    taken: set[str] = set()
    ops = []
    for op in graph.ops:
        bias = op.inputs[2] if op.type in _WEIGHTED and len(op.inputs) > 2 else None
        if bias is not None and bias.tensor in taken:
            name = f"{bias.tensor}_of_{op.outputs[0]}"
            constants[name] = graph.constants[bias.tensor].copy()
            op = replace(op, inputs=(*op.inputs[:2], replace(bias, tensor=name)))
        elif bias is not None:
            taken.add(bias.tensor)
        ops.append(op)
    return replace(graph, ops=tuple(ops), constants=constants)


def _with_float_weights(graph: QdqGraph, left: frozenset[str]) -> QdqGraph:
    """The same network, where weights of layers that do not run on integers are floats: outside of an integer kernel
    ExecuTorch has no operator for codes with a scale for each channel. `left` are outputs of layers that the delegate
    is known not to take."""
    constants = dict(graph.constants)
    ops = []
    for op in graph.ops:
        weight = op.inputs[1] if op.type in _WEIGHTED else None
        codes = weight is not None and weight.encoding is not None
        if weight is not None and codes and (op.outputs[0] in left or not _runs_on_codes(graph, op)):
            name = f"{weight.tensor}_dequantized"
            assert weight.encoding is not None
            constants[name] = weight.encoding.dequantize(graph.constants[weight.tensor])
            op = replace(op, inputs=(op.inputs[0], Read(name), *op.inputs[2:]))
        ops.append(op)
    return replace(graph, ops=tuple(ops), constants=constants)


def _left_outside(graph: QdqGraph, program: Any) -> frozenset[str]:
    """Outputs of the layers whose weights are still codes outside of the delegate."""
    restored = [node for node in program.graph.nodes if "dequantize_per_channel" in str(node.target)]
    indices = {_operation(user) for node in restored for user in node.users}
    return frozenset(graph.ops[index].outputs[0] for index in indices if index is not None)


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
    kind = getattr(torch, dtype)
    if not kind.is_floating_point:
        return torch.zeros(sizes, dtype=kind)
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0), dtype=kind)


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
