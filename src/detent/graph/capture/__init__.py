"""Captures any `nn.Module` as fx graphs, in three ways."""

__all__: list[str] = []
