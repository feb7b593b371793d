"""A session of ONNX Runtime on the CPU, which more than one target runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detent.errors import EngineError

__all__ = ["onnxruntime_version", "open_session"]


def onnxruntime_version() -> str | None:
    """The version of ONNX Runtime; None if it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    return str(onnxruntime.__version__)


def open_session(model: bytes | Path, *, threads: int, level: str = "ORT_ENABLE_ALL", save: Path | None = None) -> Any:
    """An InferenceSession; `save` is where it writes the graph as its optimizations leave it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 3
    if save is not None:
        options.optimized_model_filepath = str(save)
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions derive from Exception alone
        raise EngineError(
            f"load a network on onnxruntime {onnxruntime.__version__}", str(error), "deploy for a backend it runs"
        ) from error
