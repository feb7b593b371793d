"""onnxruntime-genai generates the words that transformers does with the weights of the file."""

import pytest
import torch

import detent
from detent.frontends.hugging_face import load_checkpoint
from detent.ir import StoredAs
from detent.targets.base.blocks import blocks_of
from tests.targets.onnxruntime_genai.families import SIZES, saved

pytestmark = pytest.mark.genai
og = pytest.importorskip("onnxruntime_genai", reason="needs the extra `genai`")

PROMPT, WORDS, END = [5, 7, 11, 20, 9], 32, SIZES["eos_token_id"]


def with_weights_of(artifact, model):
    """The model of transformers, with the numbers that the codes stand for."""
    graph, held = artifact.graph, dict(model.named_parameters(remove_duplicate=False))
    for op in graph.ops:
        blocks = blocks_of(graph, op)
        if blocks is not None:
            name = graph.stored_as.get(blocks.tensor, StoredAs(blocks.tensor)).parameter.removeprefix("model.")
            held[name].data.copy_(torch.from_numpy(blocks.real))
    return model


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi"])
def test_greedy_words_are_equal(family, tmp_path):
    import transformers

    source = saved(tmp_path / "model", family, **({"max_window_layers": 2} if family == "qwen2" else {}))
    model = load_checkpoint(source)
    prepared = detent.prepare(model, model.example(1, 8), backend="onnxruntime_genai", recipe="w4g32")
    detent.calibrate(prepared, [model.example(1, 8)])
    artifact = detent.deploy(prepared, tmp_path / "out")
    kind = transformers.AutoModelForCausalLM
    reference = with_weights_of(artifact, kind.from_pretrained(source, attn_implementation="eager").eval())
    ids = torch.tensor([PROMPT])
    made = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=WORDS, do_sample=False)
    parameters = og.GeneratorParams(running := og.Model(str(artifact.folder)))
    parameters.set_search_options(max_length=len(PROMPT) + WORDS)
    generator = og.Generator(running, parameters)
    generator.append_tokens(PROMPT)
    while not generator.is_done():
        generator.generate_next_token()
    wanted = [word for word in made[0].tolist() if word != END]  # which the other does not keep
    assert [int(word) for word in generator.get_sequence(0)] == wanted
    assert len(set(wanted)) > len(PROMPT) + 3
