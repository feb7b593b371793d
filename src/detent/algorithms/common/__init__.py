"""What algorithms share: walking through layers and blocks, the float model beside, measuring, undoing, reporting."""

__all__: list[str] = []
