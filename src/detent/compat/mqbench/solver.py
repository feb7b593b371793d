"""`python -m detent.compat.mqbench.solver --config config.yaml`: the benchmark's config, trained and deployed.

`qparams: {w_method, a_method, bit}`, `backend` and `bnfold` are the benchmark's; the other sections (name, model, data,
train, optimizer, ...) are those of `detent train`. `backend` names a hardware setting, or is one of your own:
`{symmetry: true, per_channel: false, pot_scale: true}`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detent.compat.mqbench.qconfig import checked_keys, get_foldbn_config, get_qconfig
from detent.errors import DetentError, RecipeError
from detent.recipes.files import read

__all__ = ["BACKEND_PARAMS", "main", "recipe_of"]

BACKEND_PARAMS: Mapping[str, dict[str, Any]] = {
    "academic": {"ada_sign": True, "symmetry": True, "per_channel": False, "pot_scale": False},
    "tensorrt": {"symmetry": True, "per_channel": True, "pot_scale": False},
    "snpe": {"symmetry": False, "per_channel": False, "pot_scale": False},
    "acl": {"symmetry": False, "per_channel": True, "pot_scale": False},
    "tvm": {"symmetry": True, "per_channel": False, "pot_scale": True},
    "fbgemm": {"symmetry": False, "per_channel": True, "pot_scale": False},
}
"""The benchmark's hardware settings: symmetry, granularity and scales. Where quantizers stand is `academic`'s for
all of them, because no chip of these has the 4 bits that the benchmark compares."""

_HARDWARE = ("ada_sign", "symmetry", "per_channel", "pot_scale")
_QPARAMS = ("w_method", "a_method", "bit", "w_observer", "a_observer")


def recipe_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe that qparams, backend and bnfold stand for."""
    for key in ("qparams", "backend"):
        if key not in config:
            raise RecipeError("config.yaml", f"it has no {key!r}", f"add {key}")
    backend, hardware = config["backend"], config["backend"]
    if isinstance(hardware, Mapping):
        backend, hardware = "own", checked_keys(hardware, _HARDWARE, "backend")
    elif hardware in BACKEND_PARAMS:
        hardware = BACKEND_PARAMS[hardware]
    else:
        known = f"{', '.join(BACKEND_PARAMS)}, or a setting with {', '.join(_HARDWARE)}"
        raise RecipeError(f"backend: {backend!r}", f"allowed are {known}", "use one")
    qparams = checked_keys(config["qparams"], _QPARAMS, "qparams")
    requests = get_qconfig(**qparams, **hardware)
    folded = get_foldbn_config(config.get("bnfold", 4))
    said = {name: request.to_dict() for name, request in requests.items()}
    name = f"{qparams['w_method']}-{backend}-{qparams['bit']}bit"
    return {"name": name, **said, "batch_norm": folded.to_dict()}


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 with one line for a mistake in the config."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("mqbench_run"))
    options = parser.parse_args(arguments)
    from detent.training.config import Config
    from detent.training.session import train

    try:
        config = read(options.config)
        rest = {key: value for key, value in config.items() if key not in ("qparams", "backend", "bnfold")}
        recipe = recipe_of(config)
        whole = Config.from_dict(
            {"name": recipe["name"], **rest, "backend": "academic", "recipe": recipe}, source=options.config.name
        )
        outcome = train(whole, options.output)
    except DetentError as error:
        print(error, file=sys.stderr)
        return 2
    if outcome is not None:
        print(f"{outcome.folder}: {outcome.metrics}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
