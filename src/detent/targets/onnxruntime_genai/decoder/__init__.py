"""A deployed language model as onnxruntime-genai runs it: word by word, with a cache of keys and values."""

from __future__ import annotations

from detent.targets.onnxruntime_genai.decoder.cache import PARTS, PAST, PRESENT, Decoder, with_cache
from detent.targets.onnxruntime_genai.decoder.match import NotADecoder

__all__ = ["PARTS", "PAST", "PRESENT", "Decoder", "NotADecoder", "with_cache"]
