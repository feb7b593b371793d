"""llama.cpp against the twin, operation by operation."""

import numpy as np
import pytest
import torch

import detent
from detent.errors import EngineError
from detent.ir import Op
from detent.ir.roundoff import ErrorBound, error_bounds
from detent.targets.engines import ENGINES
from detent.targets.gguf.arithmetic import Ggml, round_activations
from tests.targets.gguf.llama import TOKENS, deployed


def test_activations_are_rounded_block_by_block():
    x = torch.zeros(1, 64)
    x[0, :3], x[0, 32:35] = torch.tensor([-127.0, 0.5, 1.5]), torch.tensor([1.0, -0.3, 0.1])
    codes, scale = round_activations(x, 32)
    assert codes[0, 0, :3].tolist() == [-127, 0, 2]  # ties to even
    assert codes[0, 1, :3].tolist() == [127, -38, 13]
    assert scale[0].tolist() == [1.0, float(torch.tensor(1 / 127).half())]
    wide, step = round_activations(-x.repeat(1, 4), 256)
    assert wide[0, 0, :3].tolist() == [-127, 0, 2]  # the largest number becomes -127, and its sign is in the scale
    assert step.tolist() == [[-1.0]]


@pytest.mark.parametrize("block", [32, 256])
def test_the_bound_holds_for_sums_in_float32(block):
    """And is less than what one code of an activation changes at a middling weight."""
    rng = np.random.default_rng(block)
    x = torch.from_numpy(rng.standard_normal((5, 512)).astype(np.float32))
    weight = torch.from_numpy(rng.integers(-8, 8, (512, 6)).astype(np.float32) / 100)
    reach = torch.full((16, 6), 0.08)
    op = Op("GgmlMulMat", "y", (), ("y",), {"block_size": block, "transB": 0})
    bounds = [ErrorBound(each) for each in (x, weight, reach)]
    (bound,) = error_bounds(op, lambda *given: Ggml.product.multiply(op, *given), bounds, Ggml.product.error)
    codes, scale = round_activations(x, block)
    blocks = torch.einsum("nbk,bko->nbo", codes, weight.reshape(-1, block, 6)) * scale[..., None]  # in float32
    assert ((blocks.sum(1) - bound.value).abs() <= bound.spread).all()
    assert bound.spread.median() < scale.abs().median() * 0.04


@pytest.mark.gguf
@pytest.mark.parametrize("recipe", ["q8_0", "q4_0", "q4_k_m"])
def test_engine_and_twin_agree(tmp_path, recipe):
    pytest.importorskip("xllamacpp", reason="needs the extra `gguf`")
    artifact = deployed(tmp_path / "out", recipe, num_hidden_layers=1)
    verdict = artifact.verify([TOKENS], latency=False)
    assert verdict.holds, str(verdict)
    compared = {found.tensor: found for found in verdict.tensors if found.what == "twin vs engine"}
    products = {placed["op"] for placed in verdict.placements if placed["ran_as"] == "integer"}
    assert len(products) == 8
    assert products <= compared.keys()


@pytest.mark.gguf
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_families_with_biases_and_with_norms_of_heads(tmp_path, family):
    """Their rotary positions turn the halves of a head, as transformers does."""
    pytest.importorskip("xllamacpp", reason="needs the extra `gguf`")
    artifact = deployed(tmp_path / "out", "q8_0", model_type=family)
    verdict = artifact.verify([TOKENS], latency=False)
    assert verdict.holds, str(verdict)
    compared = {found.tensor.removesuffix(".matmul") for found in verdict.tensors if found.what == "twin vs engine"}
    products = {placed["op"].removesuffix("/MatMul") for placed in verdict.placements if placed["ran_as"] == "integer"}
    assert len(products) == 8
    assert products - compared == {"layers_0_self_attn_o_proj"}  # llama.cpp gives its output no name


@pytest.mark.gguf
def test_a_wrong_twin_is_found(tmp_path):
    """Activations that are not rounded: the difference is one of eight bits, far above the bound."""
    pytest.importorskip("xllamacpp", reason="needs the extra `gguf`")
    artifact = deployed(tmp_path / "out", "q8_0")
    assert not artifact.verify([TOKENS], latency=False, arithmetic="weight_only").holds


@pytest.mark.gguf
def test_what_it_cannot_run_is_refused(tmp_path):
    pytest.importorskip("xllamacpp", reason="needs the extra `gguf`")
    engine = ENGINES["llama_cpp"].load(deployed(tmp_path / "out", "q8_0"))
    with pytest.raises(EngineError, match="a token is not one of 40"):
        engine.run({"tokens": TOKENS.numpy() + 30})
    found = engine.run({"tokens": TOKENS.numpy()})["output"]
    plain = ENGINES["llama_cpp"].load(detent.Artifact.load(tmp_path / "out"), as_float=True)
    other = plain.run({"tokens": TOKENS.numpy()})["output"]
    assert 0 < np.abs(found - other).max() < 0.1 * np.abs(other).max()
