"""The interface of a file format: writing its files, and reading facts about tensors from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

from detent.errors import DeployError, install_hint
from detent.quantizers import Role
from detent.targets.base.deployment import Deployment

__all__ = ["EVERY_ROLE", "Format", "Roles", "TensorFacts", "Written"]

Roles = tuple[Role, ...]
EVERY_ROLE: Roles = ("activation", "weight", "bias")


class TensorFacts(NamedTuple):
    """What a file says of a tensor, or of what an operation reads at a `place` among its inputs.

    `facts` by name:

    - `scale`, `zero_point`, `bits`, `type`;
    - `codes`: the least and the greatest; `range`: their real numbers; `full_range`: those of all codes of the type;
      `byte_range`: those of all codes of the bytes that hold it;
    - `greatest`: the largest absolute real number; `magnitude`: the real number of the code 127;
    - `offset`: the least code of the type minus the zero point; `factor`: one divided by the scale;
    - `numbers`: the values of a parameter, an array of codes or of real numbers, in any order.
    """

    name: str
    facts: Mapping[str, Any]
    place: int | None = None


@dataclass(frozen=True)
class Written:
    """`files` maps names to contents; `notes` tell users what they must know: what the format cannot express."""

    files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()


class Format(ABC):
    """The files that one toolchain reads.

    - `name`: what a backend calls it in `files`.
    - `files`: the names of its files. For one that `facts` reads, the roles of the tensors that it must all speak of
      (perhaps none); None for one that is not compared with the manifest, or that is read together with another.
    - `weights`: the file that an engine loads the weights from; None if the format holds parameters alone.
    - `operators`: the ONNX operators that it can hold; None if any, as a file that is ONNX, or has parameters alone.
    - `requires`: the package that writing needs, and the extra that installs it.
    """

    name: str
    files: Mapping[str, Roles | None]
    weights: str | None = None
    operators: Collection[str] | None = None
    requires: tuple[str, str] | None = None

    @abstractmethod
    def write(self, deployment: Deployment) -> Written:
        """The files of a deployed network. A DeployError refuses what the format cannot express."""

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        """What `file` says, for `verify` to compare with the manifest; `files` has the contents of all of them.

        An ArtifactError if it is not such a file. A format with roles for a file implements this.
        """
        raise NotImplementedError(f"{type(self).__name__}.facts of {file}, one of {', '.join(files)}")

    def require_package(self) -> None:
        """An error that names the extra, if writing needs a package that is not installed."""
        if self.requires is not None and find_spec(self.requires[0]) is None:
            package, extra = self.requires
            raise DeployError(f"write the format {self.name!r}", f"{package} is not installed", install_hint(extra))
