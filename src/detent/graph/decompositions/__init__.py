"""Operations of torch in the operations they are made of: targets have integers for these, and none for the whole."""

__all__: list[str] = []
