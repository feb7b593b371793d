"""Intermediate tensors of the torch model, under the names of the deployed network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx, nn

from detent.frontends.onnx import OnnxParameter, is_imported, source_of
from detent.frontends.torch.trees import bound
from detent.graph import DerivedBias, FoldedBatchNorm, GraphInterpreter, PreparedModel, call_of, eval_mode, flat
from detent.numerics import Granularity, PerChannel
from detent.quantizers import PASS_THROUGH, Mode, Quantizer, in_modes

__all__ = ["Rounded", "Simulated", "Simulation"]

Array = npt.NDArray[Any]

_Any = TypeVar("_Any")


@dataclass(frozen=True, eq=False)
class Rounded:
    """The input and output of one quantizer: real numbers, and the codes for `(codes - zero_point) * scale`."""

    real: Array
    codes: Array
    scale: Array
    zero_point: Array

    @property
    def values(self) -> Array:
        """The values that following operations read."""
        return np.asarray((self.codes - self.zero_point).astype(np.float32) * self.scale, np.float32)


@dataclass(frozen=True, eq=False)
class Simulated:
    """One batch, by ONNX name.

    - `outputs`: in their order.
    - `reals`: every tensor as its operation gave it.
    - `rounded`: what the quantizers behind a tensor made of it.
    - `read`: what operations read: codes where a quantizer stands between a tensor and everybody who reads it (real
      numbers if its grid has no integers), else the real numbers.
    - `coarse`: what some operations read in place of it, on grids without integers, while others read it otherwise.
    """

    outputs: list[Array]
    reals: dict[str, Array] = field(default_factory=dict)
    rounded: dict[str, list[Rounded]] = field(default_factory=dict)
    read: dict[str, Array] = field(default_factory=dict)
    coarse: dict[str, list[Array]] = field(default_factory=dict)


class Simulation:
    """A prepared model in eval mode, with every tensor it computes. It takes `positions` arguments. `names` are
    of nodes whose results are called otherwise in the file (a part of a tuple, what an operation hands on as it is)."""

    def __init__(self, prepared: PreparedModel, mode: str | None = None, names: Mapping[str, str] | None = None):
        runners = prepared.runners
        self.prepared, self._runner = prepared, runners[mode or next(iter(runners))]
        self.positions: int = prepared.input_count
        self._modules = dict(prepared.named_modules(remove_duplicate=False))
        # A network from an ONNX file is deployed under the names of the file.
        source = source_of(prepared) if is_imported(prepared) else None
        self._names: Mapping[str, str] = (names or {}) if source is None else source.tensors
        self._held: Mapping[str, OnnxParameter] = {} if source is None else source.parameters

    def run(self, arguments: Any) -> Simulated:
        recorder = _Recorder(self._runner, self._modules)
        with eval_mode(self.prepared), torch.no_grad():
            result = recorder.run(*self._bound(arguments))
        outputs = [value.detach().cpu().numpy() for value in flat(result) if isinstance(value, Tensor)]
        reals, rounded, read, coarse = recorder.found
        return Simulated(
            outputs, self._renamed(reals), self._all_of(rounded), self._renamed(read), self._all_of(coarse)
        )

    def run_float(self, arguments: Any) -> list[Array]:
        """The outputs in order, without quantization."""
        passing: dict[Quantizer | DerivedBias, Mode] = {
            module: PASS_THROUGH for module in self.prepared.modules() if isinstance(module, (Quantizer, DerivedBias))
        }
        with eval_mode(self.prepared), in_modes(passing), torch.no_grad():
            result = GraphInterpreter(self._runner).run(*self._bound(arguments))
        return [value.detach().cpu().numpy() for value in flat(result) if isinstance(value, Tensor)]

    def parameters(self) -> dict[str, Array]:
        """The real numbers that operations compute with in place of weights and biases, quantized ones on their grid,
        by the name of the parameter. Where several operations hold one, as biases on grids of their own, those of the
        first, which has the name in the file too."""
        used = dict.fromkeys(str(node.target) for node in self._runner.graph.nodes if node.op == "call_module")
        found: dict[str, Array] = {}
        with eval_mode(self.prepared), torch.no_grad():
            for path in used:
                for which, value in _parameters(self._modules[path]):
                    array, held = value.detach().cpu().numpy().copy(), self._held.get(f"{path}.{which}")
                    if held is None:
                        found[f"{path}.{which}"] = array
                    elif held.row is None and held.span is None:  # not a part of an initializer
                        found.setdefault(held.initializer, array.T if held.transposed else array)
        return found

    def _renamed(self, found: Mapping[str, Array]) -> dict[str, Array]:
        """If several nodes have one tensor in the file, the first one counts."""
        named: dict[str, Array] = {}
        for name, value in found.items():
            named.setdefault(self._names.get(name, name), value)
        return named

    def _all_of(self, found: Mapping[str, list[_Any]]) -> dict[str, list[_Any]]:
        named: dict[str, list[_Any]] = {}
        for name, value in found.items():
            named.setdefault(self._names.get(name, name), []).extend(value)
        return named

    def _bound(self, arguments: Any) -> list[Any]:
        call = call_of(self.prepared, arguments)
        return [_tensor(value) for value in bound(self._runner.graph, *call)]


def _parameters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    if isinstance(module, Quantizer):
        return
    if isinstance(module, FoldedBatchNorm):
        for which in ("weight", "bias"):
            value, quantizer = getattr(module, which, None), getattr(module, f"{which}_quantizer", None)
            if isinstance(value, Tensor):
                yield which, value if quantizer is None else quantizer(value)
        return
    parametrized: Any = getattr(module, "parametrizations", {})
    for which in (*module._parameters, *parametrized):
        value = getattr(module, which)
        if isinstance(value, Tensor):
            yield which, value


class _Recorder(GraphInterpreter):
    def __init__(self, runner: fx.GraphModule, modules: dict[str, Any]):
        super().__init__(runner)
        self._modules = modules
        self._reals: dict[str, Array] = {}
        self._rounded: dict[str, list[Rounded]] = {}
        self._read: dict[str, Array] = {}
        self._coarse: dict[str, list[Array]] = {}

    @property
    def found(self) -> tuple[dict[str, Any], ...]:
        """The tensors of a run, as `Simulated` holds them."""
        return self._reals, self._rounded, {**self._reals, **self._read}, self._coarse

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        module = self._modules.get(str(n.target)) if n.op == "call_module" else None
        if isinstance(module, Quantizer):
            self._quantized(n.all_input_nodes[0], module, value)
        elif isinstance(value, Tensor) and n.op != "get_attr":
            # A copy: an operation in place may write into it later.
            self._reals[n.name] = value.detach().cpu().numpy().copy()
        return value

    def _quantized(self, source: fx.Node, quantizer: Quantizer, value: Tensor) -> None:
        if source.name not in self._reals:
            return
        if not quantizer.scheme.grid.is_uniform:
            array = value.detach().cpu().numpy().copy()
            if len(source.users) == 1:
                self._read[source.name] = array
            else:
                self._coarse.setdefault(source.name, []).append(array)
            return
        q = quantizer.qparams()
        scale, zero = (_along(part, value, quantizer.scheme.granularity) for part in (q.scale, q.zero_point))
        codes = (torch.round(value.double() / scale.double()) + zero).cpu().numpy().astype(np.int32)
        found = Rounded(self._reals[source.name], codes, scale.cpu().numpy(), zero.cpu().numpy())
        self._rounded.setdefault(source.name, []).append(found)
        # Who reads it in float, too, reads it before the quantizer.
        if len(source.users) == 1:
            self._read[source.name] = codes


def _along(numbers: Tensor, value: Tensor, granularity: Granularity) -> Tensor:
    """Scales or zero points, so that they broadcast against an activation."""
    if not isinstance(granularity, PerChannel):
        return numbers
    return numbers.reshape([-1 if axis == granularity.axis % value.ndim else 1 for axis in range(value.ndim)])


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
