"""Splits a convolution whose padding is not zero into a pad and a convolution without padding.

So a target decides about the pad as about any other, and its file need not have a convolution that reflects.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import fx, nn

from detent.graph.capture.capture import Captured
from detent.graph.region import Region

__all__ = ["split_conv_padding"]

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def split_conv_padding(captured: Captured) -> None:
    """Split such convolutions in place."""
    parted: set[Convolution] = set()
    for path, region in captured.regions.items():
        if any(path != each and path.startswith(f"{each}." if each else "") for each in captured.graph_breaks):
            continue  # its Python code calls the module itself
        changed = False
        for graph in region.graphs.values():
            for node in list(graph.nodes):
                conv = _padded_otherwise(node, region)
                if conv is not None:
                    changed = True
                    parted.add(conv)
                    _pad_before(graph, node, conv)
        if changed:
            region.recompile()
    for plain in parted:
        plain.padding, plain.padding_mode = (0,) * len(plain.kernel_size), "zeros"


def _padded_otherwise(node: fx.Node, region: Region) -> Convolution | None:
    module = region.get_submodule(str(node.target)) if node.op == "call_module" else None
    if not isinstance(module, _CONVOLUTIONS) or module.padding_mode == "zeros":
        return None
    # A user's leaf may do something else with its padding.
    return module if type(module).forward in [kind.forward for kind in _CONVOLUTIONS] else None


def _pad_before(graph: fx.Graph, node: fx.Node, conv: Convolution) -> None:
    (data,) = node.all_input_nodes
    sizes = _sizes(conv)
    with graph.inserting_before(node):
        pad = graph.call_function(F.pad, (data, sizes), {"mode": conv.padding_mode})
    pad.meta = dict(data.meta)
    shape = list(data.meta["shape"])
    for position in range(len(sizes) // 2):
        shape[-1 - position] += sum(sizes[2 * position : 2 * position + 2])
    pad.meta["shape"] = tuple(shape)
    node.args, node.kwargs = (pad,), {}


def _sizes(conv: Convolution) -> list[int]:
    """The padding before and after, from the last axis to the first, as `F.pad` takes it."""
    ends: list[int] = []
    for axis in reversed(range(len(conv.kernel_size))):
        total = conv.dilation[axis] * (conv.kernel_size[axis] - 1)
        if conv.padding == "same":
            ends += [total // 2, total - total // 2]
        else:
            ends += [0, 0] if isinstance(conv.padding, str) else [int(conv.padding[axis])] * 2
    return ends
