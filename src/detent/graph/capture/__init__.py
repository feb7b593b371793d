"""From any `nn.Module` to fx graphs: three ways of capturing, and what each must know of Python and torch."""

__all__: list[str] = []
