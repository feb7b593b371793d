"""ncnn, through its Python package. It has no batch axis: samples run one after the other."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import EngineError
from detent.files import temporary_folder
from detent.ir import Network, Op, Package
from detent.rewrites import float_model
from detent.targets.base import Engine, Placement
from detent.targets.base.engine import Arrays
from detent.targets.base.ports import given
from detent.targets.ncnn.file import NcnnModel, ncnn_model

__all__ = ["Ncnn"]

Array = npt.NDArray[Any]


class Ncnn(Engine):
    """`model.ncnn.param` and `model.ncnn.bin`, on the CPU, in float32 between the integer layers.

    With `packing` channels are interleaved, which is ncnn's own default and faster (ResNet-18 14 ms instead of 18,
    depthwise networks up to three times). Without it, on x86, the twin is equal bit for bit: the interleaved depthwise
    kernel divides by a reciprocal of 12 bits, and interleaved pools sum in another order.
    """

    name = "ncnn"
    extra = "ncnn"
    arithmetic = "ncnn"

    def __init__(self, model: NcnnModel, graph: Network, *, threads: int = 1, packing: bool = True):
        self.require()
        import ncnn  # type: ignore[import-untyped, unused-ignore]

        self._ncnn, self._model, self._graph = ncnn, model, graph
        self._named_rows = model.named_rows
        self._dtypes = {output.name: output.dtype for output in graph.outputs if "float" not in output.dtype}
        self._net = ncnn.Net()
        option = self._net.opt
        option.num_threads = threads
        option.use_packing_layout = packing
        for half in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage"):
            setattr(option, half, False)
        option.use_int8_inference = True
        if platform.machine().lower() in ("x86_64", "amd64") and any(layer.int8 for layer in model.layers):
            # Sums of int8 products need no Winograd transform: ResNet-18 takes 14 ms without it and 22 ms with it.
            option.use_winograd_convolution = False
        # From files, because only then ncnn says whether it could read them.
        with temporary_folder() as folder:
            param, numbers = Path(folder, "model.param"), Path(folder, "model.bin")
            param.write_bytes(model.param())
            numbers.write_bytes(model.bin())
            if self._net.load_param(str(param)) != 0 or self._net.load_model(str(numbers)) != 0:
                raise EngineError("load the model into ncnn", "ncnn refused it", "see what it printed, and its version")

    @classmethod
    def version(cls) -> str | None:
        try:
            return version("ncnn")
        except PackageNotFoundError:
            return None

    @classmethod
    def fastest(cls, package: Package, *, threads: int = 1) -> Ncnn:
        return cls.load(package, threads=threads, packing=True)

    @classmethod
    def load(cls, package: Package, *, threads: int = 1, as_float: bool = False, packing: bool | None = None) -> Ncnn:
        """Unless told otherwise the float network is packed, and the integer one is not, so that it can be proven."""
        cls.require()
        if as_float:
            model = ncnn_model(float_model(package.model))
        else:
            model = NcnnModel.read(package.path(".ncnn.param").read_bytes(), package.path(".ncnn.bin").read_bytes())
        return cls(model, package.graph, threads=threads, packing=as_float if packing is None else packing)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        found = self._extract(inputs, [output.name for output in self._graph.outputs], keep=False)
        return {name: values.astype(self._dtypes.get(name, values.dtype)) for name, values in found.items()}

    def tensors(self, inputs: Arrays) -> dict[str, Array]:
        """Every float tensor that has a blob, which excludes fused ones; codes if a layer returns int8. Not if an axis
        combines samples and another dimension: samples that ran separately cannot be put in order again."""
        made = {blob for layer in self._model.layers if layer.type != "MemoryData" for blob in layer.outputs}
        dtypes = {**self._graph.dtypes, **{name: port.dtype for name, port in self._graph.inputs.items()}}
        made -= {name for name, dtype in dtypes.items() if not dtype.startswith("float")}
        found = self._extract(inputs, [name for name in self._graph.shapes if name in made], keep=True)
        codes = {blob for layer in self._model.layers if layer.gives_codes for blob in layer.outputs}
        count = len(list(self._rows(inputs)))
        told = {name: values for name, values in found.items() if count == 1 or self._is_apart(name, values, count)}
        return {name: values.astype(np.int8) if name in codes else values for name, values in told.items()}

    def explain(self) -> list[Placement]:
        return [self._placement(op) for op in self._graph.ops]

    def _placement(self, op: Op) -> Placement:
        """The layers of an operation have its name, followed by a colon and a suffix if there are several."""
        name = op.name or f"{op.type}_{op.outputs[0]}"
        own = [layer for layer in self._model.layers if layer.name == name or layer.name.startswith(f"{name}:")]
        if any(layer.int8 for layer in own):
            return Placement(op.name, op.type, "integer")
        if not own:
            return Placement(op.name, op.type, "folded")
        return Placement(op.name, op.type, "float", "ncnn runs only convolutions and linear layers on integers")

    def _extract(self, inputs: Arrays, names: Iterable[str], *, keep: bool) -> dict[str, Array]:
        """The blobs of these names for each sample, concatenated along the first axis."""
        arrays, wanted = given(self._graph.inputs, inputs, engine=self.name), list(names)
        samples = [self._sample(dict(zip(arrays, rows, strict=True)), wanted, keep) for rows in self._rows(arrays)]
        return {name: self._joined(name, [sample[name] for sample in samples]) for name in wanted}

    def _joined(self, name: str, samples: list[Array]) -> Array:
        """Concatenated along the axis whose size is free; a tensor that does not depend on the sample is the same in
        all of them."""
        free = self._free_axis(name)
        return samples[0] if free is None else np.concatenate(samples, free)

    def _is_apart(self, name: str, values: Array, count: int) -> bool:
        """Whether samples are along a separate axis, or do not matter."""
        free = self._free_axis(name)
        return free is None or values.shape[free] == count

    def _free_axis(self, name: str) -> int | None:
        return next((axis for axis, size in enumerate(self._graph.shapes[name]) if isinstance(size, str)), None)

    def _rows(self, inputs: Arrays) -> Iterable[tuple[Array, ...]]:
        if all(isinstance(size, int) and size != 1 for port in self._graph.inputs.values() for size in port.shape[:1]):
            return [tuple(inputs.values())]  # a network for one size, which has no batch to ncnn
        counts = {len(array) for array in inputs.values()}
        if len(counts) != 1:
            raise EngineError(
                "run on ncnn", f"inputs of {sorted(counts)} samples", "give as many samples of each input"
            )
        return zip(*inputs.values(), strict=True)

    def _sample(self, inputs: Arrays, names: list[str], keep: bool) -> dict[str, Array]:
        extractor = self._net.create_extractor()
        extractor.set_light_mode(not keep)
        for name, values in inputs.items():
            dtype = np.int32 if name in self._named_rows else np.float32
            # More than 4 dimensions are a row to ncnn.
            array = np.ascontiguousarray(values if values.ndim <= 4 else values.ravel(), dtype)
            # Mat(array) only points into the array, and a layer that works in place would write there.
            extractor.input(name, self._ncnn.Mat(array).clone())
        found = {}
        for name in names:
            status, blob = extractor.extract(name)
            if status != 0:
                raise EngineError(
                    f"compute {name!r} with ncnn", f"it stopped with status {status}", "see what it printed"
                )
            found[name] = self._shaped(name, np.array(blob))
        return found

    def _shaped(self, name: str, values: Array) -> Array:
        """A copy of a blob, with the shape that the ONNX tensor has for one sample."""
        shape = self._graph.shapes[name]
        free = -1 if sum(isinstance(size, str) for size in shape) == 1 else 1
        return values.reshape([free if isinstance(size, str) else size for size in shape])
