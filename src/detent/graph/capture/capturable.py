"""Refuses models and example inputs that cannot be captured, before anything is done."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from detent.errors import CaptureError
from detent.graph.prepared import RESERVED
from detent.quantizers import Quantizer

__all__ = ["other_real", "validate_inputs"]


def validate_inputs(
    model: nn.Module, example_inputs: Sequence[Any], leaf_modules: Sequence[str | type[nn.Module]]
) -> None:
    """Refuse what is no model with the arguments of its forward, a model on two devices, one that was prepared
    already, and leaves that it does not have."""
    _refuse_arguments(model, example_inputs)
    _refuse_compiled_code(model)
    _refuse_two_devices(model)
    _refuse_prepared(model)
    _refuse_unknown_leaves(model, leaf_modules)


def _refuse_arguments(model: object, example_inputs: object) -> None:
    if not isinstance(model, nn.Module):
        raise CaptureError(
            f"capture a {type(model).__name__}",
            "it is not an nn.Module",
            "give a model; read an ONNX file with detent.load",
        )
    if isinstance(example_inputs, (Tensor, Mapping, str)) or not isinstance(example_inputs, Sequence):
        raise CaptureError(
            f"example inputs that are a {type(example_inputs).__name__}",
            "they are the arguments of forward, in a tuple",
            "write (x,), and what goes by name into example_kwargs",
        )


def _refuse_compiled_code(model: nn.Module) -> None:
    for name, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise CaptureError(
                f"capture {name or 'a model'!r}, a module that torch.jit made",
                "it has compiled code, and no Python that can be captured",
                "give the module that it was scripted or traced from, or read what torch.onnx.export writes of it with"
                " detent.load",
            )
        if isinstance(part, fx.GraphModule) and any(_is_aten(node.target) for node in part.graph.nodes):
            raise CaptureError(
                f"capture {name or 'a model'!r}, a module that torch.export made",
                "its graph calls operators of ATen",
                "give the module that it was exported from, or read what torch.onnx.export writes of it with"
                " detent.load",
            )


def _is_aten(target: Any) -> bool:
    return isinstance(target, type(torch.ops.aten.relu.default))


def other_real(model: nn.Module) -> str | None:
    """A floating-point parameter that is not float32 (the type of scales), with its type; None if there is none."""
    for name, held in model.named_parameters():
        if held.is_floating_point() and held.dtype != torch.float32:
            return f"{name!r} is {str(held.dtype).removeprefix('torch.')}"
    return None


def _refuse_two_devices(model: nn.Module) -> None:
    devices = {str(tensor.device) for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        raise CaptureError("capture a model", f"its tensors are on {sorted(devices)}", "move it to one device first")


def _refuse_prepared(model: nn.Module) -> None:
    if any(isinstance(module, Quantizer) for module in model.modules()):
        raise CaptureError("capture a model", "it has quantizers already", "start from the float model")
    parts = [*model._modules, *model._parameters, *model._buffers]
    taken = next((name for name in RESERVED if name in parts), None)
    if taken is not None:
        raise CaptureError(
            f"capture a model with a part named {taken!r}",
            "prepared models use that name themselves",
            "rename the part",
        )


def _refuse_unknown_leaves(model: nn.Module, leaves: Sequence[str | type[nn.Module]]) -> None:
    known = dict(model.named_modules())
    for leaf in leaves:
        if isinstance(leaf, str) and leaf not in known:
            near = difflib.get_close_matches(leaf, known, n=1)
            raise CaptureError(
                f"leaf_modules {leaf!r}",
                "the model has no such module",
                f"did you mean {near[0]!r}?" if near else "give a name from model.named_modules()",
            )
