"""Every exception that Detent raises on purpose.

    DetentError
    ├── CaptureError         a model or its example inputs that cannot be captured
    ├── SchemeError          a number format that cannot exist, or that a method or target cannot use
    ├── TensorError          a tensor of the wrong dtype, rank or size
    ├── RangeError           what was observed gives no usable range (nothing seen, NaN, Inf)
    ├── RunError             an operation that cannot be computed on what it was given
    ├── NotCalibratedError   a scale is needed before one was measured
    ├── UnknownNameError     a name that is in no table
    ├── RecipeError          a recipe, or a file of one, that says something it cannot
    ├── RegistrationError    a name that is taken, or a class of the wrong kind
    ├── OnnxError            an ONNX or Caffe file that cannot be read, or that says what cannot be imported
    ├── DeployError          a network that a file format, or ONNX, cannot hold
    ├── ArtifactError        a deployed folder that is incomplete, changed or of another version
    ├── EngineError          an engine that is not installed, or that refuses a model or its inputs
    └── DataError            a file of data that is missing, or that does not fit the network

Each carries three sentences: what was asked (with the value), what was found, what to do. Two warnings are not errors:
`FloatModelWarning`, if nothing in a network runs on integers, and `NotQuantizedWarning`, if a prepared model is trained
in float, or with the scales of one batch.

>>> print(SchemeError("IntGrid(bits=0)", "integer grids have 2 to 32 bits", "choose bits in 2..32"))
asked: IntGrid(bits=0)
found: integer grids have 2 to 32 bits
to do: choose bits in 2..32
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "ArtifactError",
    "CaptureError",
    "DataError",
    "DeployError",
    "DetentError",
    "EngineError",
    "FloatModelWarning",
    "NotCalibratedError",
    "NotQuantizedWarning",
    "OnnxError",
    "RangeError",
    "RecipeError",
    "RegistrationError",
    "RunError",
    "SchemeError",
    "TensorError",
    "UnknownNameError",
    "install_hint",
    "refusing",
]


def install_hint(extra: str) -> str:
    """The advice for a missing package of an extra, however Detent was installed.

    >>> install_hint("openvino")
    "pip install 'detent[openvino]', or in a checkout pip install -e '.[openvino]'"
    """
    return f"pip install 'detent[{extra}]', or in a checkout pip install -e '.[{extra}]'"


class DetentError(Exception):
    """The root: catch it to catch everything Detent refuses.

    `asked`, `found` and `to_do` are positional, so that the exception pickles across processes.
    """

    def __init__(self, asked: str, found: str, to_do: str):
        super().__init__(asked, found, to_do)
        self.asked, self.found, self.to_do = asked, found, to_do

    def __str__(self) -> str:
        return f"asked: {self.asked}\nfound: {self.found}\nto do: {self.to_do}"


class CaptureError(DetentError, ValueError):
    """A model or its example inputs that cannot be captured."""


class SchemeError(DetentError, ValueError):
    """A number format that cannot exist, or that a method or target cannot use."""


class TensorError(DetentError, ValueError):
    """A tensor of the wrong dtype, rank or size."""


class RangeError(DetentError, ValueError):
    """The observed values give no usable range."""


class RunError(DetentError, RuntimeError):
    """An operation that cannot be computed on its inputs."""


class NotCalibratedError(DetentError, RuntimeError):
    """A scale is needed before it was measured."""


class UnknownNameError(DetentError, KeyError):
    """A name that is not in the table."""


class RecipeError(DetentError, ValueError):
    """A recipe or recipe file with invalid contents."""


class RegistrationError(DetentError, ValueError):
    """A name that is already taken, or a class of the wrong kind."""


class OnnxError(DetentError, ValueError):
    """An ONNX or Caffe file that cannot be read or imported."""


class DeployError(DetentError, ValueError):
    """A network that a file format or ONNX cannot represent."""


class ArtifactError(DetentError, ValueError):
    """A deployed folder that is incomplete, changed or of another version."""


class EngineError(DetentError, RuntimeError):
    """An engine that is not installed, or that refuses a model or its inputs."""


class DataError(DetentError, ValueError):
    """A data file that is missing or does not fit the network."""


class FloatModelWarning(UserWarning):
    """Nothing in a prepared model is quantized, because its target runs none of its operations on integers."""


class NotQuantizedWarning(UserWarning):
    """A prepared model is trained while it computes in float, or was never calibrated."""


@contextmanager
def refusing(error: type[DetentError], asked: str, to_do: str) -> Iterator[None]:
    """Inside the block, a file that somebody else may have written is read: whatever a parser raises is `error`, with
    the first line of what it said. The exception itself is the cause."""
    try:
        yield
    except DetentError:
        raise
    except Exception as problem:
        message = (str(problem).splitlines() or [""])[0][:300]
        raise error(asked, f"{type(problem).__name__}: {message}", to_do) from problem
