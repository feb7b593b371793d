"""Normalizations of codes, to whose variance OpenVINO adds what belongs to that of real numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from detent.ir import Network, read_qdq, write_qdq
from detent.targets.openvino.spec import OPENVINO
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, run, types
from tests.twin.builder import Builder, Net, Style

REWRITE = ("barrier_before_normalization",)


def network(kind: str = "LayerNormalization", *, zero_point: int = 0, quantized: bool = True) -> Network:
    w = Writing()
    size = 6 if kind == "LayerNormalization" else 4
    gain, offset = w.constant("gain", np.full(size, 1.5, np.float32)), w.constant("offset", np.ones(size, np.float32))
    data = w.node("MaxPool", [w.on_grid(*X[:2], zero_point)], "pooled", kernel_shape=[1]) if quantized else "x"
    w.node(kind, [data, gain, offset], "y", epsilon=0.25)
    return w.network(("n", 4, 6), w.on_grid("y", 2.0**-5, 128))


def computed(kind: str, *, biases: tuple[float, ...] | None = None) -> Network:
    """A layer norm of what an operation makes of codes that have a zero point."""
    w = Writing()
    data, held = w.on_grid(*X), [w.constant(name, np.ones(6, np.float32)) for name in ("gain", "offset")]
    if kind == "Conv":
        weight = w.coded("w", np.ones((4, 4, 1), np.int8), np.full(4, 2.0**-3), 0)
        added = [] if biases is None else [w.constant("b", np.array(biases, np.float32))]
        made = w.node(kind, [data, weight, *added], "made")
    elif kind == "Neg":
        made = w.node(kind, [data], "made")
    else:
        made = w.node(kind, [data, w.constant("factor", np.float32(0.5))], "made")
    w.node("LayerNormalization", [w.node("Relu", [made], "moved"), *held], "y", epsilon=0.25)
    return w.network(("n", 4, 6), w.on_grid("y", 2.0**-5, 128))


@pytest.mark.parametrize("kind", ["Add", "Mul", "Neg", "Conv"])
def test_a_scale_is_held_behind_what_is_computed_from_codes(kind: str) -> None:
    before = computed(kind)
    after = legalize(before, REWRITE)
    assert types(after) == [kind, "Relu", "Max", "LayerNormalization"]
    x = np.random.default_rng(1).normal(2, 2, (2, 4, 6)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize("kind", ["LayerNormalization", "InstanceNormalization"])
def test_onnx_means_the_same_by_it(kind: str) -> None:
    before = network(kind)
    after = legalize(before, REWRITE)
    assert types(after) == ["MaxPool", "Max", kind]
    x = np.random.default_rng(1).normal(2, 2, (2, 4, 6)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize(
    "model",
    [
        network(zero_point=7),
        network(quantized=False),
        computed("Sub"),
        computed("Conv", biases=(1, 2, 3, 4)),
    ],
    ids=["a zero point", "real numbers", "a difference", "biases, which hold the scale"],
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


@pytest.mark.parametrize("kind", ["LayerNormalization", "GroupNormalization"])
def test_the_engine_gives_what_it_means(kind: str, tmp_path: Path) -> None:
    """Without it, 182 and 181 of the 256 codes are up to 45 and 32 off.

    Rows are as wide as an AVX-512 register. OpenVINO picks its kernel of normalizations by the CPU alone, and where
    ONEDNN_MAX_CPU_ISA asks for AVX2 on a CPU with AVX-512, that kernel ends the process at a narrower rest. On a CPU
    that has only AVX2 (qemu's Haswell) rows of 8 are equal too.
    """
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    b = Builder(Style(activation="int8", symmetric=True, scales="pot"))
    x = b.input("x", 2, 8, 16, spread=2.0**-14)
    size = 8 if kind == "GroupNormalization" else 16
    held = {"gain": np.full(size, 1.5, np.float32), "offset": np.ones(size, np.float32)}
    groups = {"num_groups": 2} if kind == "GroupNormalization" else {}
    b.output(b.quantized(b.float_op(kind, x, *held, constants=held, **groups)))
    assert not _distances(b.net(), tmp_path).any()


@pytest.mark.parametrize("kind", ["Add", "Mul"])
def test_the_engine_normalizes_real_numbers_behind_a_sum_or_product(kind: str, tmp_path: Path) -> None:
    """Without it, 235 of the 256 codes are up to 16 off behind a sum, and 174 up to 33 behind a product."""
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    b = Builder(Style(activation="int8", symmetric=True, scales="pot"))
    x = b.input("x", 2, 8, 16, spread=2.0**-14)
    held = {"gain": np.full(16, 1.5, np.float32), "offset": np.ones(16, np.float32)}
    if kind == "Add":
        made = b.float_op(kind, x, b.input("y", 2, 8, 16, spread=2.0**-14))
    else:
        made = b.float_op(kind, x, "factor", constants={"factor": np.array(1.25, np.float32)})
    b.output(b.quantized(b.float_op("LayerNormalization", made, *held, constants=held)))
    assert not _distances(b.net(), tmp_path).any()


def _distances(net: Net, folder: Path) -> npt.NDArray[Any]:
    from tests.targets.openvino.test_arithmetic import distances

    return distances(Net(write_qdq(legalize(read_qdq(net.model), OPENVINO.rewrites)), net.feeds), folder)
