"""`detent demo`: grids, observers and quantizers at work on one tensor."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch import Tensor

    from detent.quantizers import Quantizer

__all__ = ["demo"]

Row = dict[str, Any]


def demo(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the tensor.")] = 0,
) -> None:
    """Quantize one heavy-tailed tensor with every grid, observer and quantizer, and print what it costs.

    SQNR is signal to quantization noise in decibels; 6 dB are one bit.

    Example: detent demo --seed 7
    """
    x = _tensor(seed)
    tables = {
        "Grids: the same tensor, its whole range": _grids(x),
        "Observers: which range, for int4": _observers(x),
        "Quantizers: 4 bits, as calibrated and after 200 steps of learning": _quantizers(x),
    }
    if json:
        print(json_format.dumps(tables, indent=2))
    else:
        _print_tables(tables)


def _tensor(seed: int) -> Tensor:
    """Eight channels of different spread, with tails, as trained weights have them."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(8, 4096, generator=generator)
    tails = torch.randn(8, 4096, generator=generator).abs() ** 1.5
    return normal * tails * torch.logspace(-1, 0.5, 8)[:, None]


def _sqnr(x: Tensor, y: Tensor) -> float:
    return round(float(10 * ((x.square().sum() / (x - y).square().sum()).log10())), 2)


def _grids(x: Tensor) -> list[Row]:
    from detent.numerics import (
        ApotGrid,
        IntGrid,
        LogGrid,
        PerChannel,
        PerGroup,
        Rounding,
        Scheme,
        fake_quantize,
    )
    from detent.observers import OBSERVERS

    schemes = [
        Scheme(IntGrid(8)),
        Scheme(IntGrid(8, signed=False), symmetric=False),
        Scheme(IntGrid(8), scale="power_of_two", rounding=Rounding.HALF_UP),
        Scheme(IntGrid(8), granularity=PerChannel(0)),
        Scheme(IntGrid(4), granularity=PerChannel(0)),
        Scheme(IntGrid(4), granularity=PerGroup(1, 32)),
        Scheme(ApotGrid(4), granularity=PerChannel(0)),
        Scheme(LogGrid(8), granularity=PerChannel(0)),
    ]
    rows = []
    for scheme in schemes:
        observer = OBSERVERS["minmax"](scheme, name="demo")
        observer.observe(x)
        found = observer.qparams()
        rows.append(
            {
                "scheme": str(scheme),
                "levels": scheme.grid.levels,
                "scales": found.scale.numel(),
                "SQNR dB": _sqnr(x, fake_quantize(x, found, scheme)),
            }
        )
    return rows


def _observers(x: Tensor) -> list[Row]:
    import torch

    from detent.errors import SchemeError
    from detent.numerics import IntGrid, Scheme, fake_quantize
    from detent.observers import OBSERVERS

    rows = []
    for name, cls in OBSERVERS.items():
        if name == "fixed":
            continue  # needs to be told the range
        try:
            scheme = Scheme(IntGrid(4))
            observer = cls(scheme, name="demo")
        except SchemeError:
            scheme = Scheme(IntGrid(4), scale="power_of_two")
            observer = cls(scheme, name="demo")
        for batch in torch.split(x, 512, dim=1):
            observer.observe(batch)
        found = observer.qparams()
        kept = float((x.abs() <= found.scale * scheme.grid.qmax).float().mean())
        rows.append(
            {
                "observer": name,
                "scale": float(f"{found.scale.item():.4g}"),
                "in range %": round(100 * kept, 2),
                "SQNR dB": _sqnr(x, fake_quantize(x, found, scheme)),
            }
        )
    return rows


def _quantizers(x: Tensor) -> list[Row]:
    import torch

    from detent.observers import OBSERVERS
    from detent.quantizers import QUANTIZERS

    rows = []
    for name, cls in QUANTIZERS.items():
        if name == "dorefa":
            continue  # squeezes weights by tanh into [-1, 1]: the distance to the original says nothing
        quantizer = _four_bit(name, x)
        observer = OBSERVERS[cls.default_observer](quantizer.scheme, name="demo")
        observer.observe(x)
        quantizer.initialise(observer.qparams())
        with torch.no_grad():
            before = _sqnr(x, quantizer.eval()(x))
        learned = sum(parameter.numel() for parameter in quantizer.parameters())
        if learned and name != "adaround":  # the error of a single tensor is least at nearest: nothing to learn
            _learn(quantizer.train(), x)
        with torch.no_grad():
            after = _sqnr(x, quantizer.eval()(x))
        rows.append(
            {
                "quantizer": name,
                "grid": str(quantizer.scheme).split()[0],
                "starts from": cls.default_observer,
                "learned numbers": learned,
                "SQNR dB": before,
                "after": after,
            }
        )
    return rows


def _four_bit(name: str, x: Tensor) -> Quantizer:
    """The quantizer on the first 4-bit per-channel scheme and role that it takes."""
    from detent.errors import SchemeError
    from detent.numerics import ApotGrid, Grid, IntGrid, LogGrid, PerChannel, ScaleType, Scheme
    from detent.quantizers import QUANTIZERS, Role

    grids: tuple[Grid, ...] = (IntGrid(4), ApotGrid(4), LogGrid(4, steps=2))
    scales: tuple[ScaleType, ...] = ("float", "power_of_two")
    roles: tuple[Role, ...] = ("weight", "activation")
    refusal: SchemeError | None = None
    for grid in grids:
        for scale in scales:
            for role in roles:
                try:
                    scheme = Scheme(grid, granularity=PerChannel(0), scale=scale)
                    return QUANTIZERS[name](scheme, x.shape, role=role, name="demo")
                except SchemeError as error:
                    refusal = error
    assert refusal is not None
    raise refusal


def _learn(quantizer: Quantizer, x: Tensor, steps: int = 200) -> None:
    import torch

    optimizer = torch.optim.Adam(quantizer.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (quantizer(x) - x).square().mean(1).div(x.square().mean(1)).sum().backward()
        optimizer.step()


def _print_tables(tables: dict[str, list[Row]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for title, rows in tables.items():
        table = Table(title=title, title_justify="left", title_style="bold")
        for column, value in rows[0].items():
            table.add_column(column, justify="left" if isinstance(value, str) else "right")
        for row in rows:
            table.add_row(*(f"{value:.2f}" if column in _DECIBELS else str(value) for column, value in row.items()))
        console.print(table)


_DECIBELS = ("SQNR dB", "after")
