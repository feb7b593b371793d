"""Language models as onnxruntime-genai takes them: with a cache, word by word, and its configuration."""

import json

import numpy as np
import onnx
import pytest
import torch

import detent
from detent.errors import EngineError
from detent.frontends.hugging_face import load_checkpoint
from detent.targets.base.onnx_session import open_session
from detent.targets.engines import ENGINES
from detent.targets.onnxruntime_genai.decoder import PARTS, NotADecoder
from detent.targets.onnxruntime_genai.decoder.rotary import tables
from detent.targets.onnxruntime_genai.file import FILE
from detent.targets.onnxruntime_genai.genai_config import GENAI_CONFIG
from tests.targets.onnxruntime_genai.families import saved

pytest.importorskip("transformers")

LENGTH = 8


def deployed(folder, source):
    model = load_checkpoint(source)
    prepared = detent.prepare(model, model.example(1, LENGTH), backend="onnxruntime_genai", recipe="w4g32")
    detent.calibrate(prepared, [model.example(1, LENGTH)])
    return detent.deploy(prepared, folder), prepared.eval()


def given_word_by_word(artifact, ids, first):
    """Scores after each word: `first` words at once, then one at a time, each with what was cached before it."""
    said = json.loads((artifact.folder / GENAI_CONFIG).read_text())["model"]["decoder"]
    session = open_session(artifact.folder / FILE, threads=1)
    names = [output.name for output in session.get_outputs()]
    forms = [(said["inputs"][f"past_{part}_names"], said["outputs"][f"present_{part}_names"]) for part in PARTS]
    layers = range(said["num_hidden_layers"])
    parts = [(past % layer, present % layer) for past, present in forms for layer in layers]
    empty = np.zeros((len(ids), said["num_key_value_heads"], 0, said["head_size"]), np.float32)
    past, scores = {name: empty for name, _ in parts}, []
    for start, end in [(0, first), *((at, at + 1) for at in range(first, ids.shape[1]))]:
        mask = np.ones((len(ids), end), np.int64)
        given = {said["inputs"]["input_ids"]: ids[:, start:end], said["inputs"]["attention_mask"]: mask}
        if "position_ids" in said["inputs"]:
            given[said["inputs"]["position_ids"]] = np.tile(np.arange(start, end), (len(ids), 1))
        made = dict(zip(names, session.run(None, {**given, **past}), strict=True))
        past = {name: made[present] for name, present in parts}
        scores.append(made[said["outputs"]["logits"]])
    return np.concatenate(scores, 1)


FAMILIES = {
    "llama": {},
    "llama-3.1": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                                      "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
    "mistral": {},
    "qwen2": {"max_window_layers": 2, "tie_word_embeddings": True},
    "qwen3": {"max_window_layers": 2},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0},  # another scale, and tanh of scores
    "gemma3_text": {"rope_local_base_freq": 100.0, "sliding_window": 16},  # two tables, norms behind the transpose
    "phi": {"partial_rotary_factor": 0.5},  # 8 numbers of a head turn, which attention itself does not do
    "phi3": {},  # queries, keys and values from one layer
}  # fmt: skip


@pytest.mark.slow  # captures and deploys a language model: 4 s
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.by_default("llama", "gemma3_text", "phi")
def test_words_one_by_one_have_the_scores_of_the_whole_sequence(family, tmp_path):
    source = saved(tmp_path / "model", family.partition("-")[0], **FAMILIES[family])
    artifact, simulated = deployed(tmp_path / "out", source)
    ids = np.random.default_rng(0).integers(0, 96, (2, LENGTH))
    with torch.no_grad():
        wanted = simulated(torch.from_numpy(ids), torch.ones(2, LENGTH, dtype=torch.int64)).numpy()
    found = given_word_by_word(artifact, ids, first=3)
    # float32 sums of 64 products and more, in another order, through two layers
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    assert (found.argmax(-1) == wanted.argmax(-1)).all()
    verdict = artifact.verify([(torch.from_numpy(ids), torch.ones(2, LENGTH, dtype=torch.int64))], latency=False)
    assert verdict.holds, str(verdict)
    kinds = [node.op_type for node in onnx.load_model(str(artifact.folder / FILE)).graph.node]
    assert kinds.count("GroupQueryAttention") == 2
    assert "Softmax" not in kinds


@pytest.mark.slow
def test_what_the_folder_says(tmp_path):
    source = saved(tmp_path / "model", "mistral", sliding_window=24)
    (source / "tokenizer.json").write_text("{}")
    (source / "generation_config.json").write_text('{"eos_token_id": [2, 5], "do_sample": true, "top_k": null}')
    artifact, _ = deployed(tmp_path / "out", source)
    assert (artifact.folder / "tokenizer.json").read_text() == "{}"
    said = json.loads((artifact.folder / GENAI_CONFIG).read_text())
    caches = said["model"]["decoder"].pop("inputs"), said["model"]["decoder"].pop("outputs")
    assert caches == (
        {"input_ids": "ids", "attention_mask": "mask", "past_key_names": "past_key_values.%d.key",
         "past_value_names": "past_key_values.%d.value"},
        {"logits": "output", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
    )  # fmt: skip
    assert said == {
        "model": {
            "type": "decoder", "vocab_size": 96, "context_length": 24,  # the window: up to there, there is none
            "bos_token_id": 1, "eos_token_id": [2, 5], "pad_token_id": 0,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []}, "filename": "nbits.onnx",
                "hidden_size": 64, "head_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
                "num_hidden_layers": 2,
            },
        },
        "search": {"max_length": 24, "past_present_share_buffer": True, "do_sample": True},
    }  # fmt: skip
    padded = {"ids": np.zeros((1, LENGTH), np.int64), "mask": np.array([[1] * 6 + [0] * 2])}
    with pytest.raises(EngineError, match="mask leaves words out"):
        ENGINES["onnxruntime_genai"].load(artifact).run(padded)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("gpt2", {}, "its inputs are ids, mask, not token ids and their mask"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "rotary positions"),
    ],
)
@pytest.mark.by_default("llama")
def test_a_model_that_it_does_not_generate_with_is_deployed_for_whole_sequences(family, changes, reason, tmp_path):
    artifact, _ = deployed(tmp_path / "out", saved(tmp_path / "model", family, **changes))
    (note,) = artifact.manifest["notes"]
    assert note.startswith("onnxruntime-genai does not generate words with it: ")
    assert reason in note
    assert GENAI_CONFIG not in artifact.manifest["files"]
    ids = np.arange(LENGTH)[None]
    found = ENGINES["onnxruntime_genai"].load(artifact).run({"ids": ids, "mask": np.ones_like(ids)})
    assert found["output"].shape == (1, LENGTH, 96)


def table_of(config, width=16, words=5):
    """As the network has it: each half of a head has the same angles."""
    angles = torch.outer(torch.arange(words).float(), config ** -(torch.arange(0, width, 2).float() / width))
    return tuple(part.repeat(1, 2).numpy() for part in (angles.cos(), angles.sin()))


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 100.0},
        {"rope_parameters": {"rope_theta": 100.0}},
        {"rope_parameters": {"full_attention": {"rope_theta": 7.0}, "sliding_attention": {"rope_theta": 100.0}}},
        {"rope_theta": 1e4, "rope_local_base_freq": 100.0},
    ],
)
def test_the_tables_go_on_as_the_network_begins(config):
    cos, sin = table_of(100.0, words=9)
    found = tables(config, cos[:5], sin[:5], 9)
    for made, whole in zip(found, (cos, sin), strict=True):
        np.testing.assert_allclose(made, whole[:, :8], rtol=0, atol=1e-6)  # two roundings of an angle below 9


@pytest.mark.parametrize(
    "config", [{}, {"rope_theta": 99.0}, {"rope_parameters": {"rope_theta": 100.0, "rope_type": "yarn"}}]
)
def test_other_tables_are_refused(config):
    with pytest.raises(NotADecoder, match=r"rotary positions are not what config\.json says"):
        tables(config, *table_of(100.0), 9)


@pytest.mark.parametrize(
    "config",
    [{"rope_parameters": 7}, {"rope_theta": "x"}, {"rope_theta": 10**400}, {"rope_theta": 0.0},
     {"rope_theta": 1.0, "rope_parameters": {"rope_type": "linear"}}],
    ids=lambda config: str(config)[:40],
)  # fmt: skip
def test_a_config_that_says_nonsense_of_positions_is_refused(config):
    with pytest.raises(NotADecoder, match=r"of config\.json cannot be read|are not what config\.json says"):
        tables(config, *table_of(100.0), 9)


def test_positions_of_more_words_than_fit_a_file_are_refused():
    with pytest.raises(NotADecoder, match=r"1,000,000,000,000 words, whose positions take more than 1,024 MB"):
        tables({"rope_theta": 100.0}, *table_of(100.0), 10**12)
