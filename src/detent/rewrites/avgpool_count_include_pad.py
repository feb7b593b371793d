"""Insert a Pad, on the grid of the input, before an average pool that counts its padding.

OpenVINO stores signed codes that a convolution also reads as unsigned, so 0 is not real zero for them either. It
fuses a Pad back into the pool unless a quantizer is between them.
"""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from detent.rewrites.editing import Editing, Found
from detent.rewrites.original import attribute_of, attributes_of
from detent.rewrites.rewrite import rewrite

__all__ = ["avgpool_count_include_pad", "padded_before"]


@rewrite(
    why=(
        "OpenVINO pads stored codes with 0, which is not real zero on a grid with a zero point: an average pool "
        "that counts its padding is up to 173 LSB off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def avgpool_count_include_pad(editing: Editing) -> None:
    """Matches a quantized AveragePool with `count_include_pad` and padding, unless real zero is stored as 0."""
    for node in editing.nodes:
        if node.op_type != "AveragePool" or attribute_of(node, "auto_pad") != "NOTSET":
            continue
        if not attribute_of(node, "count_include_pad") or not any(attribute_of(node, "pads")):
            continue
        found = editing.found(node)
        if found is not None and not _zero_is_stored_as_zero(editing, found):
            padded_before(editing, found)


def padded_before(editing: Editing, found: Found) -> None:
    """Write an AveragePool behind its padding: what it takes in then is what counts."""
    node = found.nodes[0]
    attributes = attributes_of(node)
    del attributes["count_include_pad"]
    pads = attributes.pop("pads", [])
    stem, axes, data = node.output[0], len(pads) // 2, found.data
    if any(pads):
        around = [0, 0, *pads[:axes], 0, 0, *pads[axes:]]
        data = editing.on_grid(editing.moved("Pad", data, [around], stem), found.before)
    made = editing.write("AveragePool", [data], stem, name=node.name, **attributes)
    editing.activated(made, found.nodes[1:])
    editing.replace(found)


def _zero_is_stored_as_zero(editing: Editing, found: Found) -> bool:
    """As behind a ReLU."""
    zero_point = numpy_helper.to_array(editing.initializers[found.before[1]])
    return zero_point.dtype == np.uint8 and not zero_point.any()
