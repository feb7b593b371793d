"""The interface of an engine: load a deployed model, run it, read its tensors, report how each operation ran."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy.typing as npt

from detent.errors import EngineError, install_hint
from detent.ir import Network, Op, Package

__all__ = ["Defect", "Engine", "Placement"]

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Defect:
    """A known bug of some versions of an engine that Detent does not work around; `versions` are prefixes of version
    numbers.

    `at` tells whether an operation of a network is affected.
    """

    versions: tuple[str, ...]
    what: str
    to_do: str
    at: Callable[[Network, Op], bool]


@dataclass(frozen=True)
class Placement:
    """How an engine ran one operation of the deployed network.

    `op` is the name of the ONNX node. `ran_as` is "integer", "float" or "folded" (fused into another operation, or
    computed in advance). `why` gives a reason where a reader needs one, as for a float operation.
    """

    op: str
    kind: str
    ran_as: Literal["integer", "float", "folded"]
    why: str = ""


class Engine(ABC):
    """One runtime. Subclasses import their package only when they are loaded.

    Inputs and outputs go by the names of the ONNX model, as numpy arrays, in the layout of the ONNX model, whatever
    the engine uses inside. A quantized output is given as real numbers.
    """

    name: ClassVar[str]
    extra: ClassVar[str | None] = None
    """The extra of the `detent` package that installs it; None if it comes with Detent."""
    arithmetic: ClassVar[str | None] = None
    """What its kernels compute, if the artifact was made for another engine; None: what the artifact names."""
    known_defects: ClassVar[tuple[Defect, ...]] = ()
    """What `verify` names as the cause where it differs from the twin."""

    @classmethod
    @abstractmethod
    def version(cls) -> str | None:
        """The version of the installed runtime; None if it is not installed."""

    @classmethod
    @abstractmethod
    def load(cls, package: Package, *, threads: int = 1, as_float: bool = False) -> Engine:
        """Load the deployed model; with `as_float` the same network without quantization, which is
        what its speed is compared with."""

    @classmethod
    def options_for(cls, arithmetic: str) -> dict[str, Any]:
        """The options of `load` with which the engine computes by that arithmetic, if it has several sets of
        kernels."""
        del arithmetic
        return {}

    @classmethod
    def fastest(cls, package: Package, *, threads: int = 1) -> Engine:
        """The deployed model as a user would run it, which need not be with the options used for verification."""
        return cls.load(package, threads=threads)

    @abstractmethod
    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The outputs of the network, by name."""

    @abstractmethod
    def explain(self) -> list[Placement]:
        """Which operations ran on integers, and which in float and why."""

    def tensors(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The intermediate tensors, by ONNX name: integer codes where the tensor is quantized (an
        integer dtype says so), else floats. Empty if the engine cannot show it."""
        del inputs
        return {}

    @classmethod
    def installation(cls) -> str:
        """The command that installs it."""
        return install_hint(cls.extra) if cls.extra else f"pip install {cls.name}"

    @classmethod
    def require(cls) -> None:
        """Raise an error that says how to install the runtime, if it is not installed."""
        if cls.version() is None:
            raise EngineError(f"run on {cls.name}", "it is not installed", cls.installation())
