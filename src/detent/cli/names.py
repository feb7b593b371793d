"""Names that an option takes are looked up before torch is loaded, which takes seconds."""

from __future__ import annotations

import sys
from pathlib import Path

from detent import cpus
from detent.cli.paths import require_path
from detent.registry import entry_points, unknown_name
from detent.targets import PLACES

__all__ = ["RECIPES", "require_backend", "require_cpu", "require_cpus", "require_recipe"]

RECIPES = (
    "ptq",
    "percentile",
    "kl",
    "mse",
    "equalize",
    "adaround",
    "brecq",
    "qdrop",
    "gptq",
    "w4g32",
    "w4g128",
    "w8",
    "w4g32_gptq",
    "w4g32_hqq",
    "w4g32_awq",
    "w4g32_autoround",
    "q8_0",
    "q6_k",
    "q4_k_m",
    "q4_0",
    "nf4",
    "mxfp4",
    "mxfp8",
    "nvfp4",
    "fp8",
    "smoothquant",
    "rotate",
    "lsq",
    "lsq_plus",
    "tqt",
    "pact",
    "dorefa",
    "dsq",
    "qil",
    "apot",
    "seq",
)
"""The names in `detent.recipes.BUILTIN`, which is made of what needs torch."""


def require_backend(backend: str) -> str:
    """`backend` as it is, or `UnknownNameError` with the nearest name. A program that has loaded torch may have
    registered more, and asks its tables later."""
    if backend in PLACES or "torch" in sys.modules:
        return backend
    offered = [point.name for group in ("detent.targets", "detent.backends") for point in entry_points(group=group)]
    if backend not in offered:
        raise unknown_name("backend", backend, {*PLACES, *offered})
    return backend


def require_recipe(recipe: str) -> str:
    """The same for `--recipe`: what has a suffix is a file, else it is the name of a recipe that comes with Detent."""
    if Path(recipe).suffix:
        require_path(Path(recipe))
    elif recipe not in RECIPES:
        raise unknown_name("recipe", recipe, RECIPES, "the path of a .yaml, .yml, .json or .toml file")
    return recipe


def require_cpu(cpu: str | None) -> str | None:
    """The same for a kind of CPU."""
    return None if cpu is None else cpus.find(cpu).name


def require_cpus(names: list[str] | None) -> list[str] | None:
    """The same for each of several."""
    return names and [cpus.find(name).name for name in names]
