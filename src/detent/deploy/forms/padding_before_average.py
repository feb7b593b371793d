"""An average pool whose padding counts: with the padding as an operation of its own, on the grid of what it pads.

OpenVINO's kernel pads what it stores with 0, which is not real zero for unsigned codes with another zero point, nor for
signed ones where a convolution reads them too, for it stores those as unsigned: up to 173 steps off. It takes a Pad
back into the pool unless a grid is between them.
"""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from detent.deploy.forms.editing import Editing, Found
from detent.deploy.forms.original import attributes_of

__all__ = ["padded_before", "padding_before_average"]


def padding_before_average(editing: Editing) -> None:
    """Every quantized AveragePool with padding that counts; not one with `auto_pad`."""
    for node in editing.nodes:
        attributes = attributes_of(node)
        counts = attributes.get("count_include_pad") and any(attributes.get("pads", []))
        if node.op_type != "AveragePool" or not counts or attributes.get("auto_pad", "NOTSET") != "NOTSET":
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
