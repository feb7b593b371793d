"""A folder of Hugging Face's `save_pretrained`, from the command line to the engine."""

import json
import os
import re
import sys

import numpy as np
import pytest
import torch

import detent
from detent.cli import main
from detent.errors import CaptureError, DataError
from detent.frontends.hugging_face import load_checkpoint
from detent.targets.engines import ENGINES


@pytest.fixture(scope="module")
def transformers():
    """Which takes seconds to import: when a test needs it, not when tests are collected."""
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def llama(transformers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["detent", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    return 0


@pytest.mark.slow  # captures and deploys a whole Llama: 8 s
def test_quantize_a_folder_without_data_and_verify_it(llama, tmp_path, monkeypatch):
    out = tmp_path / "out"
    words = ("quantize", llama, "--backend", "onnxruntime_genai", "--recipe", "w4g32", "-o", out)
    assert run(monkeypatch, *words) == 0
    artifact = detent.Artifact.load(out)
    assert len(artifact.manifest["tensors"]) == 9  # the table, seven products of the layer, the head
    ids = np.arange(64)[None] % 48
    given = {"ids": ids, "mask": np.ones_like(ids)}
    found = ENGINES["onnxruntime_genai"].load(artifact).run(given)
    simulated = detent.twin.run(artifact, given, "weight_only")
    np.testing.assert_allclose(found["output"], simulated["output"], rtol=0, atol=1e-5)  # float32 sums of 64 products


def test_a_recipe_that_measures_needs_data(llama, tmp_path, monkeypatch, capsys):
    words = ("quantize", llama, "--backend", "onnxruntime_genai", "--recipe", "w4g32_gptq", "-o", tmp_path / "out")
    assert run(monkeypatch, *words) == 2
    assert "quantize without --data" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_it_gives_is_what_the_model_gives(transformers, llama):
    network = load_checkpoint(llama)
    ids, mask = network.example(2, 8)
    plain = transformers.LlamaForCausalLM.from_pretrained(llama, attn_implementation="eager")
    with torch.no_grad():
        torch.testing.assert_close(network(ids, mask), plain(input_ids=ids, attention_mask=mask).logits)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"architectures": ["os"]}, "its architecture is os"),
        ({"architectures": ["MyOwnModel"], "auto_map": {"AutoModel": "mine.MyOwnModel"}}, "its architecture is MyOwn"),
        ({"architectures": None}, "its architecture is not named"),
    ],
    ids=["no-model", "remote-code", "none"],
)
def test_classes_that_are_not_of_transformers_are_refused(llama, tmp_path, changes, found):
    config = json.loads((llama / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    (tmp_path / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes())
    (tmp_path / "mine.py").write_text("raise SystemExit('this code must not run')")
    with pytest.raises(CaptureError, match=found):
        load_checkpoint(tmp_path)


def test_weights_must_be_safetensors(llama, tmp_path):
    (tmp_path / "config.json").write_bytes((llama / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(CaptureError, match=r"it has no \.safetensors file"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "found"),
    [
        ("config.json", {"architectures": 5}, "TypeError"),
        ("config.json", {"hidden_size": 64}, "RuntimeError"),
        ("config.json", {"num_hidden_layers": 10**9}, "num_hidden_layers: 1,000,000,000, and the files hold 12"),
        ("config.json", {"num_labels": 10**9}, "num_labels: 1,000,000,000"),
        ("config.json", {"num_hidden_layers": 2}, "it lacks 9 weights of LlamaForCausalLM"),
        ("config.json", {"head_dim": 0}, "ZeroDivisionError"),
        ("config.json", b"[" * 100_000, "RecursionError"),
        ("config.json", b" " * 2**23, "at most 4,194,304 are read"),
        ("model.safetensors", b"\xff" * 99, "SafetensorError"),
        ("model.safetensors.index.json", {"weight_map": {"w": "../model.safetensors"}}, "a file elsewhere"),
        ("model.safetensors.index.json", {"weight_map": {"w": 5}}, "TypeError"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value)[:40],
)
def test_damaged_folders_are_refused(llama, tmp_path, file, content, found):
    """Missing weights would be random ones, and a model of many layers is built for hours."""
    config = json.loads((llama / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes())
    if isinstance(content, dict):
        content = json.dumps({**config, **content} if file == "config.json" else content).encode()
    (tmp_path / file).write_bytes(content)
    with pytest.raises(CaptureError, match=re.escape(found)):
        load_checkpoint(tmp_path)


def test_pipes_in_a_folder_are_not_waited_for(llama, tmp_path):
    os.mkfifo(tmp_path / "config.json")
    (tmp_path / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes())
    with pytest.raises(CaptureError, match="it is not a regular file"):
        load_checkpoint(tmp_path)


def test_hqq_needs_no_data(llama):
    from detent.cli.quantize import _without_data
    from detent.recipes import Recipe

    (batch,) = _without_data(load_checkpoint(llama), Recipe.named("w4g32_hqq"))
    assert batch[0].shape == (1, 64)
    with pytest.raises(DataError, match="quantize without --data"):
        _without_data(load_checkpoint(llama), Recipe.named("w4g32_awq"))


@pytest.mark.parametrize("kind", ["ViTForImageClassification", "T5ForConditionalGeneration"])
def test_models_of_other_inputs_are_refused_with_what_would_do(transformers, tmp_path, kind):
    model = getattr(transformers, kind)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    if kind.startswith("T5"):
        sizes = {"vocab_size": 8, "d_model": 8, "d_kv": 8, "d_ff": 8, "num_layers": 1, "num_heads": 1}
    model(model.config_class(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(CaptureError, match=f"{kind} takes more or other things than token ids") as refused:
        load_checkpoint(tmp_path)
    assert "detent.quantize" in refused.value.to_do
