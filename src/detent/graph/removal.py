"""Takes the quantizers out of a prepared model again."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.utils import parametrize

from detent.graph.batch_norm import FoldedBatchNorm
from detent.graph.float_ranges import HOLDER
from detent.graph.prepared import PreparedModel
from detent.graph.region import ACTIVATION_QUANTIZERS, Region
from detent.graph.weights.plain_parameters import give_own_class
from detent.quantizers import Quantizer

__all__ = ["without_quantizers"]


def without_quantizers(prepared: PreparedModel) -> nn.Module:
    """A copy of a prepared model that computes in float with its current weights; batch norms stay folded."""
    model = copy.deepcopy(prepared)
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            give_own_class(module)
        for which in list(getattr(module, "parametrizations", {})):
            parametrize.remove_parametrizations(module, which, leave_parametrized=False)
        if isinstance(module, FoldedBatchNorm):
            module.weight_quantizer, module.bias_quantizer = nn.Identity(), nn.Identity()
        if isinstance(module, Region):
            _clear(module)
    if model.untraced is not None:
        return model.untraced
    region = Region(model, model.graphs)
    for name in PreparedModel.__annotations__:
        vars(region).pop(name, None)
    return region


def _clear(region: Region) -> None:
    modules = dict(region.named_modules(remove_duplicate=False))
    for graph in region.graphs.values():
        for node in list(graph.nodes):
            if node.op == "call_module" and isinstance(modules.get(str(node.target)), Quantizer):
                node.replace_all_uses_with(node.all_input_nodes[0])
                graph.erase_node(node)
    for holder in (ACTIVATION_QUANTIZERS, HOLDER):
        if hasattr(region, holder):
            delattr(region, holder)
    region.recompile()
