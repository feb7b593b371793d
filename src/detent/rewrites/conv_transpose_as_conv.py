"""Rewrite a transposed convolution of stride s as a convolution with s*s times the channels and interleave the results.

    y[s*i + a - p] = sum over t of x[i - t] * w[s*t + a]        for each phase a = 0 ... s-1

So each phase is a convolution of x with every s-th element of the kernel, flipped. The phases are computed as
channels, and moved to their place by Reshape and Transpose, with the channels last: ONNX Runtime's integer
convolutions compute in that layout, so only blocks of memory move. ONNX Runtime has no integer kernel for
ConvTranspose: without this rewrite it computes in float, even where weights are integers, and it quantizes weights
that are *not* integers itself, with one scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Layout, Op, Operand, attribute_value
from detent.rewrites.network_editor import Constant, Found, NetworkEditor
from detent.rewrites.original import Original
from detent.rewrites.restoring import put_back, reader_of, restored_constant
from detent.rewrites.rewrite import rewrite

__all__ = ["NAME", "conv_transpose_as_conv", "undo"]

NAME = "conv_transpose_as_conv"


@rewrite(
    why=(
        "ONNX Runtime has no integer ConvTranspose, and quantizes its float weights by itself with one scale; "
        "OpenVINO's gives other numbers at some sizes, and leaves the bias out where the stride is longer than "
        "the kernel"
    ),
    needed_for=("onnxruntime<=1.31.1", "openvino<=2026.4.1"),
)
def conv_transpose_as_conv(editor: NetworkEditor) -> None:
    """Matches a quantized ConvTranspose on images of a known size."""
    for op in editor.ops("ConvTranspose"):
        found, weight = editor.found(op), editor.constant(op.inputs[1])
        bias = editor.constant(op.optional(2))
        if found is None or weight is None or weight.encoding is None or (bias is None and len(op.reads) > 2):
            continue
        shape = editor.shape(found.data.tensor) or ()
        image = tuple(size for size in shape[2:] if not isinstance(size, str))
        original = Original(NAME, op.attributes, weight.array.shape, image)
        geometry = _Geometry.of(original)
        if geometry is not None and weight.axis in (None, 1):
            _as_conv(editor, found, geometry, weight, bias, original)


@dataclass(frozen=True)
class _Geometry:
    """Sizes for each dimension of the image: `taps` is how many elements of the input a phase sees; `begin` and
    `result` say which part of all interleaved phases is the result."""

    groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    taps: tuple[int, ...]
    image: tuple[int, ...]
    begin: tuple[int, ...]
    result: tuple[int, ...]

    @classmethod
    def of(cls, original: Original) -> _Geometry | None:
        """None if padding does not give the output size, or the image size is unknown."""
        attribute = partial(attribute_value, "ConvTranspose", original.attributes)
        image, kernel = original.image, original.weight[2:]
        rank = len(kernel)
        if len(image) != rank or attribute("output_shape") is not None or attribute("auto_pad") != "NOTSET":
            return None
        strides = tuple(attribute("strides", rank))
        dilations = tuple(attribute("dilations", rank))
        extra = attribute("output_padding", rank)
        pads = attribute("pads", rank)
        reach = [d * (k - 1) + 1 + e for d, k, e in zip(dilations, kernel, extra, strict=True)]
        result = [
            (size - 1) * s + r - before - after
            for size, s, r, before, after in zip(image, strides, reach, pads[:rank], pads[rank:], strict=True)
        ]
        return cls(
            int(attribute("group")),
            strides,
            dilations,
            tuple(-(-r // s) for r, s in zip(reach, strides, strict=True)),
            image,
            tuple(pads[:rank]),
            tuple(result),
        )

    @property
    def rank(self) -> int:
        return len(self.strides)

    @property
    def phases(self) -> int:
        return prod(self.strides)

    @property
    def places(self) -> tuple[int, ...]:
        """The number of results of each phase."""
        return tuple(size + t - 1 for size, t in zip(self.image, self.taps, strict=True))

    def kernels(self, weights: npt.NDArray[Any], fill: Any) -> npt.NDArray[Any]:
        """From (in, out of a group, *kernel) to (group x phase x out of a group, in of a group, *taps)."""
        inputs, outputs = weights.shape[:2]
        spread = [t * s for t, s in zip(self.taps, self.strides, strict=True)]
        held = np.broadcast_to(fill, (inputs, outputs, *spread)).astype(weights.dtype)
        held[_dilated(weights.shape[2:], self.dilations)] = weights
        split = [size for pair in zip(self.taps, self.strides, strict=True) for size in pair]
        cut = held.reshape(self.groups, inputs // self.groups, outputs, *split)
        taps, phases = ([start + 2 * i for i in range(self.rank)] for start in (3, 4))
        turned = np.flip(cut, axis=tuple(taps)).transpose(0, *phases, 2, 1, *taps)
        return np.asarray(turned.reshape(self.groups * self.phases * outputs, inputs // self.groups, *self.taps))

    @property
    def is_cut(self) -> bool:
        """Whether the result is only a part of all phases."""
        whole = tuple(place * stride for place, stride in zip(self.places, self.strides, strict=True))
        return not self.fits and (any(self.begin) or self.result != whole)

    @property
    def fits(self) -> bool:
        """Whether there is one phase, and the convolution's own padding gives the result."""
        return self.phases == 1 and min(self._fitting) >= 0

    @property
    def _fitting(self) -> list[int]:
        before = [t - 1 - begin for t, begin in zip(self.taps, self.begin, strict=True)]
        after = [
            wanted - size - first + t - 1
            for wanted, size, first, t in zip(self.result, self.image, before, self.taps, strict=True)
        ]
        return [*before, *after]

    @property
    def pads(self) -> list[int]:
        return self._fitting if self.fits else [t - 1 for t in self.taps] * 2


def _as_conv(
    editor: NetworkEditor,
    found: Found,
    geometry: _Geometry,
    weight: Constant,
    bias: Constant | None,
    original: Original,
) -> None:
    (op,) = found.ops
    stem = op.outputs[0]
    inputs = [found.data, _kernels(editor, weight, geometry)]
    if bias is not None:
        inputs.append(_biases(editor, bias, geometry))
    attributes = {"kernel_shape": list(geometry.taps), "pads": geometry.pads, "group": geometry.groups}
    made = editor.write("Conv", inputs, stem, name=op.name, original=original, **attributes)
    made = editor.activated(made, found.functions)
    for move, *arguments in _moves(geometry, weight.array.shape[1]):
        made = editor.moved(move, editor.on_grid(made, found.behind), arguments, stem)
    editor.replace(*found.ops, *found.functions)


def undo(editor: NetworkEditor, op: Op, original: Original) -> None:
    data, weight, *biases = op.reads
    kernel, shared = partial(_transposed_kernel, original), partial(_one_phase, original, shared=True)
    weight = restored_constant(editor, weight, kernel, shared, axis=1)
    phase = partial(_one_phase, original)
    biases = [restored_constant(editor, bias, phase, phase) for bias in biases]
    functions: list[Op] = []
    last, moves = op, _moves_of(original)
    while moves and (reader := reader_of(editor, last)).type in ("Relu", "Clip"):
        functions.append(reader)
        last = reader
    for _ in range(moves):
        last = reader_of(editor, last)
    put_back(editor, op, original, [data, weight, *biases], op_type="ConvTranspose", functions=functions, last=last)


def _moves_of(original: Original) -> int:
    """How many operations stand behind the convolution."""
    geometry = _Geometry.of(original)
    assert geometry is not None
    return len(_moves(geometry, original.weight[1]))


def _transposed_kernel(original: Original, weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The weights of the transposed convolution."""
    geometry = _Geometry.of(original)
    assert geometry is not None
    return original.gathered(lambda numbers: geometry.kernels(numbers, 0), weights)


def _one_phase(original: Original, values: npt.NDArray[Any], *, shared: bool = False) -> npt.NDArray[Any]:
    """What the transposed convolution has for each output channel; if it is `shared`, of one group."""
    geometry = _Geometry.of(original)
    assert geometry is not None
    groups = values.reshape(geometry.groups, geometry.phases, -1)[:, 0]
    return np.asarray(groups[0] if shared else groups.reshape(-1))


def _kernels(editor: NetworkEditor, weight: Constant, geometry: _Geometry) -> Operand:
    encoding = weight.encoding
    assert encoding is not None
    fill = encoding.zero_point
    if weight.axis is not None:
        times, fill = geometry.groups * geometry.phases, fill.reshape(-1, *[1] * geometry.rank)
        scale, zero_point = np.tile(encoding.scale, times), np.tile(encoding.zero_point, times)
        encoding = Encoding(scale, zero_point, encoding.dtype, 0)
    return editor.rearranged(weight, Layout.PHASES, geometry.kernels(weight.array, fill), encoding)


def _dilated(kernel: tuple[int, ...], dilations: tuple[int, ...]) -> tuple[slice, ...]:
    """The positions of the kernel's elements, with zeros between them."""
    return (slice(None), slice(None), *(slice(0, d * (k - 1) + 1, d) for k, d in zip(kernel, dilations, strict=True)))


def _biases(editor: NetworkEditor, bias: Constant, geometry: _Geometry) -> Operand:
    """Each channel's for each of its phases."""

    def repeated(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
        grouped = part.reshape(geometry.groups, 1, -1)
        return np.broadcast_to(grouped, (geometry.groups, geometry.phases, grouped.shape[2])).reshape(-1)

    encoding = bias.encoding
    if encoding is not None and encoding.axis is not None:
        encoding = Encoding(repeated(encoding.scale), repeated(encoding.zero_point), encoding.dtype, 0)
    return editor.rearranged(bias, Layout.PHASES, repeated(bias.array), encoding)


def _moves(geometry: _Geometry, channels: int) -> list[tuple[Any, ...]]:
    """Rearranges channels (group, phase, channel) into images with interleaved phases."""
    if geometry.phases == 1:
        return _cut(geometry, first=2)
    rank, strides, places = geometry.rank, list(geometry.strides), list(geometry.places)
    whole = [place * stride for place, stride in zip(places, strides, strict=True)]
    if geometry.groups == 1:
        # The phases of the last dimension stay next to the channels: they need not be moved apart.
        split = [*places, *strides[:-1], strides[-1] * channels]
        order = [axis for i in range(1, rank) for axis in (i, rank + i)] + [rank, 2 * rank]
    else:
        split = [*places, geometry.groups, *strides, channels]
        order = [axis for i in range(1, 1 + rank) for axis in (i, rank + 1 + i)] + [rank + 1, 2 * rank + 2]
    interleave = [("Transpose", [0, *order])] if order != sorted(order) else []
    return [
        ("Transpose", [0, *range(2, 2 + rank), 1]),
        ("Reshape", [-1, *split]),
        *interleave,
        ("Reshape", [-1, *whole, geometry.groups * channels]),
        *_cut(geometry, first=1),  # while the channels are last: behind the Transpose, OpenVINO moves all of it twice
        ("Transpose", [0, 1 + rank, *range(1, 1 + rank)]),
    ]


def _cut(geometry: _Geometry, *, first: int) -> list[tuple[Any, ...]]:
    """Slices the result out of all phases, whose spatial axes start at `first`."""
    if not geometry.is_cut:
        return []
    ends = [begin + size for begin, size in zip(geometry.begin, geometry.result, strict=True)]
    return [("Slice", list(geometry.begin), ends, list(range(first, first + geometry.rank)))]
