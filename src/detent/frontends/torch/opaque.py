"""Operations without a lowering (an LSTM, a user's leaf module) are exported by torch.onnx and inserted."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any

import onnx
import onnx.inliner
import torch
from torch import Tensor, fx, nn

from detent.errors import DeployError
from detent.frontends.torch.builder import Builder, operand_of
from detent.frontends.torch.older_nodes import FIRST, lowered
from detent.frontends.torch.trees import tensors_in
from detent.frontends.torch.values import FREE, Ref, Traced
from detent.ir import Operand, read_qdq

__all__ = ["inline"]

_PLAIN = (bool, int, float, str, slice, type(None), type(...), torch.dtype)
_COLORS = re.compile("\x1b\\[[0-9;]*m")


class _Called(nn.Module):
    """A module or function with its constant arguments filled in: only tensors go in, only tensors come out."""

    def __init__(self, target: Any, args: Any, kwargs: Any):
        super().__init__()
        self.target, self.given = target, (args, kwargs)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        waiting = iter(tensors)
        args, kwargs = fx.node.map_aggregate(self.given, lambda v: next(waiting) if isinstance(v, Ref) else v)
        return tuple(tensors_in(self.target(*args, **kwargs)))


def inline(b: Builder, target: Any, args: Any, kwargs: Any, traced: Traced, node: fx.Node) -> Any:
    """Export `target` as torch does and put its operations into the network, named after the fx node."""
    refs: list[Ref] = []
    fx.node.map_aggregate((args, kwargs), lambda v: refs.append(v) if isinstance(v, Ref) else None)
    # Of the doubled batch: torch takes a size of 1 for a constant.
    examples = tuple(
        torch.zeros([traced.doubled[s] if isinstance(s, str) else s for s in ref.shape], dtype=ref.dtype)
        for ref in refs
    )
    called = _Called(target, args, kwargs).eval()
    given_back = None if isinstance(target, nn.Module) else _given_back(called, examples)
    if given_back is not None:
        return refs[given_back]  # the identity in eval mode, as stochastic depth is
    key = None if isinstance(target, nn.Module) else _key(node, args, kwargs)
    if key is None or key not in b.exported:
        exported = _exported(b, called, examples, refs, traced)
        _refuse_control_flow(b, exported)
        b.exported[key] = [value.name for value in exported.graph.input], read_qdq(exported)
    inputs, network = b.exported[key]
    prefix = f"{node.name}/"
    known = {name: operand_of(ref) for name, ref in zip(inputs, refs, strict=True)}
    for name, array in network.constants.items():
        known[name] = Operand(b.constant(array, prefix + name))
    for op in network.ops:
        name = b.fresh(prefix + (op.name or op.type))
        reads = tuple(read and known[read.tensor] for read in op.inputs)
        known.update((given, Operand(b.fresh(prefix + given))) for given in op.outputs if given)
        outputs = tuple(given and known[given].tensor for given in op.outputs)
        b.ops.append(replace(op, name=name, inputs=reads, outputs=outputs))
    b.domains |= network.domains
    given = iter(
        Ref(known[output.read.tensor].tensor, shape, dtype, known[output.read.tensor].encoding)
        for output, (shape, dtype) in zip(network.outputs, _results(traced, node), strict=True)
    )
    put: Any = lambda v: next(given) if isinstance(v, Tensor) else v  # noqa: E731
    return fx.node.map_aggregate(traced.first[node], put)


def _key(node: fx.Node, args: Any, kwargs: Any) -> str | None:
    """Of calls that are written alike: the function, the sizes and types of tensors, and plain arguments. None if there
    are others."""
    plain = True

    def described(value: Any) -> Any:
        nonlocal plain
        plain = plain and isinstance(value, (Ref, *_PLAIN))
        return (value.shape, value.dtype) if isinstance(value, Ref) else value

    given = fx.node.map_aggregate((args, kwargs), described)
    return f"{node.op} {node.target!r} {given!r}" if plain else None


def _given_back(called: nn.Module, examples: Sequence[Tensor]) -> int | None:
    """The inputs that a function returns unchanged."""
    # Different numbers, so that a change in place shows.
    given = [torch.arange(each.numel()).reshape(each.shape).to(each.dtype) for each in examples]
    before = [each.clone() for each in given]
    try:
        with torch.no_grad():
            made = called(*given)
    except Exception:  # of numbers that it does not take: the exporter says what is wrong, if anything
        return None
    if len(made) != 1 or not all(torch.equal(*pair) for pair in zip(given, before, strict=True)):
        return None
    return next((index for index, each in enumerate(given) if made[0] is each), None)


def _refuse_control_flow(b: Builder, model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise DeployError(
                f"write {b.current!r} as ONNX",
                f"torch's exporter writes it with {node.op_type}, and a deployed network has no control flow",
                "write it with operations of torch.nn, or leave it out of the deployed part",
            )


def _exported(b: Builder, module: nn.Module, examples: Any, refs: list[Ref], traced: Traced) -> onnx.ModelProto:
    shapes: Any = None
    if traced.dynamic:
        free = {FREE: torch.export.Dim(FREE)}
        shapes = (
            tuple(
                {i: free.get(s, torch.export.Dim.DYNAMIC) for i, s in enumerate(ref.shape) if isinstance(s, str)}
                for ref in refs
            ),
        )
    stream: Any = io.BytesIO()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        # It prints failures at length; the reason is in the error.
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module, examples, dynamo=True, opset_version=max(b.opset, FIRST), dynamic_shapes=shapes, verbose=False
            )
            assert program is not None
            program.save(stream)
    except Exception as error:
        raise DeployError(
            f"write {b.current!r} as ONNX",
            f"torch's exporter does not take it: {_reason(error)}",
            "write it with operations of torch.nn, or leave it out of the deployed part",
        ) from error
    finally:
        logging.disable(before)
    model = onnx.inliner.inline_local_functions(onnx.load_model_from_string(stream.getvalue()))
    return model if b.opset >= FIRST else lowered(model, b.opset)


def _reason(error: BaseException) -> str:
    """The first line of what went wrong first, without the colors that the exporter writes for terminals."""
    while error.__cause__ is not None:
        error = error.__cause__
    return _COLORS.sub("", str(error).strip() or type(error).__name__).splitlines()[0]


def _results(traced: Traced, node: fx.Node) -> Iterator[tuple[tuple[int | str, ...], torch.dtype]]:
    firsts = list(tensors_in(traced.first[node]))
    seconds = [None] * len(firsts) if traced.second is None else list(tensors_in(traced.second[node]))
    for first, second in zip(firsts, seconds, strict=True):
        yield traced.sizes(first, second), first.dtype
