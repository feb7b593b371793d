"""`If`, `Loop`, `Scan`: refuses control flow that depends on data, which a static graph cannot express."""

from __future__ import annotations

from onnx import GraphProto

from detent.frontends.onnx.call import Call, Converter

__all__ = ["CONVERTERS", "branch_of"]


def branch_of(call: Call) -> GraphProto:
    """The branch that an `If` with a constant condition takes."""
    condition = call.constant(0)
    if condition is None or condition.numel() != 1:
        call.refuse(
            "its condition is computed by the network",
            call.how_to_fix(values=True) or "export the model so that the branch is decided when exporting",
        )
    attribute = call.attribute("then_branch" if bool(condition) else "else_branch")
    if attribute is None or not attribute.HasField("g"):
        call.refuse("the branch it takes is missing", "export the model again")
    return attribute.g


def _loop(call: Call) -> None:
    call.refuse("a loop over subgraphs is not imported", "unroll it when exporting, or cut the model before it")


CONVERTERS: dict[str, Converter] = {"Loop": _loop, "Scan": _loop}
