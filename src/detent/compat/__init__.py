"""The entry points of four other systems, over the core: translation only."""

__all__: list[str] = []
