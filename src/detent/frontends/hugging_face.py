"""A folder that Hugging Face's `save_pretrained` wrote: config.json and safetensors, read without running its code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from detent.errors import CaptureError, install_hint, refusing
from detent.files import read_bytes

__all__ = ["COMPANIONS", "Checkpoint", "companions", "load_checkpoint", "named_class"]

_INDEX = "model.safetensors.index.json"
_TO_DO = "give a folder that save_pretrained wrote"
_MOST_CONFIG, _MOST_INDEX = 2**22, 2**26  # bytes
_MOST_COUNT = 2**20
_MOST_TEXT = 2**27  # bytes

COMPANIONS = (
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
"""Files beside config.json that say how text becomes token ids and how words are chosen."""

_LAYERS = re.compile(r"^(num|n)_.*(layer|block)|(?<!max_window_)layers$|^depth$")
_COUNT = re.compile(r"^(num|n)_")


class Checkpoint(nn.Module):
    """Token ids and their mask (batch, length) to scores of words, or to hidden states where it has no head."""

    def __init__(self, model: nn.Module, words: int):
        super().__init__()
        self.model, self.words = model, words

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        made = self.model(input_ids=ids, attention_mask=mask, use_cache=False, return_dict=True)
        logits = getattr(made, "logits", None)
        out: Tensor = made.last_hidden_state if logits is None else logits
        return out

    def example(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Random token ids, the same each time."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, self.words, (batch, length), generator=generator)
        return ids, torch.ones_like(ids)


def load_checkpoint(folder: Path) -> Checkpoint:
    """The model that config.json names, if it is a class of transformers and its weights are safetensors.

    The folder may be a stranger's: its code is not run, an index names files of the folder alone, a model of more
    layers than there are tensors is not built, and weights that are missing are not made up.
    """
    asked = f"load {folder}"
    kind, config = named_class(folder)
    with refusing(CaptureError, asked, _TO_DO):
        model, loading_info = kind.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
        if loading_info["missing_keys"]:
            missing = sorted(loading_info["missing_keys"])
            raise CaptureError(asked, f"it lacks {len(missing)} weights of {kind.__name__}, as {missing[0]}", _TO_DO)
        return Checkpoint(model.eval(), int(config.vocab_size)).eval()


def companions(folder: str | Path) -> dict[str, bytes]:
    """The files of `COMPANIONS` in a folder; none if it is not a folder, such as a model name on the hub."""
    paths = (Path(folder) / name for name in COMPANIONS)
    return {path.name: read_bytes(path, most=_MOST_TEXT) for path in paths if path.is_file()} if folder else {}


def named_class(folder: Path) -> tuple[Any, Any]:
    """The class of transformers that config.json names, and its config; nothing is built yet."""
    asked = f"load {folder}"
    try:
        import transformers
    except ImportError:
        raise CaptureError(asked, "transformers is not installed", install_hint("transformers")) from None
    with refusing(CaptureError, asked, _TO_DO):
        tensors = _count_tensors(folder, asked)
        _check_counts(json.loads(read_bytes(folder / "config.json", most=_MOST_CONFIG)), tensors, asked)
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        named = str([*(config.architectures or ()), ""][0])
        if not isinstance(getattr(config, "vocab_size", None), int) or config.is_encoder_decoder:
            found = f"{named or 'its model'} takes more or other things than token ids and their mask"
            raise CaptureError(asked, found, "load it in Python, and give detent.quantize the model and its inputs")
        kind: Any = getattr(transformers, named, None) if named else None
        if not _is_subclass(kind, transformers.PreTrainedModel):
            raise CaptureError(asked, f"its architecture is {named or 'not named'}", "use one of transformers itself")
        return kind, config


def _count_tensors(folder: Path, asked: str) -> int:
    """The number of tensors in the weight files. An index that names a file elsewhere is refused."""
    files = [path for path in sorted(folder.glob("*.safetensors")) if path.is_file()]
    if not files:
        raise CaptureError(asked, "it has no .safetensors file", "save the model again with save_pretrained")
    if (index := folder / _INDEX).exists():
        for name in json.loads(read_bytes(index, most=_MOST_INDEX))["weight_map"].values():
            if Path(name).name != name:
                raise CaptureError(asked, f"{_INDEX} names {name}, a file elsewhere", _TO_DO)
    count = 0
    for path in files:
        with safe_open(path, "pt") as held:
            count += len(held.keys())
    return count


def _check_counts(config: Any, tensors: int, asked: str) -> None:
    """Building a model takes time and memory by its layers and labels: before any is built, their numbers are looked
    at. A layer has a tensor."""
    waiting = [config]
    while waiting:
        held = waiting.pop()
        if isinstance(held, list):
            waiting += held
        if not isinstance(held, dict):
            continue
        waiting += held.values()
        for name, value in held.items():
            most = tensors if _LAYERS.search(name) else _MOST_COUNT if _COUNT.match(name) else None
            if most is not None and isinstance(value, int) and value > most:
                found = f"config.json says {name}: {value:,}, and the files hold {tensors:,} tensors"
                raise CaptureError(asked, found, _TO_DO)


def _is_subclass(found: object, base: type) -> bool:
    return isinstance(found, type) and issubclass(found, base)
