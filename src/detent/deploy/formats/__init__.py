"""Vendors' parameter files: each module has its format, with a reader that gives back what a file says."""

__all__: list[str] = []
