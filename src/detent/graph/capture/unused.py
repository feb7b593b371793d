"""Removes operations whose result is not used: they would be quantized and trained for nothing, and are in no file.

Only operations that are known go, because they do nothing but compute. One that changes a tensor in place stays, and so
does a module with hooks, which may be what its result is for.
"""

from __future__ import annotations

from torch import fx, nn

from detent.graph.capture.out_of_place import is_in_place
from detent.graph.torch_ops import called_module, kind_of

__all__ = ["drop_unused"]


def drop_unused(graph: fx.Graph, root: nn.Module) -> None:
    """Remove operations that nothing reads, in place; their modules stay in `root`."""
    modules = dict(root.named_modules())
    for node in reversed(list(graph.nodes)):
        if node.users or kind_of(node, modules) is None or is_in_place(node, modules):
            continue
        called = called_module(node, modules)
        if called is None or not (called._forward_hooks or called._forward_pre_hooks):
            graph.erase_node(node)
