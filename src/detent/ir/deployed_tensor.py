"""One quantized tensor of a deployed network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.numerics import Grid, Scheme
from detent.quantizers import Role

__all__ = ["DeployedTensor"]


@dataclass(frozen=True, eq=False, kw_only=True)
class DeployedTensor:
    """One quantized tensor, as the Plan names it, with the numbers that came out.

    `tensor` is its name in the ONNX graph too: for an activation the tensor that is quantized, for a weight or bias
    the parameter (`conv1.weight`). `op` is the ONNX node that gives the activation ("" for an input of the network)
    or that takes the parameter. `users` are the nodes that read the quantized value. `scale` and `zero_point` are
    0-d, or 1-d along the channel axis of the scheme's granularity. `offset` is what a scheme with an offset has.
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
    offset: npt.NDArray[np.float32] | None = None

    @property
    def minimum(self) -> npt.NDArray[np.float32]:
        """The real number of the lowest code (integer grids)."""
        return self._real(self._grid.qmin)

    @property
    def maximum(self) -> npt.NDArray[np.float32]:
        """The real number of the highest code (integer grids)."""
        return self._real(self._grid.qmax)

    @property
    def _grid(self) -> Grid:
        assert self.scheme.grid.is_uniform, self.scheme
        return self.scheme.grid

    def _real(self, code: int) -> npt.NDArray[np.float32]:
        return np.asarray((code - self.zero_point).astype(np.float32) * self.scale, np.float32)
