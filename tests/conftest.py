"""What all tests share."""

import gc
import os
import random
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from subprocess import CompletedProcess
from typing import Any

import pytest
from hypothesis import settings

from detent.errors import DetentError
from tests.pairwise import mark_full
from tests.report.browser import MISSING, Browser

# torch, and what imports it, is imported where it is used: before pytest starts its workers it imports this file too.

# Nothing waits for a name server, nor for a pool of compilers that is forked off a process with threads.
if sys.platform == "linux":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# The same examples on every run: a suite that fails once in fifty runs tells nobody anything.
settings.register_profile("full", derandomize=True, deadline=None)
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=40)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("steady" if "not full" in config.option.markexpr else "full")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Tests have no doctests: looking for them takes longer than finding the tests."""
    nodes = yield
    return [node for node in nodes if type(node) is pytest.Module]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """What a module of tests draws while it is imported is the same in every process."""
    if isinstance(collector, pytest.Module):
        _seed()
    return (yield)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_full(items)


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup() -> None:
    """The same random numbers whatever ran before: workers take tests from one another."""
    _seed()


def _seed() -> None:
    import torch

    random.seed(0)
    torch.manual_seed(0)


def pytest_collection_finish() -> None:
    """What is there by now stays: the garbage collector need not look through torch and 17,000 tests each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _what_a_module_registers_goes_with_it() -> Iterator[None]:
    """Some tests compare the tables with what a fresh process has."""
    from detent.algorithms import ALGORITHMS
    from detent.observers import OBSERVERS
    from detent.quantizers import QUANTIZERS
    from detent.targets import BACKENDS, TARGETS

    parts = (BACKENDS, TARGETS, TARGETS.rewrites, TARGETS.formats, TARGETS.engines, TARGETS.arithmetics)
    tables: list[dict[str, Any]] = [table._table for table in (ALGORITHMS, OBSERVERS, QUANTIZERS, *parts)]
    before = [dict(table) for table in tables]
    yield
    for table, held in zip(tables, before, strict=True):
        table.clear()
        table.update(held)


@pytest.fixture(autouse=True, scope="session")
def _torch_reads_its_translations_to_onnx_once() -> Iterator[None]:
    """As it is, it reads all of them again for every export, which takes most of a second."""
    import torch

    export, read = torch.onnx.export, False

    def export_with_what_was_read(*args: Any, **options: Any) -> Any:
        nonlocal read
        if not read:
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            ONNXRegistry.from_torchlib, read = staticmethod(cache(ONNXRegistry.from_torchlib)), True
        return export(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", export_with_what_was_read)
        yield


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., CompletedProcess[str]]:
    """`command("verify", ...)`: the program `detent` in this process, which has imported everything already."""
    import detent.cli

    def run(*words: str) -> CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["detent", *words])
        capfd.readouterr()
        try:
            detent.cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return CompletedProcess(words, code, *capfd.readouterr())

    return run


@pytest.fixture
def refuses() -> Callable[..., AbstractContextManager[None]]:
    """`with refuses(SchemeError, "...", "...", "...")`: raised, with these three sentences and no others.

    By name, `refuses(SchemeError, asked="int4")`, what is given must be part of its sentence.
    """

    @contextmanager
    def check(
        error: type[DetentError], *sentences: str, asked: str = "", found: str = "", to_do: str = ""
    ) -> Iterator[None]:
        with pytest.raises(DetentError) as caught:
            yield
        raised = caught.value
        assert type(raised) is error
        said = (raised.asked, raised.found, raised.to_do)
        assert all(said)
        assert str(raised) == "asked: {}\nfound: {}\nto do: {}".format(*said)
        if sentences:
            assert said == sentences
        for sentence, part in zip(said, (asked, found, to_do), strict=True):
            assert part in sentence

    return check


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real one, for the pages that Detent writes."""
    if MISSING:
        pytest.skip(MISSING)
    opened = Browser()
    yield opened
    opened.close()
