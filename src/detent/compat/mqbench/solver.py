"""`python -m detent.compat.mqbench.solver --config config.yaml`: the benchmark's config, trained and deployed.

`qparams: {w_method, a_method, bit}`, `backend` and `bnfold` say what is quantized and how. The other sections are
those of the benchmark's zoo (model, dist, optimizer, lr_scheduler, label_smooth, ema, data, saver), or of
`detent train`.
`backend` names a hardware setting, or is one of your own: `{symmetry: true, per_channel: false, pot_scale: true}`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detent.compat.mqbench import hardware
from detent.compat.mqbench.hardware import BackendParams, Hardware, hardware_named
from detent.compat.mqbench.qconfig import checked_keys, get_foldbn_config, get_qconfig
from detent.compat.mqbench.zoo_config import is_zoo_config, sections_of
from detent.errors import DetentError, RecipeError
from detent.recipes.files import read

__all__ = ["backend_of", "main", "recipe_of"]

_QPARAMS = ("w_method", "a_method", "bit", "w_observer", "a_observer")


def recipe_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe that qparams, backend and bnfold stand for."""
    for key in ("qparams", "backend"):
        if key not in config:
            raise RecipeError("config.yaml", f"it has no {key!r}", f"add {key}")
    name = "own" if isinstance(config["backend"], Mapping) else config["backend"]
    qparams = checked_keys(config["qparams"], _QPARAMS, "qparams")
    requests = get_qconfig(**qparams, **_hardware(config["backend"]).params._asdict())
    folded = get_foldbn_config(config.get("bnfold", 4))
    said = {name: request.to_dict() for name, request in requests.items()}
    return {
        "name": f"{qparams['w_method']}-{name}-{qparams['bit']}bit",
        **said,
        "batch_norm": folded.to_dict(),
    }


def backend_of(config: Mapping[str, Any]) -> str:
    """Where the setting's graph has quantization nodes, as `detent train` names a backend."""
    graph = _hardware(config["backend"]).graph
    return hardware.GRAPHS[1].name if graph == 1 else f"{hardware.__name__}:GRAPH_{graph}"


def _hardware(said: Any) -> Hardware:
    if isinstance(said, Mapping):
        return Hardware(BackendParams(**checked_keys(said, BackendParams._fields, "backend")))
    return hardware_named(said)


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 with one line for a mistake in the config."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("mqbench_run"))
    parser.add_argument("--pretrained", help="a file of weights for a config of the zoo; none: random ones")
    parser.add_argument("--data", help="pictures in folders of classes, in place of the config's own")
    parser.add_argument("--allow-imports", action="store_true", help="import what the config names as module:Name")
    options = parser.parse_args(arguments)
    from detent.training.build import refuse_imports
    from detent.training.config import Config
    from detent.training.session import train

    try:
        config = read(options.config)
        if "recipe" in config and "qparams" not in config:
            return _trained(options)
        recipe = recipe_of(config)
        if is_zoo_config(config):
            processes = int(os.environ.get("WORLD_SIZE", "1"))
            rest = sections_of(config, pretrained=options.pretrained, folder=options.data, processes=processes)
        else:
            rest = {key: value for key, value in config.items() if key not in ("qparams", "backend", "bnfold")}
        whole = Config.from_dict(
            {"name": recipe["name"], **rest, "backend": backend_of(config), "recipe": recipe},
            source=options.config.name,
        )
        if not options.allow_imports:
            refuse_imports(whole, options.config.name, but=["backend"])  # which the config does not name
        outcome = train(whole, options.output, allow_imports=True)
    except DetentError as error:
        print(error, file=sys.stderr)
        return 2
    if outcome is not None:
        print(f"{outcome.folder}: {outcome.metrics}")
    return 0


def _trained(options: argparse.Namespace) -> int:
    """A config of `detent train`, as `detent bench zoo` writes them."""
    from detent.training.config_files import load_config
    from detent.training.session import train

    config = load_config(options.config, allow_imports=options.allow_imports)
    config = config.with_changes("data", folder=options.data)
    if options.pretrained is not None:
        weights = None if options.pretrained == "none" else options.pretrained
        config = config.replace(model=config.model.replace(pretrained=weights))
    outcome = train(config, options.output, allow_imports=options.allow_imports)
    if outcome is not None:
        print(f"{outcome.folder}: {outcome.metrics}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
