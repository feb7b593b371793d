"""Attention is captured as linear layers, products and a softmax, over the parameters that it has."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent
from detent.graph import capture, kind_of
from detent.graph.decompositions.attention import HIDDEN, multihead_attention, scaled_dot_product_attention

BATCH, QUERIES, KEYS, SIZE, HEADS = 2, 5, 7, 16, 4
LATER = torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(1)
PADDING = torch.arange(KEYS) >= torch.tensor([[7], [4]])

MASKS = {
    "none": None,
    "bool": LATER,
    "float": torch.zeros(QUERIES, KEYS).masked_fill(LATER, -torch.inf),
    "bias": torch.linspace(-1, 1, QUERIES * KEYS).view(QUERIES, KEYS),
    "bool-per-head": LATER.expand(BATCH * HEADS, -1, -1),
}
OPTIONS = {
    "plain": {},
    "no-bias": {"bias": False},
    "bias-kv": {"add_bias_kv": True},
    "zero": {"add_zero_attn": True},
    "bias-kv-and-zero": {"add_bias_kv": True, "add_zero_attn": True},
    "sequence-first": {"batch_first": False},
    "kdim": {"kdim": 6, "vdim": 10},
}


def close(left: tuple[Tensor | None, ...], right: tuple[Tensor | None, ...]) -> bool:
    pairs = list(zip(left, right, strict=True))
    return all(a is b if a is None or b is None else torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def attention(**options: object) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(SIZE, HEADS, **{"batch_first": True, **options}).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_it_computes_what_torch_does(options: str, mask: str):
    module = attention(**OPTIONS[options])
    query = torch.randn(BATCH, QUERIES, SIZE)
    key = torch.randn(BATCH, KEYS, module.kdim)
    value = torch.randn(BATCH, KEYS, module.vdim) if options == "kdim" else key
    if not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
        value = key
    is_real = MASKS[mask] is not None and MASKS[mask].is_floating_point()
    for padding, weights, average in itertools.product((None, PADDING), (True, False), (True, False)):
        given = {"key_padding_mask": padding.float() * -1e9 if is_real and padding is not None else padding}
        given |= {"attn_mask": MASKS[mask], "need_weights": weights, "average_attn_weights": average}
        with torch.no_grad():
            assert close(multihead_attention(module, query, key, value, **given), module(query, key, value, **given))


def test_without_a_batch():
    module, x, y = attention(add_bias_kv=True), torch.randn(QUERIES, SIZE), torch.randn(KEYS, SIZE)
    given = {"attn_mask": LATER.expand(HEADS, -1, -1), "key_padding_mask": PADDING[1]}
    with torch.no_grad():
        assert close(multihead_attention(module, x, y, y, **given), module(x, y, y, **given))


def test_the_causal_flag_stands_for_the_mask():
    module, x = attention(), torch.randn(BATCH, QUERIES, SIZE)
    given = {"attn_mask": nn.Transformer.generate_square_subsequent_mask(QUERIES), "need_weights": False}
    with torch.no_grad():
        made = multihead_attention(module, x, x, x, is_causal=True, **given)
        assert close(made, module(x, x, x, is_causal=True, **given))


SCALED = {
    "plain": {},
    "scale": {"scale": 0.3},
    "causal": {"is_causal": True},
    "bool": {"attn_mask": ~LATER},
    "float": {"attn_mask": MASKS["float"]},
    "bool, one row hidden": {"attn_mask": ~LATER & (torch.arange(QUERIES) != 2).unsqueeze(1)},
    "float, one row hidden": {"attn_mask": MASKS["float"].index_fill(0, torch.tensor([2]), -torch.inf)},
}


@pytest.mark.parametrize("name", SCALED)
def test_scaled_dot_product_attention(name: str):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, QUERIES, 8), torch.randn(2, 4, KEYS, 8), torch.randn(2, 4, KEYS, 6)
    made = scaled_dot_product_attention(q, k, v, **SCALED[name])
    assert torch.allclose(made, F.scaled_dot_product_attention(q, k, v, **SCALED[name]), atol=1e-6)


def test_grouped_heads():
    q, k = torch.randn(2, 4, QUERIES, 8), torch.randn(2, 2, KEYS, 8)
    made = scaled_dot_product_attention(q, k, k[:, :1], enable_gqa=True)
    assert torch.allclose(made, F.scaled_dot_product_attention(q, k, k[:, :1], enable_gqa=True), atol=1e-6)


def test_what_is_hidden_is_a_number():
    assert torch.isfinite(torch.tensor(2 * HIDDEN))


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.attn, self.out = nn.MultiheadAttention(SIZE, HEADS, dropout, batch_first=True), nn.Linear(SIZE, 3)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        return self.out(self.attn(x, memory, memory)[0])


def kinds(captured: detent.graph.Captured) -> list[str]:
    region = captured.regions[""]
    modules = dict(region.named_modules())
    found = [kind_of(node, modules) for node in region.graphs["forward"].nodes if node.op.startswith("call")]
    return [kind.name if kind is not None else "?" for kind in found]


def test_the_operations_of_a_layer():
    x = torch.randn(BATCH, QUERIES, SIZE)
    assert kinds(capture(Block().eval(), (x,))) == [
        *("linear", "slice", "slice", "slice", "slice"),
        *("reshape", "transpose") * 3,
        *("mul", "transpose", "matmul", "softmax", "matmul", "transpose", "reshape"),
        *("linear", "linear"),
    ]


@pytest.mark.parametrize("leaf", ["attn", nn.MultiheadAttention], ids=["name", "class"])
def test_a_leaf_stays_one(leaf: object):
    made = capture(Block().eval(), (torch.randn(BATCH, QUERIES, SIZE),), leaf_modules=[leaf])  # type: ignore[list-item]
    assert kinds(made) == ["?", "slice", "linear"]


def test_the_plan_names_the_parameters():
    x = torch.randn(BATCH, QUERIES, SIZE)
    plan = detent.prepare(Block().eval(), (x,), backend="onnxruntime").plan
    weights = [entry.tensor for entry in plan.quantized if entry.role == "weight"]
    assert weights == ["attn.in_proj_weight.weight", "attn.out_proj.weight", "out.weight"]
    grids = {entry.tensor: str(entry.scheme) for entry in plan.quantized}
    assert grids["matmul"] == grids["softmax"] == grids["matmul_1"] == "uint8 affine per-tensor"
    assert {op.op: op.runs for op in plan.ops if op.kind in ("linear", "matmul", "softmax")} == {
        **dict.fromkeys(["attn.in_proj_weight", "attn.out_proj", "out"], "quantized"),
        **dict.fromkeys(["matmul", "softmax", "matmul_1"], "quantized"),
    }


@pytest.mark.parametrize("memory", [False, True], ids=["self", "cross"])
def test_a_float_checkpoint_loads_and_is_read_back(memory: bool):
    torch.manual_seed(0)
    net, other = Block().eval(), Block().eval()
    inputs = tuple(torch.randn(BATCH, length, SIZE) for length in ((QUERIES, KEYS) if memory else (QUERIES,)))
    prepared = detent.prepare(net, inputs, backend="litert")
    detent.calibrate(prepared, [inputs])
    for source in (net, other):
        prepared.load_state_dict(source.state_dict())
        state = detent.float_state_dict(prepared)
        assert list(state) == list(source.state_dict())
        assert all(torch.equal(state[name], value) for name, value in source.state_dict().items())


def test_queries_and_keys_of_two_tensors_have_a_weight_each():
    inputs = torch.randn(BATCH, QUERIES, SIZE), torch.randn(BATCH, KEYS, SIZE)
    prepared = detent.prepare(Block().eval(), inputs, backend="onnxruntime")
    weights = [entry.tensor for entry in prepared.plan.quantized if entry.role == "weight"]
    assert weights[:2] == ["attn.in_proj_weight.0.weight", "attn.in_proj_weight.1.weight"]
    detent.calibrate(prepared, [inputs])
    assert prepared.get_submodule("attn.in_proj_weight.1").weight.shape == (2 * SIZE, SIZE)


def test_dropout_works_in_training():
    x = torch.randn(BATCH, QUERIES, SIZE)
    captured = capture(Block(dropout=0.5), (x,)).module
    assert torch.equal(captured.eval()(x), captured(x))
    assert not torch.equal(captured.train()(x), captured(x))


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5 if self.training else 0.0)


def test_dropout_of_the_function_works_in_training():
    x = torch.randn(BATCH, QUERIES, SIZE)
    captured = capture(Scaled(), (x,)).module
    assert torch.equal(captured.eval()(x), captured(x))
    assert not torch.equal(captured.train()(x), captured(x))


def test_every_scale_is_trained():
    torch.manual_seed(0)
    x = torch.randn(BATCH, QUERIES, SIZE)
    prepared = detent.prepare(Block().eval(), (x,), backend="onnxruntime", recipe="lsq")
    detent.calibrate(prepared, [(x,)])
    prepared.train()(x).square().sum().backward()
    scales = {name: value for name, value in prepared.named_parameters() if name.endswith("scale")}
    assert len(scales) > 5
    assert [name for name, value in scales.items() if value.grad is None] == []
