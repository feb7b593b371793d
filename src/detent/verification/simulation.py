"""What the torch model computes inside, under the names of the deployed network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx

from detent.deploy.eval_mode import eval_mode
from detent.graph import flat
from detent.numerics import Granularity, IntGrid, PerChannel
from detent.onnx_import import is_imported, source_of
from detent.quantizers import Quantizer

__all__ = ["Simulation"]

Array = npt.NDArray[Any]


class Simulation:
    """A prepared model in eval mode, with every tensor it computes."""

    def __init__(self, prepared: Any, mode: str | None = None):
        runners = prepared.runners
        self.prepared, self._runner = prepared, runners[mode or next(iter(runners))]
        self._modules = dict(prepared.named_modules(remove_duplicate=False))
        # A network from an ONNX file is deployed under the names of the file.
        self._names: Mapping[str, str] = source_of(prepared).tensors if is_imported(prepared) else {}

    def run(self, arguments: Any) -> tuple[list[Array], dict[str, Array]]:
        """The outputs in their order, and the tensors inside: codes where a quantizer stands, else real numbers."""
        recorder = _Recorder(self._runner, self._modules)
        with eval_mode(self.prepared), torch.no_grad():
            result = recorder.run(*self._bound(arguments))
        outputs = [value.detach().cpu().numpy() for value in flat(result) if isinstance(value, Tensor)]
        return outputs, {self._names.get(name, name): array for name, array in recorder.found.items()}

    def _bound(self, arguments: Any) -> list[Any]:
        places = [node for node in self._runner.graph.nodes if node.op == "placeholder"]
        if isinstance(arguments, dict):
            named = {str(key): value for key, value in arguments.items()}
            return [_tensor(named.get(str(p.target), p.args[0] if p.args else None)) for p in places]
        given = [_tensor(value) for value in arguments]
        return given + [place.args[0] if place.args else None for place in places[len(given) :]]


class _Recorder(fx.Interpreter):
    def __init__(self, runner: fx.GraphModule, modules: dict[str, Any]):
        super().__init__(runner)
        self._modules = modules
        self.found: dict[str, Array] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        module = self._modules.get(str(n.target)) if n.op == "call_module" else None
        if isinstance(module, Quantizer):
            # Who reads it in float, too, reads it before the quantizer.
            if isinstance(module.scheme.grid, IntGrid) and len(n.all_input_nodes[0].users) == 1:
                q = module.qparams()
                scale, zero = (_along(part, value, module.scheme.granularity) for part in (q.scale, q.zero_point))
                codes = torch.round(value.double() / scale.double()) + zero
                self.found[n.all_input_nodes[0].name] = codes.cpu().numpy().astype(np.int64)
        elif isinstance(value, Tensor) and n.op != "get_attr":
            # A copy: an operation in place may write into it later.
            self.found[n.name] = value.detach().cpu().numpy().copy()
        return value


def _along(numbers: Tensor, value: Tensor, granularity: Granularity) -> Tensor:
    """Scales or zero points, so that they broadcast against an activation."""
    if not isinstance(granularity, PerChannel):
        return numbers
    return numbers.reshape([-1 if axis == granularity.axis % value.ndim else 1 for axis in range(value.ndim)])


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
