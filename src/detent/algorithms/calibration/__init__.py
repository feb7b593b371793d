"""What improves parameters while calibrating: asked for by `calibration` of a recipe, not by `algorithms`."""

__all__: list[str] = []
