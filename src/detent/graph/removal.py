"""Takes the quantizers out of a prepared model again."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from detent.graph.batch_norm import FoldedBatchNorm
from detent.graph.float_ranges import HOLDER
from detent.graph.plain_parameters import give_own_class
from detent.graph.region import Region
from detent.quantizers import Quantizer

__all__ = ["without_quantizers"]


def without_quantizers(prepared: Any) -> nn.Module:
    """A copy of a prepared model that computes in float, with the weights it has now; batch norms stay folded."""
    model: Any = copy.deepcopy(prepared)
    for name in ("plan", "backend", "recipe", "float_names", "turned_names", "merged_norms", "measured"):
        vars(model).pop(name, None)
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            give_own_class(module)
        for which in list(getattr(module, "parametrizations", {})):
            parametrize.remove_parametrizations(module, which, leave_parametrized=False)
        if isinstance(module, FoldedBatchNorm):
            module.weight_quantizer, module.bias_quantizer = nn.Identity(), nn.Identity()
        if isinstance(module, Region):
            _clear(module)
    return model  # type: ignore[no-any-return]


def _clear(region: Region) -> None:
    modules = dict(region.named_modules(remove_duplicate=False))
    for graph in region.graphs.values():
        for node in list(graph.nodes):
            if node.op == "call_module" and isinstance(modules.get(str(node.target)), Quantizer):
                node.replace_all_uses_with(node.all_input_nodes[0])
                graph.erase_node(node)
    if hasattr(region, "activation_quantizers"):
        del region.activation_quantizers
    if hasattr(region, HOLDER):
        delattr(region, HOLDER)
    region.recompile()
