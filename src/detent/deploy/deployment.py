"""What a format writes: the deployed network, and every quantized tensor of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx

from detent.backends import Backend
from detent.deploy.qdq_graph import QdqGraph
from detent.deploy.qdq_reading import read_qdq
from detent.numerics import Grid, Scheme
from detent.quantizers import Role

__all__ = ["DeployedTensor", "Deployment"]


@dataclass(frozen=True, eq=False, kw_only=True)
class DeployedTensor:
    """One quantized tensor, as the Plan names it, with the numbers that came out.

    `tensor` is its name in the ONNX graph too: for an activation the tensor that is quantized, for a weight or bias
    the parameter (`conv1.weight`). `op` is the ONNX node that gives the activation ("" for an input of the network)
    or that takes the parameter. `users` are the nodes that read the quantized value. `scale` and `zero_point` are
    0-d, or 1-d along the channel axis of the scheme's granularity.
    """

    tensor: str
    role: Role
    kind: str
    op: str
    scheme: Scheme
    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    users: tuple[str, ...] = ()
    shares: str | None = None

    @property
    def minimum(self) -> npt.NDArray[np.float32]:
        """The real number of the least code (integer grids)."""
        return self._real(self._grid.qmin)

    @property
    def maximum(self) -> npt.NDArray[np.float32]:
        """The real number of the greatest code (integer grids)."""
        return self._real(self._grid.qmax)

    @property
    def _grid(self) -> Grid:
        assert self.scheme.grid.is_uniform, self.scheme
        return self.scheme.grid

    def _real(self, code: int) -> npt.NDArray[np.float32]:
        return np.asarray((code - self.zero_point).astype(np.float32) * self.scale, np.float32)


@dataclass(frozen=True, eq=False, kw_only=True)
class Deployment:
    """The network as QDQ ONNX, for a backend. `tensors` is in the order of the Plan; `ranges` are of float tensors, as
    they would be on a grid, which only retargeting looks at; `names` are of nodes of the torch model whose result is
    called otherwise here."""

    name: str
    backend: Backend
    model: onnx.ModelProto
    tensors: tuple[DeployedTensor, ...]
    ranges: tuple[DeployedTensor, ...] = ()
    notes: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def graph(self) -> QdqGraph:
        """The same network with Q and DQ dissolved."""
        return read_qdq(self.model)

    @property
    def activations(self) -> tuple[DeployedTensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.role == "activation")

    @property
    def parameters(self) -> tuple[DeployedTensor, ...]:
        """Weights and biases."""
        return tuple(tensor for tensor in self.tensors if tensor.role != "activation")
