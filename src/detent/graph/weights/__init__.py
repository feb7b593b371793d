"""Turns weights into plain parameters of layers: those passed to functions, sliced, computed or parametrized."""

__all__: list[str] = []
