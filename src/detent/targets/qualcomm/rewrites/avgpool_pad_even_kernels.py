"""Add padding that no window reaches to an average pool with an even kernel as large as its stride.

Qualcomm's HTP does not take its shortcut over averages of 2x2 then. What the emulator computes wrongly whatever is
written is refused (up to 255 LSB off, some at certain sizes only): kernels as large as their stride behind padding, the
pool's own or a Pad, but for 2x2 that does not count it; and strides of 3 or more in padding.
"""

from __future__ import annotations

from detent.errors import DeployError
from detent.ir import Op
from detent.rewrites import NetworkEditor, rewrite
from detent.rewrites.network_editor import Found

__all__ = ["avgpool_pad_even_kernels"]


@rewrite(
    why=(
        "The HTP computes even kernels of 4x4 and more side by side as averages of averages of 2x2, clipped to "
        "the grid of the output: up to 40 LSB off"
    ),
    needed_for=("onnxruntime-qnn<=2.7.0",),
)
def avgpool_pad_even_kernels(editor: NetworkEditor) -> None:
    """Matches every quantized AveragePool; those in `ceil_mode` are rewritten before."""
    for op in editor.ops("AveragePool"):
        found = editor.found(op)
        if found is None or op.attribute("ceil_mode") or op.attribute("auto_pad") != "NOTSET":
            continue
        kernel, strides = op.attribute("kernel_shape"), op.attribute("strides")
        if _is_wrong(op) or (kernel == strides and _is_padded(editor, found)):
            raise _refusal(
                op,
                f"the HTP averages windows of {kernel} with strides {strides} wrongly where they reach into padding",
                "use no padding, or strides of 1 or 2 that differ from the kernel size",
            )
        side_by_side = kernel == strides and min(kernel) >= 4 and not any(size % 2 for size in kernel)
        if side_by_side and not any(op.attribute("pads")):
            _pad_behind(editor, found)


def _is_wrong(op: Op) -> bool:
    """Whether it is affected: by padding before the first window. Padding after the last one is harmless."""
    kernel, strides = op.attribute("kernel_shape"), op.attribute("strides")
    if not any(op.attribute("pads")[: len(kernel)]):
        return False
    counts = bool(op.attribute("count_include_pad"))
    return max(strides) > 2 or (kernel == strides and (counts or kernel != [2, 2]))


def _is_padded(editor: NetworkEditor, found: Found) -> bool:
    """Whether what it reads is a Pad with one number, on a grid."""
    op = editor.producer(found.data)
    return op is not None and op.type == "Pad" and op.attribute("mode") == "constant"


def _pad_behind(editor: NetworkEditor, found: Found) -> None:
    """1 on each axis, unless that would be another window."""
    (op,) = found.ops
    kernel, sizes = op.attribute("kernel_shape"), (editor.shape(found.data.tensor) or ())[2:]
    behind = [
        int(isinstance(size, int) and (size + 1) % step > 0) for size, step in zip(sizes, kernel, strict=bool(sizes))
    ]
    if not any(behind):
        raise _refusal(
            op,
            "the HTP computes it as rounded averages of 2x2 averages, and the padding that prevents this does not fit "
            "behind the last window, or the size of the input is not known",
            "use fixed input sizes other than one less than a multiple of the kernel size, or two pools",
        )
    made = editor.copied(op, op.inputs, pads=[*[0] * len(kernel), *behind], count_include_pad=0)
    editor.replace_found(found, made)


def _refusal(op: Op, found: str, to_do: str) -> DeployError:
    return DeployError(f"write the average pool {op.name!r}", found, to_do)
