"""Insert a Pad, on the grid of the input, before an average pool that counts its padding.

OpenVINO stores signed codes that a convolution also reads as unsigned, so 0 is not real zero for them either. It
fuses a Pad back into the pool unless a quantizer is between them.
"""

from __future__ import annotations

from detent.rewrites.network_editor import Found, NetworkEditor
from detent.rewrites.rewrite import rewrite

__all__ = ["avgpool_count_include_pad", "padded_before"]


@rewrite(
    why=(
        "OpenVINO pads stored codes with 0, which is not real zero on a grid with a zero point: an average pool "
        "that counts its padding is up to 173 LSB off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def avgpool_count_include_pad(editor: NetworkEditor) -> None:
    """Matches a quantized AveragePool with `count_include_pad` and padding, unless real zero is stored as 0."""
    for op in editor.ops("AveragePool"):
        if op.attribute("auto_pad") != "NOTSET" or not op.attribute("count_include_pad"):
            continue
        found = editor.found(op) if any(op.attribute("pads")) else None
        if found is not None and not _zero_is_stored_as_zero(found):
            padded_before(editor, found)


def padded_before(editor: NetworkEditor, found: Found) -> None:
    """Write an AveragePool behind its padding: its input then is what counts."""
    (op,) = found.ops
    attributes = {name: value for name, value in op.attributes.items() if name not in ("count_include_pad", "pads")}
    pads, stem, data = op.attribute("pads"), op.outputs[0], found.data
    if any(pads):
        axes = len(pads) // 2
        around = [0, 0, *pads[:axes], 0, 0, *pads[axes:]]
        data = editor.on_grid(editor.moved("Pad", data, [around], stem), found.data.encoding)
    made = editor.write("AveragePool", [data], stem, name=op.name, **attributes)
    editor.replace_found(found, made)


def _zero_is_stored_as_zero(found: Found) -> bool:
    """Whether the code of zero is stored as 0, as it is behind a ReLU."""
    grid = found.data.encoding
    return grid is not None and grid.dtype == "uint8" and grid.symmetric
