"""MNN, converted and run in a process of its own, next to the twin."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent
from detent.deployment import write
from detent.errors import EngineError
from detent.ir import Package, read_qdq, write_qdq
from detent.targets.base import Placement
from detent.targets.mnn.arithmetic import Mnn as Arithmetic
from detent.targets.mnn.engine import Mnn, _Worker
from detent.targets.mnn.model import mnn_network
from detent.targets.mnn.scales import MnnScales
from detent.targets.mnn.writer import mnn_compression
from detent.twin import Twin
from detent.verification import Verdict
from tests.models import MODELS
from tests.twin.nets import SMALL, Builder, Net, Style, conv, linear

pytestmark = [
    pytest.mark.mnn,
    pytest.mark.skipif(Mnn.version() is None, reason="needs the extra `mnn`"),
]


def followed(kind: str, scales: str, seed: int) -> Net:
    """A small net and a layer behind it, so that MNN has a scale for what the net gives."""
    builder = Builder(Style(activation="int8", symmetric=True, scales=scales, batch=8, seed=seed))  # type: ignore[arg-type]
    made = SMALL[kind](builder)
    builder.output(conv(builder, made, 8, 1) if made.value.ndim == 4 else linear(builder, made, 8))
    return builder.net()


def engine_of(net: Net) -> Mnn:
    graph = read_qdq(net.model)
    return Mnn(write_qdq(mnn_network(graph)).SerializeToString(), mnn_compression(graph), graph)


def step_by_step(net: Net) -> tuple[int, int]:
    """Codes compared, and how many differ; each operation gets what the engine computed before it."""
    engine, twin = engine_of(net), Twin(net.model, Arithmetic())
    computed = engine.tensors(net.feeds)
    simulated = twin.tensors(net.feeds, given=computed)
    shared = [name for name in computed.keys() & simulated.keys() if computed[name].dtype == np.int8]
    assert shared
    apart = [np.abs(computed[n].reshape(simulated[n].shape).astype(int) - simulated[n]) for n in shared]
    return sum(a.size for a in apart), sum(int((a > 0).sum()) for a in apart)


KINDS = [
    *("conv", "conv_relu", "conv_1x1", "conv_strided", "conv_dilated", "conv_grouped", "depthwise", "depthwise_relu"),
    *("gemm", "gemm_relu"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scales", ["random", "pot", "tie"])
def test_a_layer_is_equal(kind: str, scales: str) -> None:
    compared, differ = step_by_step(followed(kind, scales, seed=2))
    assert compared > 4000
    assert differ == 0


class Between(nn.Module):
    """Something between layers, so that MNN has scales for what it reads and gives."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3), nn.LazyConv2d(4, 1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.one(x), self.two(x)))


BETWEEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "add_relu": lambda a, b: torch.relu(a + b),
    "sub": torch.sub,
    "mul": torch.mul,
    "concat": lambda a, b: torch.cat([a, b], 1),
    "sum_in_concat": lambda a, b: torch.cat([a + b, b], 1),
    "product_in_concat": lambda a, b: torch.cat([a * b, b], 1),
    "maxpool": lambda a, b: F.max_pool2d(torch.relu(a + b), 3, 2, 1),
    "avgpool": lambda a, b: F.avg_pool2d(a + b, 2),
    "avgpool_padded": lambda a, b: F.avg_pool2d(a + b, 3, 2, 1, count_include_pad=False),
    "global_avgpool": lambda a, b: F.adaptive_avg_pool2d(a + b, 1),
    "slice": lambda a, b: (a + b)[:, 2:, 1:, :-1],
    "reshape": lambda a, b: (a + b).flatten(2).transpose(1, 2).transpose(1, 2).reshape(a.shape),
}


@pytest.mark.parametrize("kind", BETWEEN)
def test_what_stands_between_layers_is_equal(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 12, 12)
    model = Between(BETWEEN[kind]).eval()
    model(x)
    prepared = detent.prepare(model, (x,), backend="mnn")
    detent.calibrate(prepared, [(x,)])
    artifact = detent.deploy(prepared, tmp_path / "out")
    verdict = artifact.verify([x], latency=False)
    assert verdict.holds
    assert not verdict.in_float or kind == "concat"  # of tensors with scales of their own
    compared = [each for each in (*verdict.outputs, *verdict.tensors) if each.what == "twin vs engine"]
    assert len(compared) >= 4
    assert all(each.equal for each in compared)


WRONG_ON_CODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "max_pool_of_negatives": lambda a, _: F.max_pool2d(a, 2),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "bilinear": lambda a, _: F.interpolate(a, scale_factor=2, mode="bilinear"),
    "relu_of_several_readers": lambda a, _: torch.relu(a) + a,
    "negative": lambda a, _: -a,
}


@pytest.mark.parametrize("kind", WRONG_ON_CODES)
def test_what_mnn_computes_wrongly_on_codes_is_left_in_float(kind: str, tmp_path: Path) -> None:
    """Up to 220 steps off otherwise, on x86 or on arm64 too; now what was simulated, but for sums that end between two
    codes."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 13, 11)  # 16 numbers at a time leave a rest
    model = Between(WRONG_ON_CODES[kind]).eval()
    model(x)
    verdict = verdict_of(model, x, tmp_path)
    assert verdict.holds
    assert len(verdict.in_float) == 1
    end_to_end = [each for each in verdict.outputs if each.what in ("simulation vs engine", "twin vs engine")]
    assert len(end_to_end) == 2
    assert all(each.most <= 1 and each.rate < 0.02 for each in end_to_end)


def verdict_of(model: nn.Module, x: Tensor, folder: Path) -> Verdict:
    prepared = detent.prepare(model, (x,), backend="mnn")
    detent.calibrate(prepared, [(x,)])
    return detent.deploy(prepared, folder / "out").verify([x], latency=False)


class PreActivation(nn.Module):
    """A batch norm behind a tensor that is read again cannot be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        return y + self.two(torch.relu(self.norm(y)))


def test_a_batch_norm_that_stands_alone_is_left_in_float(tmp_path: Path) -> None:
    torch.manual_seed(0)
    verdict = verdict_of(PreActivation().eval(), torch.randn(2, 3, 12, 12), tmp_path)
    assert verdict.holds
    assert {"norm", "relu"} <= set(verdict.in_float)
    assert all(each.most <= 1 for each in verdict.outputs)


def test_padding_counts_in_an_average_that_counts_it(tmp_path: Path) -> None:
    """MNN's kernel leaves it out; with it written as a Pad the twin agrees, and the simulation but for the rounding."""
    torch.manual_seed(0)
    model = Between(lambda a, b: F.avg_pool2d(a + b, 3, 2, 1)).eval()
    x = torch.randn(2, 3, 12, 12)
    model(x)
    verdict = verdict_of(model, x, tmp_path)
    averages = [each for each in verdict.tensors if each.tensor == "avg_pool2d"]
    assert all(each.equal for each in averages if each.what == "twin vs engine")
    assert not verdict.in_float
    assert all(each.most <= 12 for each in verdict.outputs)  # 45 without the Pad


class TwoOutputs(nn.Module):
    """A detector's logits, and what they mean."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.two(torch.relu(self.one(x)))
        return logits, torch.sigmoid(logits)


def test_an_output_that_a_function_reads_is_not_what_the_function_gives(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = TwoOutputs().eval(), torch.randn(8, 8)
    prepared = detent.prepare(model, (x,), backend="mnn")
    detent.calibrate(prepared, [(x,)])
    package = detent.deploy(prepared, tmp_path / "out")
    given = Mnn.load(package).run({name: x.numpy() for name in package.graph.inputs})
    logits, meant = given.values()
    assert logits.min() < -0.05
    assert np.allclose(1 / (1 + np.exp(-logits)), meant, atol=0.01)


def test_the_files_are_enough_for_the_converter(tmp_path: Path) -> None:
    """MNN finds the scales of every layer under the names in the files, also of linear layers with a ReLU."""
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    model = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU6(), nn.Linear(8, 4)).eval()
    prepared = detent.prepare(model, (x,), backend="mnn")
    detent.calibrate(prepared, [(x,)])
    package = detent.deploy(prepared, tmp_path / "out")
    onnx, parameters = (str(package.path(f".{name}")) for name in ("float.onnx", "mnn_compression.bin"))
    worker, mnn = _Worker(), str(tmp_path / "model.mnn")
    worker.ask(do="convert", onnx=onnx, compression=parameters, mnn=mnn)
    converted = worker.ask(do="describe", mnn=mnn)["model"]
    names = converted["tensorName"]
    scaled = {names[each["index"]] for each in converted["extraTensorDescribe"]}
    assert {layer.output.name for layer in mnn_compression(package.graph).layers} <= scaled
    assert not {name for name in sys.modules if name.startswith(("MNN.tools", "aliyun"))}


@pytest.mark.parametrize("shape", [(4, 256), (2, 3, 256)], ids=["rows", "tokens"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_large_matrix_keeps_its_weights(shape: tuple[int, ...], bias: bool, tmp_path: Path) -> None:
    """`mnnconvert` puts 65,536 weights or more of a matrix product aside, and quantizes what is left: nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 300, bias=bias), nn.ReLU(), nn.Linear(300, 260, bias=bias)).eval()
    verdict = verdict_of(model, torch.randn(*shape), tmp_path)
    assert verdict.holds
    assert verdict.in_float == ("_1",)
    assert all(each.equal for each in verdict.outputs if each.what == "twin vs engine")
    assert all(each.most <= 1 for each in verdict.outputs)


@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(8, 12, 4), (12, 24, 12), (8, 4, 4)])
def test_small_groups_run_on_integers(inputs: int, outputs: int, groups: int, tmp_path: Path) -> None:
    """MNN would make depthwise convolutions of them, in float."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(inputs, outputs, 3, groups=groups), nn.ReLU6(), nn.Conv2d(outputs, 4, 1)).eval()
    verdict = verdict_of(model, torch.randn(2, inputs, 9, 9), tmp_path)
    assert verdict.holds
    assert verdict.in_float == ()
    assert all(each.equal for each in (*verdict.outputs, *verdict.tensors) if each.what == "twin vs engine")


class PooledAndGivenOut(nn.Module):
    """What a function gives is an output and pooled, and what is pooled goes into a layer."""

    def __init__(self, before: Callable[[Tensor], Tensor], pool: Callable[..., Tensor]) -> None:
        super().__init__()
        self.one, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(16, 8, 1)
        self.before, self.pool = before, pool

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.before(self.one(x))
        pooled = self.pool(seen, 2)
        return seen, self.last(torch.cat([pooled, pooled], 1))


BEFORE_POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned_sigmoid": lambda x: torch.sigmoid(x.permute(0, 1, 3, 2)),
    "softmax": lambda x: torch.softmax(x, -1),
    "moved_product": lambda x: (x.reshape(-1, 2, 4, 8, 8).transpose(1, 2) * 0.5).reshape(-1, 8, 8, 8),
}


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d], ids=["max", "average"])
@pytest.mark.parametrize("before", BEFORE_POOLS)
def test_a_pool_behind_a_function_is_what_was_simulated(
    before: str, pool: Callable[..., Tensor], tmp_path: Path
) -> None:
    """With several samples, MNN's own choice was up to 194 steps off: sizes change, and scales go on once more."""
    torch.manual_seed(0)
    verdict = verdict_of(PooledAndGivenOut(BEFORE_POOLS[before], pool).eval(), torch.randn(2, 3, 8, 8), tmp_path)
    assert verdict.holds
    assert all(each.most <= 1 for each in verdict.outputs if each.unit == "LSB")
    real = [each for each in verdict.outputs if each.tensor == "output_0"]
    assert all(each.most < 1e-3 for each in real if each.what == "twin vs engine")  # nothing is rounded to 1/127


ON_OTHER_GRIDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "leaky_relu": lambda a, b: F.leaky_relu(a + b - 3, 0.01),
    "nothing_added": lambda a, b: F.leaky_relu(a + b - 3 - 0, 0.01),
    "clip": lambda a, b: torch.clamp(a + b, -0.1, 0.2),
}


@pytest.mark.parametrize("kind", ON_OTHER_GRIDS)
def test_a_sum_is_not_cut_off_where_the_numbers_behind_it_end(kind: str, tmp_path: Path) -> None:
    """MNN would put it on the grid of what a leaky ReLU makes of it: 46 steps off."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    model = Between(ON_OTHER_GRIDS[kind]).eval()
    model(x)
    verdict = verdict_of(model, x, tmp_path)
    assert verdict.holds
    assert all(each.most <= 1 for each in verdict.outputs)


class ClipBehindMoves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.last = nn.Conv2d(3, 4, 3), nn.Linear(144, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu6(self.one(x).flatten(1)))


def test_a_clip_behind_moves_is_not_taken_into_the_layer_before_them(tmp_path: Path) -> None:
    """MNN would find no scales for the layer then, and compute it in float."""
    torch.manual_seed(0)
    verdict = verdict_of(ClipBehindMoves().eval(), torch.randn(2, 3, 8, 8), tmp_path)
    assert verdict.holds
    assert "one" not in verdict.in_float
    assert all(each.equal for each in (*verdict.outputs, *verdict.tensors) if each.what == "twin vs engine")


class Chained(nn.Module):
    """Real numbers are an output, and moved into a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.last = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = self.one(x)
        real = self.norm(one)
        return one, real, self.last(real.flatten(2).reshape(x.shape[0], 4, 8, 8))


def test_real_numbers_that_are_given_out_are_not_rounded(tmp_path: Path) -> None:
    """A layer behind moves has a scale, which MNN would hand back: half a step off."""
    torch.manual_seed(0)
    model = Chained().eval()
    nn.init.uniform_(model.norm.weight, 0.5, 1.5)
    verdict = verdict_of(model, torch.randn(2, 3, 8, 8), tmp_path)
    assert verdict.holds
    assert all(each.equal for each in verdict.outputs if each.what == "twin vs engine")


def test_sequences_are_compared_in_their_own_rank(tmp_path: Path) -> None:
    """MNN computes them as images of width 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 4, 3)).eval()
    verdict = verdict_of(model, torch.randn(2, 3, 20), tmp_path)
    assert verdict.holds
    compared = [each for each in (*verdict.outputs, *verdict.tensors) if each.what == "twin vs engine"]
    assert len(compared) >= 3
    assert all(each.equal for each in compared)


def test_a_sum_that_goes_into_a_concatenation_is_on_its_grid(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Between(BETWEEN["product_in_concat"]).eval(), torch.randn(2, 3, 12, 12)
    model(x)
    prepared = detent.prepare(model, (x,), backend="mnn")
    detent.calibrate(prepared, [(x,)])
    graph = detent.deploy(prepared, tmp_path / "out").graph
    scales = MnnScales(graph)
    assert "mul" in scales.on_integers
    assert scales.grids["mul"] == scales.grids["cat"]


@pytest.fixture(scope="module")
def residual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, dict[str, np.ndarray]]:
    return deployed("residual_cnn", tmp_path_factory.mktemp("mnn") / "residual")


def deployed(name: str, folder: Path) -> tuple[Package, dict[str, np.ndarray]]:
    torch.manual_seed(0)
    inputs = MODELS[name].inputs()
    prepared = detent.prepare(MODELS[name].build().eval(), inputs, backend="mnn")
    detent.calibrate(prepared, [inputs])
    write(prepared, folder)
    package: Package = Package.load(folder)
    return package, {port: value.numpy() for port, value in zip(package.graph.inputs, inputs, strict=True)}


def test_a_deployed_network_is_equal_to_the_twin(residual: tuple[Package, dict[str, np.ndarray]]) -> None:
    package, feeds = residual
    computed = Mnn.load(package).run(feeds)["output"]
    grid = package.graph.outputs[0].read.encoding
    assert grid is not None
    simulated = Twin(package, Arithmetic()).run(feeds)["output"]
    assert np.rint(computed / grid.scale).tolist() == np.rint(simulated / grid.scale).tolist()


@pytest.mark.parametrize("name", ["resnet18", "unet", "mobilenet_v2", "functional_ops", "dataclass_io", "vit_block"])
def test_a_network_is_equal_end_to_end_and_one_by_one(name: str, tmp_path: Path) -> None:
    package, feeds = deployed(name, tmp_path / name)
    engine, twin = Mnn.load(package), Twin(package, Arithmetic())
    for output, values in twin.run(feeds).items():
        grid = next(each for each in package.graph.outputs if each.name == output).read.encoding
        assert grid is not None
        assert np.array_equal(np.rint(engine.run(feeds)[output] / grid.scale), np.rint(values / grid.scale))
    computed = engine.tensors(feeds)
    simulated = twin.tensors(feeds, given=computed)
    shared = [key for key in computed.keys() & simulated.keys() if computed[key].dtype == np.int8]
    apart = {k: np.abs(computed[k].reshape(simulated[k].shape).astype(int) - simulated[k]) for k in shared}
    # An operation in float, here a GELU, is computed otherwise than torch does and may be put on another code.
    exact = {step.writes[0].tensor for step in twin.steps if step.ran_as in ("integer", "moved")}
    assert exact & apart.keys()
    assert not any(apart[key].any() for key in exact & apart.keys())


@pytest.mark.parametrize("end", [nn.Identity(), nn.Hardtanh(-4.0, -3.0)], ids=["all numbers", "where it is small"])
def test_a_gelu_is_what_the_twin_has(end: nn.Module, tmp_path: Path) -> None:
    """As torch has it, it is 4.74e-4 off: of what comes of -4 to -3, where GELU is -4e-3 to -1e-4, a tenth."""
    torch.manual_seed(0)
    batches = [(9 * torch.randn(64, 16),) for _ in range(2)]
    model = nn.Sequential(nn.Linear(16, 12), end, nn.GELU(), nn.Linear(12, 4)).eval()
    prepared = detent.prepare(model, batches[0], backend="mnn")
    detent.calibrate(prepared, batches)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(batches, latency=False)
    assert verdict.holds, verdict.problems


def test_a_name_that_mnn_left_on_another_tensor_is_not_believed(tmp_path: Path) -> None:
    """MNN computes the function before a change of layout; what it calls `_0` then holds the function's numbers."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16)
    model = nn.Sequential(nn.Linear(16, 12), nn.Hardswish(), nn.Linear(12, 4)).eval()
    prepared = detent.prepare(model, (x,), backend="mnn")
    detent.calibrate(prepared, [(x,)])
    package = detent.deploy(prepared, tmp_path / "out")
    found = Mnn.load(package).tensors({name: x.numpy() for name in package.graph.inputs})
    assert set(found) == {"_2"}  # asked for `_1`, MNN rounds it, which it does not in a run


READ_TWICE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "functions": lambda a, _: torch.sigmoid(a) + torch.tanh(a),
    "function_and_constant": lambda a, _: torch.sigmoid(a) * (a + 0.3),
    "pool_and_clip": lambda a, _: F.max_pool2d(a, 2)[:, :4] - a.clamp(-0.1, 0.2)[:, :4, ::2, ::2],
    "product": lambda a, _: torch.tanh(a) * torch.sigmoid(a.mean((2, 3), keepdim=True)) + torch.softmax(a, 1),
}


@pytest.mark.parametrize("kind", READ_TWICE)
def test_codes_that_several_operations_read_in_float_outlive_another_size(kind: str, tmp_path: Path) -> None:
    """The process ends otherwise, as soon as the batch is not what the file was loaded with."""
    torch.manual_seed(0)
    x = torch.randn(3, 3, 12, 12)
    model = Between(READ_TWICE[kind]).eval()
    model(x)
    prepared = detent.prepare(model, (x,), backend="mnn")
    detent.calibrate(prepared, [(x,)])
    package = detent.deploy(prepared, tmp_path / "out")
    assert MnnScales(package.graph).casts.readers
    engine, port = Mnn.load(package), next(iter(package.graph.inputs))
    given = {size: engine.run({port: x[:size].numpy()})["output"] for size in (1, 3, 2)}
    assert given[3][:2].tolist() == given[2].tolist()
    assert package.verify([x], latency=False).holds


def test_names_that_an_alias_would_have_change_no_number() -> None:
    builder = Builder(Style(activation="int8", symmetric=True, batch=2))
    gate = builder.float_op("Sigmoid", conv(builder, builder.input("x", 2, 4, 6, 6), 4))
    other = builder.float_op("Softmax", gate, axis=1)
    layer = conv(builder, builder.quantized(gate), 4, 1)
    builder.output(layer)
    builder.output(other)
    net = builder.net()
    plain, found = read_qdq(net.model), []
    for names in ({}, {gate.name: "gate", other.name: "gate.real", layer.name: "gate.parts"}):
        graph = plain.renamed(names)
        assert MnnScales(graph).casts.readers
        engine = Mnn(write_qdq(mnn_network(graph)).SerializeToString(), mnn_compression(graph), graph)
        found.append([values.tolist() for values in engine.run(net.feeds).values()])
    assert found[0] == found[1]


@pytest.mark.parametrize("pool", [F.avg_pool2d, F.max_pool2d])
def test_a_window_that_begins_behind_its_input_is_not_computed(pool: Callable[..., Tensor], tmp_path: Path) -> None:
    """MNN has a row more otherwise, or divides by the count of no numbers and ends."""
    torch.manual_seed(0)
    model = Between(lambda a, b: pool(torch.relu(a + b), 1, 3, ceil_mode=True)).eval()
    x = torch.randn(2, 3, 14, 14)  # a pool of 12: four windows, the fifth begins at 12
    model(x)
    verdict = verdict_of(model, x, tmp_path)
    assert verdict.holds
    assert next(each.elements for each in verdict.outputs) == 2 * 4 * 4 * 4


def test_numbers_beyond_the_codes_of_a_grid_are_no_codes(residual: tuple[Package, dict[str, np.ndarray]]) -> None:
    """MNN may have a tensor on a coarser grid, of which some numbers are whole steps of the network's own."""
    engine, grid = Mnn.load(residual[0]), residual[0].graph.grid_of("relu1")
    assert grid is not None
    steps = np.array([-127.0, 0.0, 4.0], np.float32)
    assert engine._codes("relu1", steps * grid.scale).tolist() == [-127, 0, 4]
    assert engine._codes("relu1", (2 * steps) * grid.scale).dtype == np.float32


def test_explain_says_what_ran_on_integers_and_why_the_rest_did_not(
    residual: tuple[Package, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    placements = {each.op: each for each in Mnn.load(residual[0]).explain()}
    ran = {name for name, each in placements.items() if each.ran_as == "integer"}
    assert ran >= {"conv1", "conv2", "add", "maxpool", "avgpool", "fc"}
    assert placements["relu1"].ran_as == "folded"
    with_float = {each.op: each for each in Mnn.load(deployed("functional_ops", tmp_path / "ops")[0]).explain()}
    assert with_float["mul"] == Placement("mul", "Mul", "float", "MNN has no scale for mul_constant, mul")
    assert "other numbers here than the network does" in with_float["add"].why
    assert with_float["mean"].ran_as == "integer"


def test_what_mnn_cannot_run_is_an_engine_error(tmp_path: Path) -> None:
    """It says so by a number, and gives empty outputs."""
    torch.manual_seed(0)
    inputs = MODELS["lstm_tagger"].inputs()
    prepared = detent.prepare(MODELS["lstm_tagger"].build().eval(), inputs, backend="onnxruntime")
    detent.calibrate(prepared, [inputs])
    package = detent.deploy(prepared, tmp_path / "lstm")
    with pytest.raises(EngineError, match="MNN stopped with error code"):
        Mnn.load(package, as_float=True).run({name: inputs[0].numpy() for name in package.graph.inputs})


def test_the_float_network_runs_and_has_no_integers(residual: tuple[Package, dict[str, np.ndarray]]) -> None:
    package, feeds = residual
    floats, integers = Mnn.load(package, as_float=True), Mnn.load(package)
    assert "integer" not in {each.ran_as for each in floats.explain()}
    real, quantized = floats.run(feeds)["output"], integers.run(feeds)["output"]
    assert 0 < np.abs(real - quantized).max() < 0.2 * np.abs(real).max()


def test_another_batch_size_is_another_size_for_mnn(residual: tuple[Package, dict[str, np.ndarray]]) -> None:
    engine, feeds = Mnn.load(residual[0]), residual[1]
    both = engine.run(feeds)["output"]
    assert engine.run({"x": feeds["x"][:1]})["output"].tolist() == both[:1].tolist()
    assert engine.run(feeds)["output"].tolist() == both.tolist()


def test_a_model_that_mnn_cannot_read_is_an_engine_error(residual: tuple[Package, dict[str, np.ndarray]]) -> None:
    with pytest.raises(EngineError, match="convert with MNN"):
        Mnn(b"no model", None, residual[0].graph)
