"""Tokenizers of Hugging Face folders in GGUF: the values, and that llama.cpp makes the same tokens of a text."""

import ctypes
import json
import struct

import pytest
import torch

import detent
from detent.targets.gguf.container import read
from detent.targets.gguf.file import FILE, SIZES
from detent.targets.gguf.sentencepiece import read_pieces
from detent.targets.gguf.tokenizer import NoTokenizer, tokenizer_values
from tests.targets.gguf.llama import TOKENS, Llama

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
MARK = "\u2581"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}
QWEN2 = {**SPLIT, "pattern": {"Regex": LLAMA3.replace("{1,3}", "")}}
BOS = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
       "special_tokens": {"<s>": {"ids": [1]}}}  # fmt: skip
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
MARKED = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, REPLACE]}


def spoken(**changes):
    """A tokenizer.json of SentencePiece's kind, as converters write it."""
    special = ["<unk>", "<s>", "</s>"]
    words = [*special, *BYTES, MARK, "a", "b", f"{MARK}a", "ab"]
    model = {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "vocab": {w: i for i, w in enumerate(words)},
             "merges": [[MARK, "a"], ["a", "b"]]}  # fmt: skip
    added = [{"id": number, "content": word, "special": True} for number, word in enumerate(special)]
    return {"added_tokens": added, "normalizer": MARKED, "pre_tokenizer": None, "post_processor": BOS, "model": model,
            **changes}  # fmt: skip


def of_bytes(*steps, **changes):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], **changes}
    return {"model": model, "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(steps)}}


def values(whole, words=300, **files):
    return tokenizer_values({"tokenizer.json": json.dumps(whole).encode(), **files}, words)


def test_pieces_with_scores():
    said = json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ x }}"}).encode()
    found = values(spoken(), words=266, **{"tokenizer_config.json": said})
    assert found.pop("tokenizer.ggml.tokens")[259:] == [MARK, "a", "b", f"{MARK}a", "ab", "[PAD264]", "[PAD265]"]
    assert found.pop("tokenizer.ggml.scores")[256:] == [0.0, 0.0, 0.0, -2.0, -2.0, -2.0, 0.0, -1.0, -1e4, -1e4]
    assert found.pop("tokenizer.ggml.token_type") == [2, 3, 3, *[6] * 256, *[1] * 5, 5, 5]
    assert found == {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default", "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.chat_template": "{{ x }}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("whole", "split"),
    [
        (of_bytes(SPLIT, BYTE_LEVEL, ignore_merges=True), "llama-bpe"),
        (of_bytes(QWEN2, BYTE_LEVEL), "qwen2"),
        ({**of_bytes(QWEN2, BYTE_LEVEL), "normalizer": {"type": "NFC"}}, "qwen2"),
        (of_bytes({**BYTE_LEVEL, "use_regex": True}), "gpt-2"),
        (of_bytes({"type": "Digits", "individual_digits": True}, {**BYTE_LEVEL, "use_regex": True}), "smollm"),
    ],
)
def test_merges_of_bytes(whole, split):
    assert values(whole, words=3) == {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": split, "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.token_type": [1, 1, 1], "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": False,
    }  # fmt: skip


UNORDERED = spoken()
UNORDERED["model"] = {**UNORDERED["model"], "merges": [["a", "b"], [MARK, "a"], ["a", "b"]]}


@pytest.mark.parametrize(
    ("whole", "reason"),
    [
        (of_bytes({**SPLIT, "pattern": {"Regex": r"\w+"}}, BYTE_LEVEL), "has no name for"),
        ({**of_bytes(SPLIT, BYTE_LEVEL, ignore_merges=True), "normalizer": {"type": "NFC"}}, "has no name for"),
        (of_bytes(SPLIT, BYTE_LEVEL), "merges within whole words otherwise"),
        (of_bytes(type="Unigram"), "Unigram, not BPE"),
        (of_bytes(vocab={"a": 0, "b": 5}), "have gaps"),
        (of_bytes(SPLIT, BYTE_LEVEL, vocab=[]), "not one that is known"),
        (UNORDERED, "do not follow one another"),
        (spoken(normalizer={"type": "Lowercase"}), "changes a text by Lowercase"),
        (spoken(normalizer=None), "does not mark spaces"),
        (spoken(post_processor={"type": "BertProcessing"}), "around a text by BertProcessing"),
        (spoken(post_processor={**BOS, "special_tokens": {"<s>": {"ids": [2**40]}}}), "which is no token"),
        (spoken(post_processor={**BOS, "special_tokens": {"<s>": {"ids": ["<s>"]}}}), "which is no token"),
        ([], "tokenizer.json is not JSON of a tokenizer"),
    ],
)
def test_others_are_refused(whole, reason):
    with pytest.raises(NoTokenizer, match=reason):
        values(whole)


@pytest.mark.parametrize(
    "damaged", [{"model": {**spoken()["model"], "vocab": {"a": 1e999}}}, {"post_processor": {**BOS, "single": [{}]}}]
)
def test_a_damaged_file_is_no_tokenizer(damaged):
    with pytest.raises(NoTokenizer):
        values(spoken(**damaged))


def test_a_template_that_is_no_text_is_refused():
    with pytest.raises(NoTokenizer, match=r"chat_template\.jinja is not text"):
        values(spoken(), **{"chat_template.jinja": b"\xff{{"})


def test_more_tokens_than_the_model_has_are_refused():
    with pytest.raises(NoTokenizer, match="264 tokens, and the model 40"):
        values(spoken(), words=40)


def model_of_sentencepiece(pieces, *, kind=2, prefix=True):
    def field(number, content):
        assert len(content) < 128
        return bytes([number << 3 | 2, len(content)]) + content

    made = b""
    for text, score, type_ in pieces:
        made += field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, type_]))
    return made + field(2, bytes([0x18, kind])) + field(3, bytes([0x18, prefix]))


def test_a_model_of_sentencepiece():
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), (f"{MARK}a", -0.5, 1)]
    content = model_of_sentencepiece(pieces, prefix=False)
    assert read_pieces(content) == (pieces, True, False)
    found = tokenizer_values({"tokenizer.model": content}, 4)
    assert found["tokenizer.ggml.scores"] == [0.0, 0.0, 0.0, -0.5]
    assert [found[f"tokenizer.ggml.{name}_token_id"] for name in ("unknown", "bos", "eos")] == [0, 1, 2]
    with pytest.raises(NoTokenizer, match="unigram"):
        tokenizer_values({"tokenizer.model": model_of_sentencepiece(pieces, kind=1)}, 4)
    for cut in range(1, len(content), 5):
        try:
            tokenizer_values({"tokenizer.model": content[:cut]}, 4)
        except NoTokenizer:
            continue


def trained(kind):
    """A tokenizer of 400 tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    text = [f"{one} {other} said: don't stop 12{number}!" for number, one in enumerate(("the", "Lily", "there"))
            for other in ("cat", "there", "étoile", "12345")]  # fmt: skip
    special = ["<unk>", "<s>", "</s>"]
    if kind == "llama":
        made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        made.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
        made.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[*special, *BYTES], show_progress=False)
    else:
        made = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
        isolated = pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([isolated, pre_tokenizers.ByteLevel(False, use_regex=False)])
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    made.train_from_iterator(text, trainer)
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    whole = json.loads(made.to_str())
    # Bytes are no special tokens in a file of transformers: a text that spells one is a text.
    whole["added_tokens"] = [one for one in whole["added_tokens"] if one["content"] in special]
    return tokenizers.Tokenizer.from_str(json.dumps(whole))


TEXTS = (
    "the cat said: don't STOP",
    "  two  spaces\n\nand lines \n",
    "1234567 étoiles 中文 🙂",
    "Lily</s> there",
    "<0x41>",
    "",
)


def deployed(folder, source, words):
    torch.manual_seed(0)
    model = Llama(words=words).eval()
    model.name_or_path = str(source)
    prepared = detent.prepare(model, (TOKENS,), backend="gguf", recipe="q8_0")
    detent.calibrate(prepared, [TOKENS])
    return detent.deploy(prepared, folder)


def test_without_a_tokenizer_there_is_a_note(tmp_path):
    artifact = deployed(tmp_path / "out", "", 40)
    (note,) = artifact.manifest["notes"]
    assert "the model was not loaded from a folder with tokenizer.json or tokenizer.model" in note
    assert read((artifact.folder / FILE).read_bytes(), SIZES).values["tokenizer.ggml.model"] == "no_vocab"


@pytest.mark.gguf
@pytest.mark.parametrize("kind", ["llama", "llama-bpe"])
def test_tokens_of_a_text_are_equal(kind, tmp_path):
    pytest.importorskip("xllamacpp", reason="needs the extra `gguf`")
    from detent.targets.gguf.engine import _library

    theirs = trained(kind)
    theirs.save(str(tmp_path / "tokenizer.json"))
    artifact = deployed(tmp_path / "out", tmp_path, theirs.get_vocab_size() + 3)
    assert artifact.manifest["notes"] == []
    library, pointer = _library(), ctypes.c_void_p
    library.llama_model_get_vocab.restype, library.llama_model_get_vocab.argtypes = pointer, [pointer]
    taken = [pointer, ctypes.c_char_p, ctypes.c_int32, pointer, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]
    library.llama_tokenize.argtypes = taken
    path = str(artifact.folder / FILE).encode()
    model = library.llama_model_load_from_file(path, library.llama_model_default_params())
    vocabulary, room = library.llama_model_get_vocab(model), (ctypes.c_int32 * 200)()
    for text in TEXTS:
        coded = text.encode()
        count = library.llama_tokenize(vocabulary, coded, len(coded), room, len(room), True, True)
        assert list(room[:count]) == theirs.encode(text).ids, text
    library.llama_model_free(model)
