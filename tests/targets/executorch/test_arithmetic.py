"""What the twin of ExecuTorch computes in integers: the kernels of its XNNPACK delegate, and nothing else.

That the real runtime places and computes the same is in tests/targets/executorch/test_engine.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detent.ir import Encoding, Network, Op, Operand, Output, Port, read_qdq
from detent.targets import BACKENDS
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.executorch.arithmetic import ExecuTorchXnnpack
from detent.targets.litert.arithmetic.xnnpack import Xnnpack
from detent.twin import OnnxSpec, Twin
from tests.twin.nets import SMALL, Style, small_net

SIGNED = Style(activation="int8", scales="tie", seed=1)


def grid(scale: float, zero_point: int = 0, dtype: str = "int8", **more: int) -> Encoding:
    return Encoding(np.float32(scale), np.int64(zero_point), dtype, **more)


def graph(
    kind: str,
    reads: dict[str, Encoding | None],
    output: Encoding | None,
    *,
    shape: tuple[int, ...] = (2, 4, 6, 6),
    then: str | None = None,
    attributes: dict[str, Any] | None = None,
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
    weight: Encoding | None = None,
) -> Network:
    """One operation that reads inputs, then constants, and perhaps another behind it."""
    held = constants or {}
    inputs = [Operand(name, encoding) for name, encoding in reads.items()] + [
        Operand(name, weight if name == "w" else None) for name in held
    ]
    ops = [Op(kind, "op", tuple(inputs), ("y",), attributes or {})]
    if then is not None:
        ops.append(Op(then, "then", (Operand("y"),), ("z",)))
    last = ops[-1].outputs[0]
    ports = {name: Port("float32", shape) for name in reads}
    coded = frozenset({"w"} if weight is not None else ())
    shapes = dict.fromkeys(reads, shape)
    return Network(ports, (Output("out", Operand(last, output)),), tuple(ops), held, coded, shapes, 21)


def places(network: Network) -> list[str]:
    return [step.ran_as for step in Twin(network, ExecuTorchXnnpack()).steps if step.ops]


def test_the_backend_uses_it() -> None:
    assert BACKENDS["executorch_xnnpack"].arithmetic == "executorch"
    assert ARITHMETICS["executorch"] is ExecuTorchXnnpack


@pytest.mark.parametrize("kind", ["conv_relu", "conv_relu6", "depthwise", "gemm", "matmul", "add_relu", "mul", "gap"])
def test_integer_kernels_are_those_of_xnnpack(kind: str) -> None:
    net = small_net(kind, SIGNED)
    found, expected = (Twin(net.model, kernels).run(net.feeds) for kernels in (ExecuTorchXnnpack(), Xnnpack()))
    assert all(np.array_equal(found[name], values) for name, values in expected.items())
    assert set(places(read_qdq(net.model))) == {"integer"}


@pytest.mark.parametrize("kind", ["HardSwish", "Sigmoid", "Gelu", "Softmax", "AveragePool"])
def test_functions_run_in_float(kind: str) -> None:
    """LiteRT has tables for them; ExecuTorch computes them on real numbers and puts the result on its grid."""
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]} if kind == "AveragePool" else {}
    network = graph(kind, {"x": grid(0.03, 4)}, grid(1 / 256, -128), attributes=attributes)
    assert places(network) == ["float"]
    x = np.random.default_rng(0).normal(size=(2, 4, 6, 6)).astype(np.float32)
    found, said = (Twin(network, kernels).run({"x": x})["out"] for kernels in (ExecuTorchXnnpack(), OnnxSpec()))
    # XNNPACK multiplies with the reciprocal of the scale, which here is a power of two.
    assert np.array_equal(found, said)


@pytest.mark.parametrize(
    ("scales", "output", "place"),
    [
        ((0.5, 0.25), 0.125, "integer"),
        ((255.0, 0.25), 1.0, "integer"),
        ((256.0, 0.25), 1.0, "float"),
        ((2.0**-10, 0.25), 1.0, "integer"),
        ((2.0**-11, 0.25), 1.0, "float"),
    ],
)
def test_sums_of_scales_that_xnnpack_refuses_run_in_float(
    scales: tuple[float, float], output: float, place: str
) -> None:
    network = graph("Add", {"a": grid(scales[0]), "b": grid(scales[1])}, grid(output))
    assert places(network) == [place]


def test_a_product_of_scales_that_xnnpack_refuses_runs_in_float() -> None:
    assert places(graph("Mul", {"a": grid(1.0), "b": grid(1.0)}, grid(2.0**-7))) == ["integer"]
    assert places(graph("Mul", {"a": grid(1.0), "b": grid(1.0)}, grid(2.0**-8))) == ["float"]


def test_only_sums_take_a_relu_in() -> None:
    grids = {"a": grid(0.1), "b": grid(0.2)}
    assert places(graph("Add", grids, grid(0.1, -128), then="Relu")) == ["integer"]
    assert places(graph("Mul", grids, grid(0.1, -128), then="Relu")) == ["float", "float"]
    assert places(graph("Sub", grids, grid(0.1, -128), then="Relu")) == ["float", "float"]


def test_a_concatenation_of_unequal_grids_is_of_real_numbers() -> None:
    """LiteRT converts codes to codes with multipliers of few bits; here each number is rounded once."""
    network = graph("Concat", {"a": grid(0.1), "b": grid(0.0588)}, grid(0.1), attributes={"axis": 1})
    assert places(network) == ["float"]
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=(2, 4, 6, 6)).astype(np.float32) * 4 for name in "ab"}
    found = Twin(network, ExecuTorchXnnpack()).run(feeds)["out"]
    assert np.array_equal(found, Twin(network, OnnxSpec()).run(feeds)["out"])
    assert not np.array_equal(found, Twin(network, Xnnpack()).run(feeds)["out"])


def test_codes_that_change_their_grid_are_real_numbers_in_between() -> None:
    same, other = (graph("Identity", {"x": grid(0.1)}, grid(scale)) for scale in (0.1, 0.07))
    assert places(same) != ["float"]
    assert places(other) == ["float"]


@pytest.mark.parametrize(("rank", "place"), [(4, "integer"), (5, "float"), (3, "float")])
def test_means_are_of_planes(rank: int, place: str) -> None:
    shape = (2, 4, 6, 6, 6)[:rank]
    assert places(graph("GlobalAveragePool", {"x": grid(0.1)}, grid(0.05), shape=shape)) == [place]


def test_a_mean_without_its_axes_runs_in_float() -> None:
    axes = {"axes": np.array([2, 3])}
    kept, gone = (
        graph("ReduceMean", {"x": grid(0.1)}, grid(0.05), constants=axes, attributes={"keepdims": keep})
        for keep in (1, 0)
    )
    assert places(kept) == ["integer"]
    assert places(gone) == ["float"]


@pytest.mark.parametrize(
    ("shape", "axis", "group", "zero_point", "places_of"),
    [
        ((4, 4, 2, 2), 1, 1, 0, ["integer"]),
        ((4, 2, 2, 2), None, 2, 0, ["integer"]),
        ((4, 2, 2, 2), 1, 2, 0, ["float", "float"]),
        ((4, 4, 2, 2), None, 1, 3, ["float", "float"]),
    ],
    ids=["channels", "groups", "channels-of-groups", "weights-with-zero-point"],
)
def test_transposed_convolutions(
    shape: tuple[int, ...], axis: int | None, group: int, zero_point: int, places_of: list[str]
) -> None:
    """With their ReLU; one scale for each channel of several groups XNNPACK does not have."""
    count = () if axis is None else (shape[axis],)
    weight = Encoding(np.full(count, 0.01, np.float32), np.full(count, zero_point, np.int64), "int8", axis)
    network = graph(
        "ConvTranspose",
        {"x": grid(0.1)},
        grid(0.05, -128),
        constants={"w": np.ones(shape, np.int8)},
        weight=weight,
        then="Relu",
        attributes={"strides": [2, 2], "group": group},
    )
    assert places(network) == places_of


def test_volumes_and_unsigned_weights_are_in_float() -> None:
    def conv(dtype: str, shape: tuple[int, ...], size: tuple[int, ...]) -> Network:
        weight, held = grid(0.01, 0, dtype), {"w": np.ones(shape, dtype)}
        return graph("Conv", {"x": grid(0.1)}, grid(0.05), constants=held, weight=weight, shape=size)

    assert places(conv("int8", (4, 4, 3, 3), (2, 4, 6, 6))) == ["integer"]
    assert places(conv("int8", (4, 4, 3), (2, 4, 6))) == ["integer"]
    assert places(conv("int8", (4, 4, 3, 3, 3), (2, 4, 6, 6, 6))) == ["float"]
    assert places(conv("uint8", (4, 4, 3, 3), (2, 4, 6, 6))) == ["float"]


def test_what_is_also_read_as_real_numbers_is_computed_as_such() -> None:
    network = graph("Add", {"a": grid(0.1), "b": grid(0.2)}, grid(0.1))
    both = replace(network, outputs=(*network.outputs, Output("real", Operand("y"))))
    assert places(both) == ["float"]


@pytest.mark.parametrize("kind", sorted(SMALL))
def test_every_small_network_runs(kind: str) -> None:
    net = small_net(kind, SIGNED)
    found, said = (Twin(net.model, kernels).run(net.feeds) for kernels in (ExecuTorchXnnpack(), OnnxSpec()))
    for output in read_qdq(net.model).outputs:
        ours, theirs, encoding = found[output.name], said[output.name], output.read.encoding
        # Rounding moves one step in a few places; sums of 21 bits and steps behind one another at most two.
        step = 2.001 * float(encoding.scale) if encoding is not None else 1e-3 * np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, atol=step)
