"""The entry points of four other quantization tools, translated to the core."""

__all__: list[str] = []
