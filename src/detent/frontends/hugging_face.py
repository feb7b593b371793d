"""A folder that Hugging Face's `save_pretrained` wrote: config.json and safetensors, read without running its code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from detent.errors import CaptureError, install_hint

__all__ = ["Checkpoint", "load_checkpoint"]


class Checkpoint(nn.Module):
    """Token ids and their mask (batch, length) to scores of words, or to hidden states where it has no head."""

    def __init__(self, model: nn.Module, words: int):
        super().__init__()
        self.model, self.words = model, words

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        made = self.model(input_ids=ids, attention_mask=mask, use_cache=False)
        logits = getattr(made, "logits", None)
        out: Tensor = made.last_hidden_state if logits is None else logits
        return out

    def example(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Words at random, the same each time."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, self.words, (batch, length), generator=generator)
        return ids, torch.ones_like(ids)


def load_checkpoint(folder: Path) -> Checkpoint:
    """The model that config.json names, if it is a class of transformers and its weights are safetensors."""
    asked = f"load {folder}"
    try:
        import transformers
    except ImportError:
        raise CaptureError(asked, "transformers is not installed", install_hint("transformers")) from None
    if not list(folder.glob("*.safetensors")):
        raise CaptureError(asked, "it has no .safetensors file", "save the model again with save_pretrained")
    with _refusing(asked):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    named = (config.architectures or [""])[0]
    kind: Any = getattr(transformers, named, None) if named else None
    if not _is_subclass(kind, transformers.PreTrainedModel):
        raise CaptureError(asked, f"its architecture is {named or 'not named'}", "use one of transformers itself")
    with _refusing(asked):
        model = kind.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            attn_implementation="eager",
        )
    return Checkpoint(model.eval(), int(config.vocab_size)).eval()


def _is_subclass(found: object, base: type) -> bool:
    return isinstance(found, type) and issubclass(found, base)


@contextmanager
def _refusing(asked: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        found = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise CaptureError(asked, found, "give a folder that save_pretrained wrote") from None
