"""Language models a layer at a time: the numbers of the whole model, and what is refused."""

import gc
import json
import sys
import weakref

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import detent
from detent.algorithms import Change
from detent.cli import main
from detent.errors import ArtifactError, CaptureError, DataError, DeployError, RecipeError
from detent.frontends.hugging_face import load_checkpoint
from detent.layerwise import quantize as layerwise_quantize
from detent.layerwise import quantize_checkpoint, why_not
from detent.layerwise.skeleton import Batch, Skeleton
from detent.recipes import Recipe
from tests.layerwise.models import batches, saved

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("tied"), tie_word_embeddings=True)


def tensors_of(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def quantized(model, folder, recipe, data=None):
    return quantize_checkpoint(model, data, backend="compressed_tensors", recipe=recipe, folder=folder)


FAMILIES = {
    "Llama": {},
    "Qwen2": {"max_window_layers": 2},
    "Qwen3": {"head_dim": 16, "max_window_layers": 2},
    "Mistral": {"sliding_window": 4},
    "Phi": {},
    "Phi3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "Gemma": {"head_dim": 16},
    "Gemma2": {"head_dim": 16, "sliding_window": 4, "final_logit_softcapping": 5.0},
    "Gemma3Text": {"head_dim": 16, "sliding_window": 4},
    "Granite": {"logits_scaling": 3.0, "embedding_multiplier": 2.0},
    "Olmo2": {"bos_token_id": 1, "eos_token_id": 2},
    "SmolLM3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_skeleton_computes_what_the_model_does(tmp_path, family):
    folder = saved(tmp_path, family, **FAMILIES[family])
    batch = Batch(*batches(1)[0])
    skeleton = Skeleton(folder)
    ((hidden, calls),) = skeleton.enter([batch])
    with torch.no_grad():
        for index, call in enumerate(calls):
            hidden = skeleton.layer(index)(hidden, *call.args, **call.kwargs)
        head = skeleton.head()
        (scores,) = skeleton.leave([batch], [hidden], lambda _, x: head(x))
        assert torch.equal(scores, load_checkpoint(folder)(*batch))


@pytest.mark.slow  # captures the whole model too: 6 s each
@pytest.mark.parametrize(
    ("family", "changes", "recipe"),
    [
        pytest.param("Llama", {}, "w4g32", id="llama-rounded"),
        pytest.param("Llama", {"tie_word_embeddings": True}, "w4g32_gptq", id="tied-gptq"),
        pytest.param("Qwen2", {"max_window_layers": 2}, "w4g32_gptq", id="qwen-gptq", marks=pytest.mark.full),
        pytest.param(
            "Mistral", {"sliding_window": 4}, "w4g32_autoround", id="mistral-autoround", marks=pytest.mark.full
        ),
        pytest.param("Phi", {}, "w4g32_hqq", id="phi-hqq", marks=pytest.mark.full),
    ],
)
def test_the_numbers_are_those_of_the_whole_model(tmp_path, family, changes, recipe):
    folder = saved(tmp_path / "model", family, **changes)
    result = quantized(folder, tmp_path / "layers", recipe, batches())
    whole = detent.quantize(
        load_checkpoint(folder), batches(), backend="compressed_tensors", recipe=recipe, folder=tmp_path / "whole"
    )
    found, expected = tensors_of(tmp_path / "layers"), tensors_of(tmp_path / "whole")
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name].to(expected[name].dtype), expected[name])] == []
    said, wanted = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("layers", "whole"))
    groups = [one.pop("quantization_config")["config_groups"]["group_0"] for one in (said, wanted)]
    assert said == wanted
    assert set(groups[0].pop("targets")) == set(groups[1].pop("targets"))
    assert groups[0] == groups[1]
    notes = whole.prepared.algorithm_notes
    if notes and notes[-1].outputs is not None:
        assert result.noise == pytest.approx(notes[-1].outputs.after, rel=1e-9)
        places = {(c.place.removeprefix("model."), c.kept) for c in notes[-1].changes}
        assert {(c.place, c.kept) for c in result.changes if c.place != "outputs"} == places


def test_one_layer_is_in_memory_at_a_time(llama, tmp_path, monkeypatch):
    seen, alive = [], []

    def watched(part, *rest, **options):
        alive.append(sum(one() is not None for one in seen))
        # What `prepare` makes of the part refers to its modules, not to the part.
        seen.extend(weakref.ref(module) for module in part.module.modules() if isinstance(module, torch.nn.Linear))
        return quantize_part(part, *rest, **options)

    quantize_part = layerwise_quantize.quantize_part
    monkeypatch.setattr(layerwise_quantize, "quantize_part", watched)
    gc.disable()
    try:
        quantized(llama, tmp_path / "out", "w4g32")
    finally:
        gc.enable()
    assert alive == [0, 0, 0]
    assert len(seen) == 15


@pytest.mark.slow  # two runs of 3 s
def test_an_algorithm_that_harms_the_outputs_is_undone(llama, tmp_path, monkeypatch):
    worse = Change(place="outputs", before=0.1, after=0.2, kept=False)
    monkeypatch.setattr(layerwise_quantize, "verdict", lambda *_: ((), worse))
    result = quantized(llama, tmp_path / "undone", "w4g32_gptq", batches())
    assert (result.undone["after"], result.changes, result.noise) == (0.2, (), None)
    assert "all undone, noise at the outputs 0.1 would become 0.2" in str(result)
    plain = Recipe.named("w4g32_gptq").replace(algorithms=())
    quantized(llama, tmp_path / "plain", plain)
    found, expected = tensors_of(tmp_path / "undone"), tensors_of(tmp_path / "plain")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert sorted(path.suffix for path in (tmp_path / "undone").iterdir()).count(".safetensors") == 3, "no states left"


def test_rules_name_layers_as_they_do_for_the_whole_model(llama, tmp_path):
    recipe = Recipe.named("w4g32").replace(
        exclude=["model.model.layers.0.*", "model.lm_head"],
        rules=[{"match": {"name": "*.mlp.*"}, "weight": {"granularity": {"per_group": 64}, "bits": 8}}],
    )
    result = quantized(llama, tmp_path / "out", recipe)
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    groups = {group["weights"]["num_bits"]: group["targets"] for group in config["config_groups"].values()}
    assert groups[8] == ["model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"]  # 64 does not divide 96
    assert groups[4] == [f"model.layers.1.self_attn.{part}_proj" for part in "qkvo"]
    assert "lm_head" in config["ignore"]
    assert len(config["ignore"]) == 9
    tensors = tensors_of(tmp_path / "out")
    assert torch.equal(
        tensors["model.layers.0.mlp.up_proj.weight"], tensors_of(llama)["model.layers.0.mlp.up_proj.weight"]
    )
    why = {line["tensor"]: line["why"] for line in result.plan if line["as"] == "float"}
    assert why["model.layers.0.mlp.up_proj.weight"] == "the recipe says so"
    assert "64" in why["model.layers.1.mlp.down_proj.weight"]
    with pytest.raises(RecipeError, match=r"rules\[0\]"):
        quantized(llama, tmp_path / "no", recipe.replace(rules=[{"match": {"name": "nothing"}}]))


def test_a_float_head_that_shares_the_table_is_written(tied, tmp_path):
    quantized(tied, tmp_path / "out", Recipe.named("w4g32").replace(exclude=["model.lm_head"]))
    tensors = tensors_of(tmp_path / "out")
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("backend", "recipe", "found"),
    [
        ("onnxruntime_genai", "w4g32", "the target writes whole models; compressed_tensors can"),
        ("compressed_tensors", "w4g32_awq", "awq works on the whole model"),
        ("compressed_tensors", "ptq", "calibration.correct_biases works on the whole model"),
        ("compressed_tensors", "q4_0", "the mix 'q4_0' is decided on the whole model"),
        ("compressed_tensors", "w4g32_gptq", None),
    ],
)
def test_what_needs_the_whole_model(backend, recipe, found):
    assert why_not(backend, Recipe.named(recipe)) == found


def test_what_is_refused(llama, tmp_path):
    with pytest.raises(DataError, match="no data is given"):
        quantized(llama, tmp_path / "out", "w4g32_gptq")
    with pytest.raises(DeployError, match=r"model.layers.0.self_attn.q_proj.weight.*\n.*e4m3"):
        quantized(llama, tmp_path / "out", "fp8")
    both = Recipe.named("w4g32_gptq").replace(algorithms=[{"name": "gptq"}, {"name": "hqq"}])
    with pytest.raises(RecipeError, match="gptq is not the last algorithm"):
        quantized(llama, tmp_path / "out2", both, batches())
    with pytest.raises(DataError, match="token ids and their mask"):
        quantized(llama, tmp_path / "out3", "w4g32", [(torch.zeros(1, 4), torch.zeros(1, 5))])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"none of this, as notes\.txt"):
        quantized(llama, tmp_path / "taken", "w4g32")


def test_a_finished_folder_is_left_alone_and_another_request_refused(llama, tmp_path):
    first = quantized(llama, tmp_path / "out", "w4g32")
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert quantized(llama, tmp_path / "out", "w4g32") == first
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == times
    with pytest.raises(ArtifactError, match="begun with another recipe"):
        quantized(llama, tmp_path / "out", "w4g128")


def test_the_tokenizer_is_copied(tmp_path):
    model = saved(tmp_path / "model")
    (model / "tokenizer.json").write_text("{}")
    quantized(model, tmp_path / "out", "w4g32")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"


def test_a_checkpoint_that_lacks_a_layer_is_refused(llama, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for path in llama.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(CaptureError, match=r"no tensor model\.layers\.2"):
        quantized(folder, tmp_path / "out", "w4g32")


@pytest.mark.parametrize(
    "name",
    ["model.embed_tokens.weight", "model.layers.1.input_layernorm.weight", "model.layers.0.mlp.up_proj.weight",
     "model.norm.weight", "lm_head.weight"],
)  # fmt: skip
def test_a_parameter_that_is_not_finite_is_refused(tmp_path, name):
    folder = saved(tmp_path / "model")
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        if name in tensors:
            tensors[name].view(-1)[3] = float("nan") if "norm" in name else float("-inf")
            save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(DeployError, match=rf"the parameter {name} has 1 of [\d,]+ numbers that are infinite or NaN"):
        quantized(folder, tmp_path / "out", Recipe.named("w4g32").replace(exclude=["model.lm_head"]))
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(
    "damage", [b"{", b'{"layers_version": 2}', b'{"layers_version": 1, "request": 5}', b"[" * 99999]
)
def test_a_damaged_journal_is_refused(llama, tmp_path, damage):
    (tmp_path / "layers.json").write_bytes(damage)
    with pytest.raises(ArtifactError, match=r"layers\.json cannot be read"):
        quantized(llama, tmp_path, "w4g32")


@pytest.mark.parametrize(
    "part",
    [7, {}, {"plan": [7], "widths": {}, "changes": []}, {"plan": [{"tensor": 7}], "widths": {}, "changes": []},
     {"plan": [], "widths": {"w": [4]}, "changes": []}, {"plan": [], "widths": {"w": "48"}, "changes": []},
     {"plan": [], "widths": {}, "changes": [{"place": "w"}]}, {"plan": [{"tensor": "w"}], "widths": {}, "changes": []},
     {"plan": [], "widths": {}, "changes": [{"place": 7, "before": 1, "after": 1, "kept": True}]},
     {"plan": [], "widths": {}, "changes": [{"place": "w", "before": "x", "after": 1, "kept": True}]},
     {"plan": [], "widths": {}, "changes": [], "noise": -1},
     {"plan": [], "widths": {}, "changes": [], "noise": 10**400},
     {"plan": [], "widths": {}, "changes": [], "noise": []}, None],
)  # fmt: skip
def test_a_journal_with_a_part_that_is_none_is_refused(llama, tmp_path, part):
    quantized(llama, tmp_path, "w4g32")
    said = json.loads((tmp_path / "layers.json").read_text())
    said["parts"] = [] if part is None else [*said["parts"], part]
    (tmp_path / "layers.json").write_text(json.dumps(said))
    with pytest.raises(ArtifactError, match=r"layers\.json cannot be read"):
        quantized(llama, tmp_path, "w4g32")


def test_a_journal_whose_result_cannot_be_said_is_refused(llama, tmp_path):
    quantized(llama, tmp_path, "w4g32")
    said = json.loads((tmp_path / "layers.json").read_text())
    (tmp_path / "layers.json").write_text(json.dumps({**said, "undone": {"before": 1.0}}))
    with pytest.raises(ArtifactError, match=r"layers\.json cannot be read"):
        quantized(llama, tmp_path, "w4g32")


def test_a_shard_that_is_damaged_is_named(llama, tmp_path):
    quantized(llama, tmp_path, "w4g32")
    said = json.loads((tmp_path / "layers.json").read_text())
    (tmp_path / "layers.json").write_text(json.dumps({**said, "finished": False}))
    shard = min(tmp_path.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(ArtifactError, match=shard.name):
        quantized(llama, tmp_path, "w4g32")


def test_transformers_loads_it(llama, tmp_path):
    pytest.importorskip("compressed_tensors", reason="pip install compressed-tensors")
    import transformers

    quantized(llama, tmp_path / "out", "w4g32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids, mask = batches(1)[0]
    whole = detent.quantize(load_checkpoint(llama), [(ids, mask)], backend="compressed_tensors", recipe="w4g32",
                            folder=tmp_path / "whole")  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(model(ids, mask).logits, whole.prepared(ids, mask), rtol=1e-4, atol=1e-4)


class TestCommandLine:
    def run(self, monkeypatch, *words):
        monkeypatch.setattr(sys, "argv", ["detent", *map(str, words)])
        try:
            main()
        except SystemExit as end:
            return end.code or 0
        return 0

    def test_a_folder_goes_layer_by_layer_where_the_target_can(self, llama, tmp_path, monkeypatch, capsys):
        np.savez(tmp_path / "words.npz", ids=np.arange(64).reshape(4, 16) % 48, mask=np.ones((4, 16), np.int64))
        words = ("quantize", llama, "--backend", "compressed_tensors", "--recipe", "w4g32", "-o", tmp_path / "out",
                 "--data", tmp_path / "words.npz")  # fmt: skip
        assert self.run(monkeypatch, *words) == 0
        out = capsys.readouterr().out
        assert "15 linear layers quantized, 0 float" in out
        assert "outputs: " in out
        assert (tmp_path / "out" / "model.safetensors.index.json").exists()
        assert self.run(monkeypatch, *words, "--json") == 0
        assert json.loads(capsys.readouterr().out)["noise"] > 0

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--layer-by-layer", "--report"), "--layer-by-layer with --report"),
            (("--layer-by-layer", "--backend", "onnxruntime_genai"), "the target writes whole models"),
            (("--size", "ids=2"), "--size with a Hugging Face folder"),
        ],
        ids=["report", "target", "size"],
    )
    def test_what_does_not_go_layer_by_layer(self, llama, tmp_path, monkeypatch, capsys, words, said):
        first = ("quantize", llama, "--backend", "compressed_tensors", "--recipe", "w4g32", "-o", tmp_path / "out")
        assert self.run(monkeypatch, *first, *words) == 2
        assert said in capsys.readouterr().err
