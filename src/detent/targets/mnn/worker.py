"""Runs MNN in a process of its own, as a script: `python -I worker.py`.

It imports MNN's C modules and nothing of MNN's Python tools, because importing those installs a package and reports to
a server. Nor does it import Detent. Requests and answers are pickles with their length in front, on stdin and on what
was stdout when the process began; what MNN prints goes to stderr.

    {"do": "convert", "onnx": path, "compression": path or None, "mnn": path}  ->  {}
    {"do": "describe", "mnn": path}                                            ->  {"model": the MNN model as a dict}
    {"do": "load", "mnn": path, "threads": n, "keep": names}                   ->  {}
    {"do": "run", "inputs": {name: array}, "outputs": names}                   ->  {"outputs": {name: array}}
    {"do": "trace", "inputs": {name: array}}                                   ->  {"commands": [(name, type), ...]}

The type of a command says whether it is one on codes. The description of a model is without weights.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

__all__: list[str] = []


def _convert(request: dict[str, Any]) -> dict[str, Any]:
    import _tools  # type: ignore[import-not-found, unused-ignore]

    command = ["mnnconvert", "-f", "ONNX", "--modelFile", request["onnx"], "--MNNModel", request["mnn"]]
    if request["compression"] is not None:
        command += ["--compressionParamsFile", request["compression"]]
    _tools.mnnconvert([*command, "--bizCode", "detent"])
    if not Path(request["mnn"]).is_file():
        raise RuntimeError("mnnconvert wrote no model")
    return {}


def _describe(request: dict[str, Any]) -> dict[str, Any]:
    import _tools  # type: ignore[import-not-found, unused-ignore]

    described = Path(request["mnn"] + ".json")
    _tools.mnnconvert(["mnnconvert", "-f", "MNN", "--modelFile", request["mnn"], "--JsonFile", str(described)])
    model = json.loads(described.read_text())
    described.unlink()
    ops = [{name: value for name, value in op.items() if name != "main"} for op in model["oplists"]]
    return {"model": {**model, "oplists": ops}}


class _Session:
    """One loaded model, which is resized to the inputs of each run."""

    def __init__(self, request: dict[str, Any]):
        import MNN  # type: ignore[import-not-found, unused-ignore]

        self._mnn = MNN
        self._interpreter = MNN.Interpreter(request["mnn"])
        config = {"numThread": request["threads"], "precision": "high"}
        if request["keep"]:
            config["saveTensors"] = tuple(request["keep"])
        self._session = self._interpreter.createSession(config)
        self._shapes: dict[str, tuple[int, ...]] = {}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        self._feed(request)
        self._require_success(self._interpreter.runSession(self._session))
        return {"outputs": {name: self._read(name) for name in request["outputs"]}}

    def trace(self, request: dict[str, Any]) -> dict[str, Any]:
        self._feed(request)
        commands: list[tuple[str, str]] = []

        def note(_: Any, command: Any) -> bool:
            commands.append((command.getName(), command.getType()))
            return True

        self._require_success(self._interpreter.runSessionWithCallBackInfo(self._session, lambda *_: True, note))
        return {"commands": commands}

    @staticmethod
    def _require_success(code: int) -> None:
        """MNN reports a failure only by an error code, and leaves the outputs empty."""
        if code != 0:
            raise RuntimeError(f"MNN stopped with error code {code}")

    def _feed(self, request: dict[str, Any]) -> None:
        inputs = {name: np.ascontiguousarray(array) for name, array in request["inputs"].items()}
        shapes = {name: array.shape for name, array in inputs.items()}
        tensors = {name: self._interpreter.getSessionInput(self._session, name) for name in inputs}
        if shapes != self._shapes:
            for name, tensor in tensors.items():
                self._interpreter.resizeTensor(tensor, shapes[name])
            self._interpreter.resizeSession(self._session)
            self._shapes = shapes
        for name, tensor in tensors.items():
            tensor.copyFrom(self._host(inputs[name]))

    def _host(self, array: Any) -> Any:
        mnn = self._mnn
        whole = array.dtype.kind in "iub"
        held = array.astype(np.int32 if whole else np.float32)
        kind = mnn.Halide_Type_Int if whole else mnn.Halide_Type_Float
        return mnn.Tensor(held.shape, kind, held, mnn.Tensor_DimensionType_Caffe)

    def _read(self, name: str) -> Any:
        found = self._interpreter.getSessionOutput(self._session, name)
        real = found.getDataType() == self._mnn.Halide_Type_Float
        target = self._host(np.zeros(found.getShape(), np.float32 if real else np.int32))
        found.copyToHostTensor(target)
        return np.array(target.getNumpyData()).reshape(found.getShape())


def _answer(channel: BinaryIO, content: dict[str, Any]) -> None:
    held = pickle.dumps(content)
    channel.write(struct.pack("<Q", len(held)) + held)
    channel.flush()


def _serve() -> None:
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    session = None
    while header := sys.stdin.buffer.read(8):
        request = pickle.loads(sys.stdin.buffer.read(struct.unpack("<Q", header)[0]))
        try:
            if request["do"] == "convert":
                _answer(channel, _convert(request))
            elif request["do"] == "describe":
                _answer(channel, _describe(request))
            elif request["do"] == "load":
                session = _Session(request)
                _answer(channel, {})
            else:
                assert session is not None
                _answer(channel, session.trace(request) if request["do"] == "trace" else session.run(request))
        except Exception as error:
            _answer(channel, {"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    _serve()
