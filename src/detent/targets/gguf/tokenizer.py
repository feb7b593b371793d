"""Converts the tokenizer of a Hugging Face folder to llama.cpp's metadata: tokens, their types, and merges.

Two kinds are known. Byte-level BPE (`gpt2` there) splits a text by a regular expression that llama.cpp has a name for.
BPE of characters with bytes for the others, as SentencePiece makes it (`llama` there), merges by scores of tokens.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detent.targets.gguf.sentencepiece import Piece, read_pieces

__all__ = ["NoTokenizer", "tokenizer_values"]

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SPACE = "\u2581"
_TEMPLATE = "chat_template.jinja"
_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PLAIN, _DIGITS = ("ByteLevel", True), ("Digits", True)
_SPLITS = {
    (_PLAIN,): "gpt-2",
    (_DIGITS, _PLAIN): "smollm",
    (("Split", _WORDS + r"\p{N}{1,3}" + _REST), ("ByteLevel", False)): "llama-bpe",
    (("Split", _WORDS + r"\p{N}" + _REST), ("ByteLevel", False)): "qwen2",
}
"""What llama.cpp calls the ways to split a text before bytes merge."""
_NORMALIZERS = {"qwen2": {"type": "NFC"}}
"""What llama.cpp leaves out of a tokenizer: text that is not in this form gets other tokens there."""
_TAKES_WHOLE_WORDS = ("llama-bpe",)
"""Those with which it takes a word that is a token as it is, without merging."""


class NoTokenizer(Exception):  # noqa: N818 - an answer, with the reason
    """There is no tokenizer that llama.cpp would run the same; the text says why."""


def tokenizer_values(files: Mapping[str, bytes], words: int) -> dict[str, Any]:
    """The `tokenizer.*` values of a model of so many words; NoTokenizer if there are none."""
    said = _json(files, "tokenizer_config.json") or {}
    whole = _json(files, "tokenizer.json")
    if whole is not None:
        try:
            found = _of_tokenizers(whole)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            StopIteration,
            TypeError,
            ValueError,
        ) as error:
            raise NoTokenizer(f"tokenizer.json is not one that is known: {error}") from None
    elif "tokenizer.model" in files:
        found = _of_sentencepiece(files["tokenizer.model"], said)
    else:
        raise NoTokenizer("the model was not loaded from a folder with tokenizer.json or tokenizer.model")
    tokens = found["tokenizer.ggml.tokens"]
    if len(tokens) > words:
        raise NoTokenizer(f"its tokenizer has {len(tokens)} tokens, and the model {words}")
    for index in range(len(tokens), words):  # a table may have more rows
        tokens.append(f"[PAD{index}]")
        found["tokenizer.ggml.token_type"].append(_UNUSED)
        if "tokenizer.ggml.scores" in found:
            found["tokenizer.ggml.scores"].append(-1e4)
    for name in ("bos", "eos", "unk", "pad"):
        token = said.get(f"{name}_token")
        text = token.get("content") if isinstance(token, Mapping) else token
        if text in tokens:
            key = "unknown" if name == "unk" else "padding" if name == "pad" else name
            found[f"tokenizer.ggml.{key}_token_id"] = tokens.index(text)
    template = _template(files) if _TEMPLATE in files else said.get("chat_template")
    if isinstance(template, str):
        found["tokenizer.chat_template"] = template
    return found


def _template(files: Mapping[str, bytes]) -> str:
    try:
        return files[_TEMPLATE].decode()
    except UnicodeDecodeError:
        raise NoTokenizer(f"{_TEMPLATE} is not text") from None


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any] | None:
    if name not in files:
        return None
    try:
        found = json.loads(files[name])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise NoTokenizer(f"{name} is not JSON of a tokenizer")
    return found


def _of_tokenizers(whole: Mapping[str, Any]) -> dict[str, Any]:
    model = whole["model"]
    if model["type"] != "BPE":
        raise NoTokenizer(f"its tokenizer is {model['type']}, not BPE")
    added = {int(one["id"]): one for one in whole.get("added_tokens") or ()}
    by_number = {int(number): token for token, number in model["vocab"].items()}
    by_number |= {number: one["content"] for number, one in added.items()}
    if sorted(by_number) != list(range(len(by_number))):
        raise NoTokenizer("the numbers of its tokens have gaps")
    tokens = [str(by_number[number]) for number in range(len(by_number))]
    merges = [one.split(" ") if isinstance(one, str) else list(one) for one in model["merges"]]
    types = [_type_of(token, added.get(number), model) for number, token in enumerate(tokens)]
    first, last = _around(whole.get("post_processor"))
    for token in (first, last):
        if token is not None and not (isinstance(token, int) and 0 <= token < len(tokens)):
            raise NoTokenizer(f"it puts {token!r} around a text, which is no token")
    found = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_bos_token": first is not None,
        "tokenizer.ggml.add_eos_token": last is not None,
        **({} if first is None else {"tokenizer.ggml.bos_token_id": first}),
        **({} if last is None else {"tokenizer.ggml.eos_token_id": last}),
    }
    if model.get("byte_fallback"):
        return {**found, **_like_sentencepiece(whole, tokens, merges, types)}
    parts = tuple(_splits(whole.get("pre_tokenizer")))
    split = _SPLITS.get(parts)
    if split is None or whole.get("normalizer") not in (None, _NORMALIZERS.get(split)):
        raise NoTokenizer("it splits or changes a text in a way that llama.cpp has no name for here")
    if bool(model.get("ignore_merges")) != (split in _TAKES_WHOLE_WORDS):
        raise NoTokenizer(f"it merges within whole words otherwise than {split} of llama.cpp does")
    pairs = [" ".join(pair) for pair in merges]
    return {**found, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": split, "tokenizer.ggml.merges": pairs}


def _type_of(token: str, added: Mapping[str, Any] | None, model: Mapping[str, Any]) -> int:
    if model.get("byte_fallback") and token in _BYTES:
        return _BYTE
    if token == model.get("unk_token"):
        return _UNKNOWN
    if added is None:
        return _NORMAL
    return _CONTROL if added.get("special") else _USER


def _like_sentencepiece(
    whole: Mapping[str, Any], tokens: Sequence[str], merges: Sequence[Sequence[str]], types: Sequence[int]
) -> dict[str, Any]:
    """Scores in the order of merges: llama.cpp merges the pair whose token has the highest."""
    scores: dict[str, float] = {}
    last = ""
    for left, right in merges:
        made = left + right
        if made in scores and made != last:
            raise NoTokenizer(f"its merges to {made!r} do not follow one another, which scores cannot say")
        scores.setdefault(made, -float(len(scores)))
        last = made
    unmerged = -float(len(scores))
    if not _BYTES.issubset(tokens):
        raise NoTokenizer("it lacks tokens of bytes")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": [
            scores.get(token, unmerged) if kind == _NORMAL else 0.0 for token, kind in zip(tokens, types, strict=True)
        ],
        "tokenizer.ggml.add_space_prefix": _starts_with_space(whole),
    }


def _starts_with_space(whole: Mapping[str, Any]) -> bool:
    """Whether a text gets a leading space. Refuses a normalizer that does more than that and marking spaces."""
    steps = [*_steps(whole.get("normalizer"), "normalizers"), *_steps(whole.get("pre_tokenizer"), "pretokenizers")]
    prefix, marked = False, False
    for step in steps:
        match step:
            case {"type": "Prepend", "prepend": text} if text == _SPACE:
                prefix = True
            case {"type": "Replace", "pattern": {"String": " "}, "content": text} if text == _SPACE:
                marked = True
            case {"type": "Metaspace", "replacement": text, "prepend_scheme": scheme} if text == _SPACE:
                if step.get("split"):
                    raise NoTokenizer("it splits a text into words before they merge")
                prefix, marked = scheme != "never", True
            case _:
                raise NoTokenizer(f"it changes a text by {step['type']}")
    if not marked:
        raise NoTokenizer("it does not mark spaces")
    return prefix


def _steps(step: Mapping[str, Any] | None, within: str) -> Iterator[Mapping[str, Any]]:
    if step is None:
        return
    if step["type"] == "Sequence":
        for one in step[within]:
            yield from _steps(one, within)
    else:
        yield step


def _splits(step: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """The steps that split a text, with what they differ in."""
    for one in _steps(step, "pretokenizers"):
        match one["type"]:
            case "ByteLevel" if not one.get("add_prefix_space"):
                yield "ByteLevel", bool(one.get("use_regex", True))
            case "Split" if one["behavior"] == "Isolated" and not one["invert"]:
                yield "Split", one["pattern"].get("Regex")
            case "Digits":
                yield "Digits", bool(one["individual_digits"])
            case other:
                yield str(other), None


def _around(step: Mapping[str, Any] | None) -> tuple[int | None, int | None]:
    """The tokens added before and after a text."""
    for one in _steps(step, "processors"):
        match one["type"]:
            case "TemplateProcessing":
                names = [next(iter(part)) for part in one["single"]]
                inner = names.index("Sequence")
                if inner > 1 or len(names) - inner > 2:
                    raise NoTokenizer("it puts several tokens before or after a text")
                ids = [one["special_tokens"][part["SpecialToken"]["id"]]["ids"] if "SpecialToken" in part else [None]
                       for part in one["single"]]  # fmt: skip
                return (ids[0][0] if inner else None), (ids[-1][0] if len(names) > inner + 1 else None)
            case "ByteLevel":
                continue
            case other:
                raise NoTokenizer(f"it puts tokens around a text by {other}")
    return None, None


def _of_sentencepiece(content: bytes, said: Mapping[str, Any]) -> dict[str, Any]:
    try:
        pieces, merges, prefix = read_pieces(content)
    except (IndexError, KeyError, ValueError, struct.error) as error:
        raise NoTokenizer(f"tokenizer.model is not one of SentencePiece: {error}") from None
    if not merges:
        raise NoTokenizer("its tokenizer is a unigram model of SentencePiece, not BPE")
    found: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [one.text for one in pieces],
        "tokenizer.ggml.scores": [one.score for one in pieces],
        "tokenizer.ggml.token_type": [one.type for one in pieces],
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.add_bos_token": bool(said.get("add_bos_token", True)),
        "tokenizer.ggml.add_eos_token": bool(said.get("add_eos_token", False)),
    }
    return {**found, **_named(pieces)}


def _named(pieces: Sequence[Piece]) -> dict[str, int]:
    """The usual names of special pieces; tokenizer_config.json goes before them."""
    names = {"<s>": "bos", "</s>": "eos", "<unk>": "unknown"}
    at = {one.text: number for number, one in enumerate(pieces)}
    return {f"tokenizer.ggml.{name}_token_id": at[text] for text, name in names.items() if text in at}
