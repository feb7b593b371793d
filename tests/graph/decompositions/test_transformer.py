"""torch's transformer layers are captured whole, and compute what they did in training mode's path."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import detent
from detent.graph import capture
from detent.graph.decompositions.table import without_fast_path

SIZE, HEADS = 16, 4
SOURCE, TARGET = torch.randn(2, 7, SIZE), torch.randn(2, 5, SIZE)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)
PADDING = torch.arange(7) >= torch.tensor([[7], [4]])


def encoder_layer(**options: object) -> nn.TransformerEncoderLayer:
    given = {"batch_first": True, **options}
    return nn.TransformerEncoderLayer(SIZE, HEADS, 32, **given)  # type: ignore[arg-type]


def decoder_layer(**options: object) -> nn.TransformerDecoderLayer:
    given = {"batch_first": True, **options}
    return nn.TransformerDecoderLayer(SIZE, HEADS, 32, **given)  # type: ignore[arg-type]


def encoder(**options: object) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(encoder_layer(**options), 2, nn.LayerNorm(SIZE), enable_nested_tensor=False)


CASES = {
    "encoder-layer": (encoder_layer, {}, (SOURCE,), {}),
    "encoder-layer-norm-first": (encoder_layer, {"norm_first": True, "activation": "gelu"}, (SOURCE,), {}),
    "encoder-layer-own-activation": (encoder_layer, {"activation": nn.SiLU()}, (SOURCE,), {}),
    "encoder": (encoder, {}, (SOURCE,), {}),
    "encoder-sequence-first": (encoder, {"batch_first": False}, (SOURCE,), {}),
    "encoder-causal": (encoder, {}, (TARGET, CAUSAL), {}),
    "encoder-causal-flag": (encoder, {}, (TARGET, CAUSAL), {"is_causal": True}),
    "encoder-bool-mask": (encoder, {}, (TARGET, CAUSAL < 0), {}),
    "encoder-padding": (encoder, {}, (SOURCE,), {"src_key_padding_mask": PADDING}),
    "decoder-layer": (decoder_layer, {}, (TARGET, SOURCE), {}),
    "decoder-layer-norm-first": (decoder_layer, {"norm_first": True}, (TARGET, SOURCE), {"tgt_mask": CAUSAL}),
    "decoder-layer-own-activation": (decoder_layer, {"activation": nn.SiLU()}, (TARGET, SOURCE), {}),
    "decoder": (
        lambda: nn.TransformerDecoder(decoder_layer(), 2),
        {},
        (TARGET, SOURCE),
        {"tgt_mask": CAUSAL, "memory_key_padding_mask": PADDING},
    ),
    "transformer": (lambda: nn.Transformer(SIZE, HEADS, 1, 1, 32, batch_first=True), {}, (SOURCE, TARGET), {}),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", CASES)
def test_it_is_one_graph_that_computes_the_same(name: str):
    make, options, args, kwargs = CASES[name]
    torch.manual_seed(0)
    net = make(**options).eval()
    captured = capture(net, args, example_kwargs=kwargs)
    with torch.no_grad(), without_fast_path():
        assert torch.allclose(captured.module(*args, **kwargs), net(*args, **kwargs), atol=1e-5)
    assert captured.graph_breaks == {}


def test_every_weight_of_an_encoder_and_both_products_are_quantized():
    prepared = detent.prepare(encoder().eval(), (SOURCE,), backend="onnxruntime")
    assert [entry.tensor for entry in prepared.plan.quantized if entry.role == "weight"] == [
        f"layers.{index}.{name}.weight"
        for index in range(2)
        for name in ("self_attn.in_proj_weight", "self_attn.out_proj", "linear1", "linear2")
    ]
    assert [op.runs for op in prepared.plan.ops if op.kind == "matmul"] == ["quantized"] * 4


class Decides(nn.Module):
    """Code that no tracing follows, around an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.encoder = nn.MultiheadAttention(SIZE, HEADS, batch_first=True), encoder_layer()

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e6:
            return x
        return self.encoder(self.attn(x, x, x, need_weights=False)[0], src_key_padding_mask=PADDING)


def test_inside_a_graph_break():
    torch.manual_seed(0)
    net = Decides().eval()
    captured = capture(net, (SOURCE,))
    assert list(captured.graph_breaks) == [""]
    assert {"attn", "encoder"} <= set(captured.regions)
    with torch.no_grad(), without_fast_path():
        assert torch.allclose(captured.module(SOURCE), net(SOURCE), atol=1e-5)


def test_the_fast_path_is_as_it_was():
    capture(encoder().eval(), (SOURCE,))
    assert torch.backends.mha.get_fastpath_enabled()
    with without_fast_path():
        assert not torch.backends.mha.get_fastpath_enabled()
