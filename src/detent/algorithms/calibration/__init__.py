"""Improvements made during calibration, requested by `calibration` in a recipe and not by `algorithms`."""

__all__: list[str] = []
