"""Shared by the algorithms: walking through layers and blocks next to the float model, measuring, undoing,
reporting."""

__all__: list[str] = []
