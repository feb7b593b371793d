"""The HTP's formulas give what its emulator (QNN 2.7.0) gave where plain rounding would not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.ir import Encoding, Operand, read_qdq
from detent.recipes import Recipe
from detent.targets.qualcomm.arithmetic.fixed import (
    average,
    convert,
    in_signed_bytes,
    multiply,
    quantize,
    real,
    requantize_sums,
    sum_of_two,
    weight_ratio,
)
from detent.targets.qualcomm.arithmetic.htp import Htp
from detent.targets.qualcomm.arithmetic.steps import why_float
from detent.targets.qualcomm.arithmetic.wide import quantize_wide, requantize_wide_sums, wide_sum_of_two
from detent.twin import Twin
from detent.verification.ranges import Ranges
from tests.twin.nets import Style, small_net
from tests.verification.mutants import batches, made

BYTE = (0, 255)


def grid(scale: float, zero_point: int, dtype: str = "uint8") -> Encoding:
    return Encoding(np.float32(scale), np.int64(zero_point), dtype)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def first_of_each_code(ratio: float, most: int = 2000) -> list[int]:
    """The least sum of products that gives 1, 2, 3, and so on."""
    codes = requantize_sums(np.array([ratio], np.float32), (1,), 0, BYTE)(torch.arange(float(most)))
    return [int((codes >= code).nonzero()[0, 0]) for code in range(1, 13)]


@pytest.mark.parametrize(
    ("ratio", "sums"),
    [
        (1 / 128, [64, 192, 320, 448, 576, 704, 832, 960, 1088, 1216, 1344, 1472]),
        (1 / 127.3, [64, 192, 320, 448, 576, 704, 832, 960, 1088, 1216, 1344, 1464]),
        (0.0061, [96, 256, 416, 576, 752, 912, 1072, 1232, 1408, 1568, 1728, 1888]),
        (0.01, [56, 152, 256, 352, 456, 552, 656, 752, 856, 952, 1056, 1152]),
        (0.0077, [80, 208, 336, 464, 592, 720, 848, 976, 1104, 1248, 1376, 1504]),
    ],
)
def test_sums_of_products_lose_their_low_bits(ratio: float, sums: list[int]) -> None:
    assert first_of_each_code(ratio) == sums


def test_the_multiplier_has_11_bits() -> None:
    exact, rounded = 0.0078, 2045 / 2**18
    assert exact < rounded
    sums = torch.tensor([31056.0])  # 242.24 by either; a multiple of 16, of which nothing is cut off
    assert requantize_sums(np.array([exact], np.float32), (1,), 0, BYTE)(sums).tolist() == [242.0]
    borderline = torch.tensor([np.floor(242.5 / rounded / 16 + 1) * 16])
    assert borderline.item() * exact < 242.5 < borderline.item() * rounded
    assert requantize_sums(np.array([exact], np.float32), (1,), 0, BYTE)(borderline).tolist() == [243.0]


def test_the_zero_point_is_added_before_the_low_bits_are_cut_off() -> None:
    ratio = np.array([0.00228], np.float32)  # 128 / 0.00228 is 56140.4, and 56140 is not a multiple of 32
    after = requantize_sums(ratio, (1,), 0, BYTE)
    inside = requantize_sums(ratio, (1,), 128, BYTE)
    sums = torch.arange(0.0, 20000.0)
    assert int((inside(sums) != (after(sums) + 128).clamp(*BYTE)).sum()) > 100
    assert torch.equal(inside(sums), after(sums + 56140))


def test_a_depthwise_convolution_of_stride_2_has_15_bits_and_cuts_nothing() -> None:
    ratio = np.array([0.0061], np.float32)
    found = requantize_sums(ratio, (1,), 0, BYTE, vector=True)(tensor(81, 82, 245, 246))
    assert found.tolist() == [0, 1, 1, 2]


def test_the_scale_of_a_channel_goes_by_way_of_the_largest() -> None:
    data, output = grid(0.0237, 0), grid(0.041, 0)
    weight = Encoding(np.array([0.0031, 0.00917], np.float32), np.zeros(2, np.int64), "int8", axis=0)
    f32 = np.float32
    largest = f32(f32(f32(0.0237) * f32(0.00917)) / f32(0.041))
    assert weight_ratio(data, weight, output).tolist() == [f32(largest * f32(f32(0.0031) / f32(0.00917))), largest]


@pytest.mark.parametrize(
    ("sign", "grids", "found"),
    [
        (
            1,
            (grid(0.031, 78), grid(0.018, 10), grid(0.043, 19)),
            [(32, 45, 1), (110, 54, 61), (156, 99, 113), (194, 67, 127), (226, 160, 189), (255, 165, 212), (0, 101, 1)],
        ),
        (
            -1,
            (grid(0.031, 78), grid(0.0219, 10), grid(0.0291, 121)),
            [(1, 0, 47), (97, 104, 71), (143, 205, 44), (180, 74, 182), (215, 186, 135), (255, 228, 146), (0, 0, 45)],
        ),
    ],
    ids=["sum", "difference"],
)
def test_sums(sign: int, grids: tuple[Encoding, Encoding, Encoding], found: list[tuple[int, int, int]]) -> None:
    a, b, y = (tensor(*each) for each in zip(*found, strict=True))
    assert torch.equal(sum_of_two(*grids, BYTE, sign)(a, b), y)


def test_the_constant_of_a_sum_is_rounded_away_from_zero() -> None:
    """The zero points are 4256 and 60.5 of the units in which it counts."""
    grids = grid(2.0**27, 133), grid(2.0**21, 121), grid(2.0**25, 0)
    a, b = tensor(133, 133, 134), tensor(129, 128, 121)
    assert sum_of_two(*grids, BYTE, 1)(a, b).tolist() == [0, 0, 4]


@pytest.mark.parametrize(
    ("grids", "found"),
    [
        (
            (grid(0.031, 100), grid(0.018, 50), grid(0.043, 120)),
            [(0, 8, 174), (61, 132, 78), (116, 168, 144), (147, 0, 89), (196, 109, 193), (255, 94, 208), (0, 0, 185)],
        ),
        (
            (grid(0.031, 0), grid(0.018, 0), grid(0.143, 200)),
            [(7, 238, 206), (38, 145, 221), (65, 207, 252), (88, 83, 228), (253, 39, 238), (0, 0, 200), (255, 54, 254)],
        ),
    ],
    ids=["centered", "a constant that is shortened"],
)
def test_products(grids: tuple[Encoding, Encoding, Encoding], found: list[tuple[int, int, int]]) -> None:
    a, b, y = (tensor(*each) for each in zip(*found, strict=True))
    assert torch.equal(multiply(*grids, BYTE)(a, b), y)


def test_a_column_that_leaves_8_bits_with_a_sign_is_made_smaller() -> None:
    column = torch.tensor([[155.0], [119.0], [130.0], [-75.0]])  # 97.503 and 106.516 by 127/155
    codes, factor = in_signed_bytes(column)
    assert factor.item() == 2500 / 2048
    assert codes[:, 0].tolist() == [127, 97, 106, -61]
    halves, factor = in_signed_bytes(torch.tensor([[254.0], [-1.0], [1.0], [3.0]]))
    assert (halves[:, 0].tolist(), factor.item()) == ([127, 0, 1, 2], 2)
    below, factor = in_signed_bytes(torch.tensor([[-200.0], [1.0]]))
    assert (below[:, 0].tolist(), factor.item()) == ([-128, 1], 3200 / 2048)


def test_one_that_does_not_stays_as_it_is() -> None:
    columns = torch.tensor([[127.0, -128.0], [-128.0, 3.0]])
    codes, factors = in_signed_bytes(columns)
    assert torch.equal(codes, columns.double())
    assert factors.tolist() == [[1, 1]]


WORD = (0, 65535)


def wide(zero: int, weight: int, zero_point: int) -> list[float]:
    """Of the codes 0 to 5 times a weight, on a grid that is as many times wider."""
    sums = (torch.arange(6.0) - zero) * weight
    given = np.array([1 / weight], np.float32), (1,), np.array([zero * weight]), np.array([0]), zero_point, WORD
    return requantize_wide_sums(*given)(sums).tolist()


def test_sums_of_16_bits_lose_a_byte() -> None:
    assert wide(0, 127, 0) == [0, 0, 0, 2, 2, 4]
    assert wide(100, 127, 200) == [99, 99, 99, 101, 101, 103]


def test_sums_of_two_of_16_bits() -> None:
    added = wide_sum_of_two(grid(0.7, 0, "uint16"), grid(1.0, 0, "uint16"), grid(1.0, 0, "uint16"), WORD, 1)
    assert added(tensor(5, 15, 25), tensor(0, 1, 1000)).tolist() == [4, 12, 1018]
    other = wide_sum_of_two(
        grid(0.31, 30000, "uint16"), grid(0.18, 100, "uint16"), grid(0.43, 20000, "uint16"), WORD, 1
    )
    assert other(tensor(2260, 2264, 1), tensor(100, 100, 30101)).tolist() == [2, 5, 10932]


def test_inputs_of_16_bits_are_multiplied_by_the_reciprocal() -> None:
    """Divided by the scale in float32 these would be one further from the zero point."""
    wide_grid = grid(0.0001234, 30000, "uint16")
    values = tensor(*(float.fromhex(each) for each in ("0x1.037ac6p+2", "0x1.19b922p-2", "0x1.5a0072p+1")))
    assert quantize_wide(values, wide_grid).tolist() == [62855, 32229, 51905]
    halves = quantize_wide(tensor(1.5, -1.5, 0.5) * 2.0**-14, grid(2.0**-14, 32768, "uint16"))
    assert halves.tolist() == [32770, 32766, 32769]


def test_averages() -> None:
    before, behind = grid(0.031, 90), grid(0.027, 100)
    of_25 = average(before, behind, BYTE, pool=True)(tensor(3698, 4373, 5048, 5244), torch.tensor(25.0))
    assert of_25.tolist() == [166, 197, 228, 237]  # plain rounding gives one more
    of_4 = average(before, behind, BYTE, twice=True)(tensor(69, 76, 83, 177, 184, 191), torch.tensor(4.0))
    assert of_4.tolist() == [17, 19, 21, 48, 50, 52]  # plain rounding gives one less
    of_36 = average(grid(0.0625, 0), grid(0.03125, 0), BYTE)(tensor(9, 45), torch.tensor(36.0))
    assert of_36.tolist() == [0, 2]  # halves, but for the 15 bits of 1/18


def test_other_grids() -> None:
    before, behind = grid(0.0313, 90), grid(0.0417, 110)
    codes = tensor(80, 84, 88, 89, 90, 91)
    assert convert(before, behind, exact=False)(codes).tolist() == [103, 106, 109, 109, 110, 111]
    assert convert(before, behind, exact=True)(codes).tolist() == [102, 105, 108, 109, 110, 111]


def test_inputs_are_halves_of_floats_on_the_way() -> None:
    codes = quantize(tensor(-2.5294945, -2.4697142, 0.029, 0.03, -0.03, 9.0), grid(0.02, 128))
    assert codes.tolist() == [1, 4, 129, 130, 126, 255]  # the first two are at 1.53 and 4.51


def test_what_operations_in_float_take_codes_for() -> None:
    """As the emulator gave it, multiplied by 1 in float."""
    codes = tensor(*range(92, 109))
    assert real(codes, grid(0.0172, 100)).tolist() == [
        *[-0.12037467956542969, -0.12037467956542969, -0.10317611694335938, -0.08598136901855469],
        *[-0.05158805847167969, -0.05158805847167969, -0.034389495849609375, -0.017194747924804688],
        *[5.125571078679059e-10, 0.017198562622070312, 0.034397125244140625, 0.05159187316894531],
        *[0.08598518371582031, 0.08598518371582031, 0.10318374633789062, 0.12037849426269531, 0.1547718048095703],
    ]
    assert real(codes, grid(1.72, 100)).tolist() == ((codes - 100) * 1.72).tolist()
    assert real(tensor(101), grid(1e-8, 100)).tolist() == [np.float32(1e-8)]


def test_the_bound_of_a_float_layer_starts_from_them(tmp_path: Path) -> None:
    graph = made("qnn", "float output", tmp_path / "out").graph
    twin, (x, _) = Twin(graph, Htp()), batches()
    inputs = {"x": x.numpy()}
    computed = twin.tensors(inputs)
    bound = Ranges(twin, inputs, {"between": computed["between"]}).real("last")
    assert bound is not None
    assert (np.abs(computed["last"] - bound.value.numpy()) <= bound.spread.numpy()).all()


def steps_of(kind: str) -> dict[str, str]:
    net = small_net(kind, Style(batch=1))
    return {step.ops[0].type: step.ran_as for step in Twin(net.model, Htp()).steps if step.ops}


@pytest.mark.parametrize(
    ("kind", "op"), [("conv", "Conv"), ("matmul", "MatMul"), ("add_relu", "Add"), ("gap", "GlobalAveragePool")]
)
def test_equality_is_claimed(kind: str, op: str) -> None:
    assert steps_of(kind) == {op: "integer"}


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)), (3, 6, 6)),
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), (5, 8)),
    ],
    ids=["Conv", "MatMul"],
)
def test_equality_is_claimed_behind_a_fused_activation(net: nn.Module, shape: tuple[int, ...], tmp_path: Path) -> None:
    """No real number is between a layer and its activation. Else any code of the second layer might be 1 LSB off, and
    outputs of an engine that are wrong were taken for right."""
    deployed = detent.quantize(net.eval(), [torch.rand(4, *shape)], backend="qnn", folder=tmp_path / "out")
    steps = [step for step in Twin(deployed.graph, Htp()).steps if step.ops]
    assert [(step.ran_as, step.off) for step in steps] == [("integer", 0.0)] * 2


@pytest.mark.parametrize(
    ("kind", "op"),
    [("softmax", "Softmax"), ("layernorm", "LayerNormalization"), ("avgpool_padded_counted", "AveragePool")],
)
def test_no_equality_is_claimed(kind: str, op: str) -> None:
    assert steps_of(kind) == {op: "float"}


def test_what_a_join_reads_is_computed_for_its_grid() -> None:
    """Not rounded to the grid of its own first."""
    net = small_net("concat", Style(batch=1))
    twin = Twin(net.model, Htp())
    codes = twin.tensors(net.feeds)["concat1"]
    output = twin.graph.grid_of("concat1")
    assert output is not None
    straight = quantize(torch.from_numpy(net.feeds["y"]), output)
    assert np.array_equal(codes[:, 16:], straight.numpy().astype(np.uint8))


def prepared_part(kept: str, folder: Path) -> dict[str, str]:
    """Of a small network whose layer `kept` is left in float: what is not quantized of its operations."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    recipe = Recipe.from_dict({"name": "part", "rules": [{"match": {"name": kept}, "quantize": False}]})
    x = torch.randn(1, 3, 12, 12)
    model = detent.prepare(net.eval(), (x,), backend="qnn", recipe=recipe)
    detent.calibrate(model, [(x,)])
    graph = detent.deploy(model, folder / "out").graph
    return {op.name: why_float(graph, op) for op in graph.ops}


def test_what_is_not_quantized_makes_an_operation_float(tmp_path: Path) -> None:
    """A ReLU goes with the convolution that it is part of."""
    assert list(prepared_part("2", tmp_path).values()) == [
        "",
        "",
        *["its constant '2.weight' is not quantized"] * 2,
        "",
    ]


def test_an_output_that_is_not_quantized() -> None:
    net = small_net("conv", Style(batch=1))
    graph = read_qdq(net.model)
    (op,) = graph.ops
    bare = replace(graph, outputs=tuple(replace(each, read=Operand(each.read.tensor)) for each in graph.outputs))
    assert why_float(graph, op) == ""
    assert why_float(bare, op) == f"its output {op.outputs[0]!r} is not quantized"


class TakesARow(nn.Module):
    """As a slice and a reshape, without a grid between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv1d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(self.a(x)[:, :, 0])
        return made


def test_what_moves_codes_stays_on_them(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 8, 8)
    model = detent.prepare(TakesARow().eval(), (x,), backend="qnn")
    detent.calibrate(model, [(x,)])
    graph = detent.deploy(model, tmp_path / "out").graph
    assert "Slice" in {op.type for op in graph.ops}
    assert {why_float(graph, op) for op in graph.ops} == {""}
