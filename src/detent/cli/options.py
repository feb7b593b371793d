"""Arguments and options that several commands have; what they name is looked for before torch is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detent.cli.names import require_backend, require_cpu, require_recipe
from detent.cli.paths import require_data, require_deployed, require_onnx

__all__ = [
    "MOST_BYTES",
    "AsJson",
    "Backend",
    "BatchSize",
    "BatchSizeToCheck",
    "CalibrationData",
    "Cpu",
    "DeployedFolder",
    "Exclude",
    "MaxTensorBytes",
    "OnnxFile",
    "OptionalCalibrationData",
    "OutFolder",
    "RecipeName",
    "Steps",
]

OnnxFile = Annotated[Path, typer.Argument(help="An ONNX file.", callback=require_onnx)]
DeployedFolder = Annotated[
    Path,
    typer.Argument(
        help="A deployed folder: what quantize, tune, train, deploy or retarget wrote.", callback=require_deployed
    ),
]
Backend = Annotated[str, typer.Option(help="The target; `detent backends` lists them.", callback=require_backend)]
_CALIBRATION = typer.Option(
    help="Calibration data: .npy, .npz, a folder of these or of images, or file.py:function.", callback=require_data
)
CalibrationData = Annotated[str, _CALIBRATION]
OptionalCalibrationData = Annotated[str | None, _CALIBRATION]
OutFolder = Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")]
RecipeName = Annotated[
    str, typer.Option(help="A file, or a name that `detent recipes` lists.", callback=require_recipe)
]
Steps = Annotated[int, typer.Option(min=1, max=512, help="Calibrate with at most this many batches.")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Samples per batch, if the data is read from files.", show_default="8")
]
BatchSizeToCheck = Annotated[
    int | None, typer.Option(min=1, help="Samples per batch, if the data is read from files.", show_default="32")
]
Exclude = Annotated[
    list[str] | None, typer.Option(help="Keep in float: a node name (glob), a node type or a kind; may be repeated.")
]
Cpu = Annotated[
    str | None,
    typer.Option(
        help="The kind of CPU it will run on; 'vnni' allows the full range of 8-bit weights.",
        show_default="any",
        callback=require_cpu,
    ),
]
MaxTensorBytes = Annotated[
    int, typer.Option(min=1, help="Refuse a network with a larger tensor than this, before it runs.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MOST_BYTES = 4 * 2**30
