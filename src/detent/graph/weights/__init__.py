"""Weights that are no plain parameter of a layer, made so: held beside functions, sliced, computed, parametrized."""

__all__: list[str] = []
