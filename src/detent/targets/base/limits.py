"""Checks whether a format can represent a tensor, and refuses if it cannot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from detent.errors import DeployError
from detent.ir import DeployedTensor
from detent.numerics import Grid, PerChannel, PerTensor
from detent.targets.base.deployment import Deployment

__all__ = ["by_name", "exponents", "float_readers", "integers", "no_groups", "on_one_scale", "refusal", "symmetric"]


def refusal(format_name: str, tensor: DeployedTensor, found: str, to_do: str) -> DeployError:
    return DeployError(f"write {tensor.role} {tensor.tensor!r} ({tensor.scheme}) as {format_name}", found, to_do)


def integers(
    tensor: DeployedTensor, format_name: str, *, bits: tuple[int, ...] = (), signed: bool | None = None
) -> Grid:
    """The integer grid of `tensor`; refused unless it has one of these widths and this signedness, if they are
    given."""
    grid = tensor.scheme.grid
    if not grid.is_uniform:
        raise refusal(format_name, tensor, "the format holds integers only", "quantize it to an integer grid")
    if bits and grid.bits not in bits:
        widths = " or ".join(map(str, bits))
        raise refusal(format_name, tensor, f"the format holds {widths} bits", f"quantize it to {widths} bits")
    if signed is not None and grid.signed != signed:
        kind = "signed" if signed else "unsigned"
        raise refusal(format_name, tensor, f"the format holds {kind} integers", f"quantize it to {kind} integers")
    return grid


def symmetric(tensor: DeployedTensor, format_name: str) -> None:
    if tensor.zero_point.any():
        raise refusal(format_name, tensor, "the format has no zero point", "use a symmetric scheme")


def on_one_scale(tensor: DeployedTensor, format_name: str) -> None:
    if not isinstance(tensor.scheme.granularity, PerTensor):
        raise refusal(format_name, tensor, "the format has one scale for a tensor", "use a per-tensor scheme")


def no_groups(tensor: DeployedTensor, format_name: str) -> None:
    if not isinstance(tensor.scheme.granularity, (PerTensor, PerChannel)):
        raise refusal(
            format_name, tensor, "the format has one scale for a tensor or a channel", "use per-tensor or per-channel"
        )


def exponents(tensor: DeployedTensor, format_name: str) -> npt.NDArray[np.int64]:
    """`e` if every scale is exactly `2**e`, in the shape of the scale."""
    mantissa, exponent = np.frexp(tensor.scale)
    if not np.all(mantissa == 0.5):
        raise refusal(format_name, tensor, "the format holds powers of two", "use scale='power_of_two'")
    return np.asarray(exponent, np.int64) - 1


def by_name(deployment: Deployment, format_name: str) -> dict[str, DeployedTensor]:
    """Quantized activations by name, for formats that have one grid per tensor for all its readers.

    A tensor on two grids is refused; see `float_readers` for one that is also read in float.
    """
    found: dict[str, DeployedTensor] = {}
    for tensor in deployment.activations:
        other = found.setdefault(tensor.tensor, tensor)
        if not _alike(tensor, other):
            raise refusal(
                format_name,
                tensor,
                f"it is also quantized as {other.scheme}, and the format has one grid for a tensor",
                "give all users of the tensor one scheme",
            )
    return found


def float_readers(deployment: Deployment, format_name: str) -> tuple[str, ...]:
    """A note for formats that have one grid for a tensor, if there is a quantized one that is also read in float."""
    names = dict.fromkeys(tensor.tensor for tensor in deployment.activations)
    also_float = [name for name in names if None in (read := deployment.graph.encodings(name)) and len(read) > 1]
    if not also_float:
        return ()
    return (
        f"{format_name} has one grid for a tensor: {', '.join(also_float)} will be quantized for all that read it, "
        "also where model.onnx has it in float",
    )


def _alike(one: DeployedTensor, other: DeployedTensor) -> bool:
    return (
        one.scheme.grid == other.scheme.grid
        and np.array_equal(one.scale, other.scale)
        and np.array_equal(one.zero_point, other.zero_point)
    )
