"""Write the overhang of an average pool in `ceil_mode` as padding that does not count.

With padding instead of `ceil_mode`, Qualcomm's HTP is within 1 LSB.
"""

from __future__ import annotations

from detent.errors import DeployError
from detent.ir import Op
from detent.rewrites import NetworkEditor, rewrite
from detent.rewrites.window_axes import window_axes

__all__ = ["avgpool_ceil_mode_explicit_pad_htp"]


@rewrite(
    why="The HTP gives no averages for windows of `ceil_mode` that reach beyond the image: up to 147 LSB off",
    needed_for=("onnxruntime-qnn<=2.7.0",),
)
def avgpool_ceil_mode_explicit_pad_htp(editor: NetworkEditor) -> None:
    """Matches every AveragePool with `ceil_mode`."""
    for op in editor.ops("AveragePool"):
        if op.attribute("ceil_mode"):
            _write_down(editor, op)


def _write_down(editor: NetworkEditor, op: Op) -> None:
    axes = window_axes(editor, op)
    if not axes:
        raise _refusal(op, "the sizes of what it reads are not known", "deploy with inputs of a fixed size")
    begins, ends = [axis.begin for axis in axes], [axis.end for axis in axes]
    needed = [max(axis.end, axis.needed_end(ceil_mode=True)) for axis in axes]
    changed: dict[str, int | list[int]] = {"ceil_mode": 0, "pads": [*begins, *needed]}
    if needed != ends:
        if any(begins) or any(ends):
            raise _refusal(
                op,
                "its windows reach beyond the padding, and the HTP computes none of the ways to write that correctly",
                "use ceil_mode=False",
            )
        changed["count_include_pad"] = 0
    editor.change(op, **changed)


def _refusal(op: Op, found: str, to_do: str) -> DeployError:
    return DeployError(f"write the average pool {op.name!r} without ceil_mode", found, to_do)
