"""Quantized KV caches: KIVI's arithmetic by hand, and real models of transformers."""

from __future__ import annotations

import pytest
import torch

from detent.errors import SchemeError
from detent.kv_cache import quantized_cache, rounded_keys, rounded_values

transformers = pytest.importorskip("transformers")


def by_hand(x, bits, dims):
    low, high = x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)
    step = (high - low) / (2**bits - 1)
    return torch.round((x - low) / step) * step + low


def test_keys_have_a_range_for_each_channel_over_tokens() -> None:
    keys = torch.randn(2, 3, 8, 5)
    expected = torch.cat([by_hand(keys[:, :, :4], 2, (2,)), by_hand(keys[:, :, 4:], 2, (2,))], 2)
    torch.testing.assert_close(rounded_keys(keys, 2, 4), expected)


def test_values_have_a_range_for_each_token_over_channels() -> None:
    values = torch.randn(2, 3, 5, 8)
    expected = torch.cat([by_hand(values[..., :4], 3, (3,)), by_hand(values[..., 4:], 3, (3,))], 3)
    torch.testing.assert_close(rounded_values(values, 3, 4), expected)
    torch.testing.assert_close(rounded_values(values, 3, 6), by_hand(values, 3, (3,)))  # 8 are no whole groups of 6


def test_a_literal_group() -> None:
    """5 to 6 in 3 steps: zero is not in the range, so that a channel far from zero keeps its precision."""
    keys = torch.tensor([5.0, 5.3, 5.6, 6.0]).reshape(1, 1, 4, 1)
    torch.testing.assert_close(rounded_keys(keys, 2, 4).flatten(), torch.tensor([5.0, 5 + 1 / 3, 5 + 2 / 3, 6.0]))
    same = torch.full((1, 1, 4, 1), 7.25)
    assert torch.equal(rounded_keys(same, 2, 4), same)


def test_what_is_rounded_when() -> None:
    """Groups of 4, of which the last 6 tokens stay float; each number is rounded once."""
    layer_of = quantized_cache(2, group=4, residual=6)
    whole = torch.randn(2, 2, 1, 2, 17, 8)
    at, kept = 0, None
    for count in (7, 1, 1, 1, 4, 3):
        keys, values = whole[0, ..., at : at + count, :], whole[1, ..., at : at + count, :]
        found, _ = layer_of.update(keys[0], values[0], 0)
        at += count
        done = (at - 6) // 4 * 4
        exact = whole[0, 0, ..., :at, :]
        assert torch.equal(found[:, :, done:], exact[:, :, done:])
        if done:
            torch.testing.assert_close(found[:, :, :done], rounded_keys(exact[:, :, :done], 2, 4))
            assert not torch.equal(found[:, :, :done], exact[:, :, :done])
        if kept is not None:
            assert torch.equal(found[:, :, : kept.shape[2]], kept)
        kept = found[:, :, :done].clone() if done else kept
    assert at == 17


def test_the_gradient_passes() -> None:
    keys = torch.randn(1, 1, 4, 2, requires_grad=True)
    rounded_keys(keys, 4, 4).sum().backward()
    assert keys.grad is not None
    assert torch.equal(keys.grad, torch.ones_like(keys))


MODELS = {
    "llama": lambda: transformers.LlamaConfig(num_key_value_heads=2, **SMALL),
    "qwen2": lambda: transformers.Qwen2Config(num_key_value_heads=2, **SMALL),
    "gpt2": lambda: transformers.GPT2Config(n_embd=64, n_head=4, n_layer=2, vocab_size=96, n_positions=128),
}
SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_models_of_transformers(name: str) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name]()).eval()
    ids = torch.randint(0, 96, (2, 40))
    exact = model(ids).logits

    def off(cache) -> float:
        return float((model(ids, past_key_values=cache).logits - exact).pow(2).mean() / exact.pow(2).mean())

    assert off(quantized_cache(2, group=8, residual=64)) < 1e-10  # all of it is in the residual
    errors = [off(quantized_cache(bits, group=8, residual=0)) for bits in (8, 4, 2)]
    assert 0 < errors[0] < 1e-4
    assert errors[0] * 16 < errors[1]
    assert errors[1] * 4 < errors[2]
    assert off(quantized_cache(16, value_bits=2, group=8, residual=0)) > errors[0]


@torch.no_grad()
def test_generating_word_by_word_is_one_pass_where_groups_fill_up_together() -> None:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(MODELS["llama"]()).eval()
    ids = torch.randint(0, 96, (1, 6))
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    exact = model.generate(ids, **options)
    fine = model.generate(ids, past_key_values=quantized_cache(8, group=4, residual=0), **options)
    assert torch.equal(fine, exact)
    cache = quantized_cache(2, group=4, residual=0)
    coarse = model.generate(ids, past_key_values=cache, **options)
    assert coarse.shape == exact.shape
    assert cache.layers[0].rounded == 24


@pytest.mark.parametrize("options", [{"group": 0}, {"residual": -1}, {"bits": 1}, {"value_bits": 40}])
def test_what_there_is_not(options) -> None:
    with pytest.raises(SchemeError):
        quantized_cache(**options)
