"""Torch's own kernels behind the engine interface."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from detent.errors import EngineError
from detent.targets.torch_native.arithmetic.fbgemm import Fbgemm
from detent.targets.torch_native.arithmetic.onednn import Onednn
from detent.targets.torch_native.engine import TorchNative
from tests.targets.torch_native.nets import differing, package
from tests.twin.builder import Builder, Style
from tests.twin.nets import image, small_net


def test_it_comes_with_torch() -> None:
    assert TorchNative.version() == torch.__version__
    assert TorchNative.extra is None


@pytest.mark.parametrize("kernels", ["fbgemm", "qnnpack", "x86"])
def test_outputs_are_real_numbers_on_the_output_grid(kernels: str, tmp_path: Path) -> None:
    net = small_net("residual")
    deployed = package(net, tmp_path)
    engine = TorchNative.load(deployed, kernels=kernels)  # type: ignore[arg-type]
    (name, found), *_ = engine.run(net.feeds).items()
    read = deployed.graph.outputs[0].read
    assert name == deployed.graph.outputs[0].name
    assert read.encoding is not None
    codes = engine.tensors(net.feeds)[read.tensor]
    assert codes.dtype == np.uint8
    assert np.array_equal(found, read.encoding.dequantize(codes))


def test_integers_come_close_to_the_float_network(tmp_path: Path) -> None:
    """A grid that fits: half a step for the output, and what the input's rounding makes of it."""
    net = small_net("add")
    deployed = package(net, tmp_path)
    quantized = TorchNative.load(deployed).run(net.feeds)
    real = TorchNative.load(deployed, as_float=True).run(net.feeds)
    (name, found), *_ = quantized.items()
    inside = np.abs(real[name]) < np.abs(found).max() * 0.9
    error = np.abs(found - real[name])[inside]
    read = deployed.graph.outputs[0].read
    assert read.encoding is not None
    assert inside.mean() > 0.8
    assert error.max() < 3 * float(read.encoding.scale)
    assert error.max() > 0


def test_explain(tmp_path: Path) -> None:
    engine = TorchNative.load(package(small_net("residual"), tmp_path))
    assert [(place.kind, place.ran_as) for place in engine.explain()] == [
        ("Conv", "integer"),
        ("Relu", "folded"),
        ("Conv", "integer"),
        ("Add", "integer"),
        ("Relu", "folded"),
        ("Conv", "integer"),
        ("Relu", "folded"),
        ("GlobalAveragePool", "float"),
        ("Flatten", "integer"),
        ("Gemm", "integer"),
    ]
    pool = next(place for place in engine.explain() if place.ran_as == "float")
    assert pool.why == "torch's kernel keeps the grid of its input, and its output is on another"


def test_explain_a_linear_layer_with_its_bias(tmp_path: Path) -> None:
    engine = TorchNative.load(package(small_net("matmul"), tmp_path))
    assert [(place.kind, place.ran_as) for place in engine.explain()] == [("MatMul", "integer"), ("Add", "folded")]


def test_nothing_is_integer_in_the_float_network(tmp_path: Path) -> None:
    engine = TorchNative.load(package(small_net("conv_relu"), tmp_path), as_float=True)
    assert {place.ran_as for place in engine.explain()} == {"float"}
    assert {place.why for place in engine.explain()} == {"the float network was asked for"}


def test_torch_is_left_as_it_was(tmp_path: Path) -> None:
    net = small_net("conv")
    before = torch.backends.quantized.engine, torch.get_num_threads()
    TorchNative.load(package(net, tmp_path), threads=2, kernels="qnnpack").run(net.feeds)
    assert (torch.backends.quantized.engine, torch.get_num_threads()) == before


def test_batches_of_any_size(tmp_path: Path) -> None:
    net = small_net("conv", Style(batch=3))
    engine = TorchNative.load(package(net, tmp_path))
    (all_at_once,) = engine.run(net.feeds).values()
    (one,) = engine.run({"x": net.feeds["x"][1:2]}).values()
    assert np.array_equal(all_at_once[1:2], one)


def test_wrong_inputs_are_refused(tmp_path: Path) -> None:
    engine = TorchNative.load(package(small_net("conv"), tmp_path))
    with pytest.raises(EngineError, match="takes x"):
        engine.run({"y": np.zeros((1, 16, 10, 10), np.float32)})
    with pytest.raises(EngineError, match="16, 10, 10"):
        engine.run({"x": np.zeros((1, 16, 9, 10), np.float32)})


def test_other_kernels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="there are fbgemm"):
        TorchNative.load(package(small_net("conv"), tmp_path), kernels="mlas")  # type: ignore[arg-type]


@pytest.mark.parametrize("kernels", ["fbgemm", "x86"])
@pytest.mark.parametrize("strides", [[1, 1], [2, 2]])
def test_transposed_convolutions_two_rows_high_are_those_of_floats(
    strides: list[int], kernels: str, tmp_path: Path
) -> None:
    """Fbgemm's kernel for them adds to memory it never cleared, oneDNN's ends the process where a virtual machine hides
    the tiles of AMX: what the engine runs goes past both."""
    builder = Builder(Style(per_channel=False, scales="pot"))
    x = image(builder)
    builder.output(builder.weighted("ConvTranspose", x, (16, 8, 2, 2), axis=1, kernel_shape=[2, 2], strides=strides))
    arithmetic = Onednn() if kernels == "x86" else Fbgemm()
    wrong, count = differing(builder.net(), tmp_path, kernels, arithmetic)  # type: ignore[arg-type]
    assert count > 1000
    assert not wrong
