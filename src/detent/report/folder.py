"""What a deployed folder says of itself: its operations, its grids, its codes. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from detent.ir import Encoding, Network, Operand, Package
from detent.numerics import Grid, Scheme
from detent.report.facts import Facts, Node, RunsAs, TensorSummary
from detent.report.histograms import bits_of, histogram
from detent.report.reference import name_of
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.formats import size_to_load
from detent.twin import Arithmetic, OnnxSpec, Step, Twin

__all__ = ["read_folder", "twin_of"]

_NO_NAMES = ("", "model", "main_graph", "main", "torch_jit", "graph")
"""What exporters call a network that nobody named."""


def twin_of(package: Package) -> Twin:
    return Twin(package.graph, ARITHMETICS[package.manifest["arithmetic"]]())


def read_folder(package: Package) -> Facts:
    network, manifest = package.graph, package.manifest
    sizes = {name: (package.folder / name).stat().st_size for name in sorted(manifest["files"])}
    parameters = sum(array.size for name, array in network.constants.items() if _is_parameter(network, name))
    folder = package.folder.resolve()
    return Facts(
        name=folder.name if network.name in _NO_NAMES else network.name,
        folder=str(package.folder),
        manifest=manifest,
        files=sizes,
        size=size_to_load(package),
        float_size=4 * parameters,
        parameters=parameters,
        inputs=tuple(network.inputs),
        outputs=tuple((output.name, output.read.tensor) for output in network.outputs),
        nodes=tuple(_nodes(package)),
        tensors=_tensors(package),
        output_sqnr={name: float(value) for name, value in manifest.get("sqnr", {}).items()},
        sqnr_of="calibration data, when it was quantized",
    )


def _is_parameter(network: Network, name: str) -> bool:
    return name in network.coded or network.constants[name].dtype.kind == "f"


def _nodes(package: Package) -> Iterator[Node]:
    network = package.graph
    planned = {row["op"]: row for row in package.manifest.get("plan", {}).get("operations", ())}
    twin = twin_of(package)
    steps = {name_of(op): step for step in twin.steps for op in step.ops}
    grids = _declared(package)
    for op in network.ops:
        step = steps.get(name_of(op))
        on_grid = [read for read in op.reads if read.encoding is not None]
        weights = [read for read in on_grid if read.tensor in network.constants]
        data = [read.encoding for read in on_grid if read.tensor not in network.constants]
        if not data and step is not None and step.ran_as != "float":
            # It is fused, or reads what came through a pool: the file says no grid, the engine has one.
            data = [one.encoding for one in step.reads if one is not None and one.tensor not in network.constants]
        made = op.outputs[0] if step is None or not step.writes else step.writes[0].tensor
        yield Node(
            name=name_of(op),
            op=op.type,
            reads=tuple(dict.fromkeys(one.tensor for one in op.reads if one.tensor not in network.constants)),
            outputs=op.outputs,
            result=made,
            shape=network.shapes.get(op.outputs[0]),
            tensors=tuple(dict.fromkeys(one.tensor for one in on_grid)),
            weight_bits=_fewest(_narrowed(one, grids) for one in weights if network.constants[one.tensor].ndim > 1),
            activation_bits=_fewest(data),
            runs=_runs(step, planned.get(op.name, {}), twin.arithmetic),
            planned=str(planned.get(op.name, {}).get("why", "")),
        )


def _runs(step: Step | None, planned: Mapping[str, Any], arithmetic: Arithmetic) -> RunsAs | None:
    """By the twin of the engine; where it is of none, only what the Plan leaves float is known."""
    if isinstance(arithmetic, OnnxSpec):
        return "float" if planned.get("runs") == "float" else None
    return None if step is None else "float" if step.ran_as == "float" else "integer"


def _declared(package: Package) -> dict[str, Grid]:
    """The grids of the manifest: a file holds the codes of 4 bits in 8, and does not say that it does."""
    return {row["tensor"]: Scheme.from_dict(row["scheme"]).grid for row in package.manifest["tensors"]}


def _narrowed(read: Operand, grids: Mapping[str, Grid]) -> Encoding:
    """The encoding of an operand, with the codes of its grid alone."""
    encoding, grid = read.encoding, grids.get(read.tensor)
    assert encoding is not None
    if grid is None or not grid.is_uniform or not encoding.qmin <= grid.qmin < grid.qmax <= encoding.qmax:
        return encoding
    return replace(encoding, qmin=grid.qmin, qmax=grid.qmax)


def _fewest(encodings: Iterable[Encoding | None]) -> int | None:
    return min((bits_of(encoding) for encoding in encodings if encoding is not None), default=None)


def _tensors(package: Package) -> dict[str, TensorSummary]:
    """Every tensor on a grid but biases, with the histogram of its codes if it is a constant."""
    network, grids = package.graph, _declared(package)
    found: dict[str, TensorSummary] = {}
    for op in network.ops:
        for read in op.reads:
            constant = network.constants.get(read.tensor)
            if read.encoding is None or read.tensor in found or (constant is not None and constant.ndim < 2):
                continue
            encoding = _narrowed(read, grids) if constant is not None else read.encoding
            shown = None
            if constant is not None:
                codes = constant if read.tensor in network.coded else encoding.quantize(constant)
                shown = histogram(codes, encoding, of="stored codes")
            found[read.tensor] = TensorSummary(
                name=read.tensor,
                role="activation" if constant is None else "weight",
                bits=bits_of(encoding),
                dtype=encoding.dtype,
                qmin=encoding.qmin,
                qmax=encoding.qmax,
                scale=(float(encoding.scale.min()), float(encoding.scale.max())),
                zero_point=(int(encoding.zero_point.min()), int(encoding.zero_point.max())),
                channels=encoding.scale.size,
                shape=network.shapes.get(read.tensor) if constant is None else constant.shape,
                histogram=shown,
            )
    return found
