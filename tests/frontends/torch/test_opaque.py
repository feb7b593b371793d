"""Functions that have no lowering: torch.onnx writes each once, and what gives its input back vanishes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

import detent
from detent.errors import DeployError
from detent.frontends.torch import export, opaque
from tests.deployment.float_path import prepared_for


def given_back(x: Tensor, *, training: bool) -> Tensor:
    return x * 2 if training else x


def changed_in_place(x: Tensor) -> Tensor:
    return x.add_(1)


def rolled_sum(x: Tensor, by: int) -> Tensor:
    return x + x.roll(by, 2)


for function in ("given_back", "changed_in_place", "rolled_sum"):
    fx.wrap(function)


class Calls(nn.Module):
    def __init__(self, *calls):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in calls)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        for conv, call in zip(self.convs, self.calls, strict=True):
            x = call(conv(x))
        return x


@pytest.fixture
def exports(monkeypatch):
    """How often torch's exporter ran."""
    counted, original = [], torch.onnx.export
    monkeypatch.setattr(opaque.torch.onnx, "export", lambda *a, **k: (counted.append(1), original(*a, **k))[1])
    return counted


def types_of(*calls) -> list[str]:
    prepared = prepared_for(Calls(*calls), (torch.randn(2, 3, 6, 6),), "academic")
    return [op.type for op in export(prepared, opset=21).network.ops]


def test_what_gives_its_input_back_vanishes(exports):
    assert types_of(lambda x: given_back(x, training=False)) == ["Conv"]
    assert exports == []


def test_what_changes_its_input_in_place_does_not():
    assert "Add" in types_of(lambda x: changed_in_place(x))


def test_what_gives_something_else_does_not():
    assert "Mul" in types_of(lambda x: given_back(x, training=True))


def test_equal_calls_are_exported_once(exports):
    types = types_of(lambda x: rolled_sum(x, 1), lambda x: rolled_sum(x, 1), lambda x: rolled_sum(x, 1))
    assert types.count("Add") == 3
    assert exports == [1]


def test_calls_with_other_arguments_or_sizes_are_exported_again(exports):
    types_of(lambda x: rolled_sum(x, 1), lambda x: rolled_sum(x, 2), lambda x: rolled_sum(x[:, :, 2:], 2))
    assert exports == [1, 1, 1]


class Rotated(nn.Module):
    """As the first Llama wrote its rotary embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.register_buffer("turns", torch.polar(torch.ones(6, 8), torch.arange(48.0).reshape(6, 8)))

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(self.fc(x).unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns).flatten(2)


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(9, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.fft.rfft(x).abs())


class Eigenvalues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.eigvals(self.fc(x)).abs()


@pytest.mark.parametrize(("model", "shape"), [(Rotated, (2, 6, 16)), (Spectrum, (2, 3, 16))])
def test_complex_numbers_are_written_as_their_parts(
    model: type[nn.Module], shape: tuple[int, ...], tmp_path: Path
) -> None:
    x = torch.randn(shape)
    prepared = detent.prepare(model().eval(), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    assert detent.deploy(prepared, tmp_path / "out").verify([x.numpy()], latency=False).holds


def test_a_function_that_needs_complex_numbers_is_refused_by_name(tmp_path: Path) -> None:
    x = torch.randn(2, 6, 6)
    prepared = detent.prepare(Eigenvalues().eval(), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    with pytest.raises(DeployError, match=r"(?s)write 'linalg_eigvals_in_reals'.*linalg_eig"):
        detent.deploy(prepared, tmp_path / "out")
