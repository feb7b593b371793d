"""Decomposes torch operations into ones that targets can run on integers."""

__all__: list[str] = []
