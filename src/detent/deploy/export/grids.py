"""Which grids the tensors of a prepared model are on: the Plan, with the numbers that came out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import fx

from detent.deploy.deployment import DeployedTensor
from detent.deploy.export.parameters import Stored
from detent.graph import Plan, QuantizedTensor
from detent.quantizers import Quantizer

__all__ = ["Grids"]

_HOLDER = "activation_quantizers"


class Grids:
    """The quantizers of one forward mode of a prepared model, by the node whose output they quantize.

    `kept` are tensors that lie on the grid of another without a quantizer of their own, because the operation only
    moves values.
    """

    def __init__(self, region: Any, runner: fx.GraphModule):
        self.plan: Plan = region.plan
        self.modules: Mapping[str, Any] = dict(region.named_modules(remove_duplicate=False))
        self.nodes = {node.name: node for node in runner.graph.nodes}
        self._entries = {entry.node: entry for entry in self.plan.quantized if entry.role == "activation"}
        self.kept = {
            name: entry
            for name, entry in self._entries.items()
            if entry.shares and f"{_HOLDER}.{name}" not in self.modules
        }

    def quantizer_of(self, entry: QuantizedTensor) -> Quantizer:
        """What puts an activation on its grid, also where it shares another's."""
        while f"{_HOLDER}.{entry.node}" not in self.modules:
            entry = next(other for other in self._entries.values() if other.tensor == entry.shares)
        found: Quantizer = self.modules[f"{_HOLDER}.{entry.node}"]
        return found

    def users(self, entry: QuantizedTensor) -> tuple[str, ...]:
        """The operations that read the quantized value."""
        if entry.users:
            return entry.users
        found: list[str] = []
        for user in self.nodes[entry.node].users:
            passed = self.is_quantizer(user)
            found.extend(later.name for later in user.users) if passed else found.append(user.name)
        return tuple(dict.fromkeys(name for name in found if name != "output"))

    def is_quantizer(self, node: fx.Node) -> bool:
        return node.op == "call_module" and isinstance(self.modules[str(node.target)], Quantizer)

    def deployed(
        self, stored: Mapping[str, Stored], tensor_name: Callable[[QuantizedTensor], str], ops: Mapping[str, str]
    ) -> Iterator[DeployedTensor]:
        """Every quantized tensor. `ops` names the ONNX node of an fx node, where it has one."""
        for entry in self.plan.quantized:
            if entry.node not in self.nodes:
                continue  # of another forward mode
            if entry.role == "activation":
                qparams, users = self.quantizer_of(entry).qparams(), self.users(entry)
            else:
                kept = stored[f"{self.nodes[entry.node].target}.{entry.role}"].qparams
                assert kept is not None
                qparams, users = kept, (entry.node,)
            yield DeployedTensor(
                tensor=tensor_name(entry),
                role=entry.role,
                kind=entry.kind,
                op=ops.get(entry.node, ""),
                scheme=entry.scheme,
                scale=qparams.scale.detach().cpu().float().numpy(),
                zero_point=qparams.zero_point.detach().cpu().long().numpy(),
                users=tuple(ops.get(user, user) for user in users),
                shares=entry.shares,
            )
