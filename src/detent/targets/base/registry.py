"""The registry of targets, and of their formats, engines, arithmetics and rewrites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from detent.errors import RegistrationError
from detent.ir import Network
from detent.planning import Backend
from detent.registry import Lazy, NamedRegistry, Registry, entry_points, load_offered
from detent.rewrites import Rewrite
from detent.targets.base.engine import Engine
from detent.targets.base.format import Format
from detent.targets.base.target import Target
from detent.twin import Arithmetic

__all__ = ["BackendRegistry", "TargetRegistry"]

_FORMATS = {
    "onnx": "detent.targets.base.qdq_file:FORMAT",
    "ppq_json": "detent.targets.base.ppq_json:FORMAT",
    "mqbench_json": "detent.targets.base.mqbench_json:FORMAT",
}
_ARITHMETICS = {
    "onnx_spec": "detent.twin:OnnxSpec",
    "shift_half_up": "detent.twin:ShiftHalfUp",
    "weight_only": "detent.twin:WeightOnly",
}


class BackendRegistry(NamedRegistry[Backend]):
    """The backends of all targets, by name."""

    def __init__(self, backends: Iterable[Backend] = ()):
        super().__init__("backend", Backend, backends)


class TargetRegistry(NamedRegistry[Target]):
    """Targets by name. Registering one makes known all it brings with it: `backends`, `rewrites`, `formats`, `engines`
    and `arithmetics` have those of every target, and what belongs to none.

    `places` is the literal table: name to "module:object". Packages offer a `Target` through the entry point group
    `detent.targets`; all of them are loaded when a name is asked for that no table has. One that cannot be loaded does
    not keep others away: `refused` has its error, which is raised when its name is asked for.
    """

    def __init__(self, places: Mapping[str, str]):
        super().__init__("target", Target)
        self.refused: dict[str, RegistrationError] = {}
        self.backends = BackendRegistry()
        self.rewrites: NamedRegistry[Rewrite] = NamedRegistry("rewrite", Rewrite)
        self.formats: NamedRegistry[Format] = NamedRegistry("format", Format)
        self.engines: Registry[Engine] = Registry("engine", Engine, {})
        self.arithmetics: Registry[Arithmetic] = Registry("arithmetic", Arithmetic, {})
        self._bring(_FORMATS, {}, _ARITHMETICS)
        for name, place in places.items():
            self._put(name, Lazy(place).load())
        for table in (self.backends, self.rewrites, self.formats, self.engines, self.arithmetics):
            table.find_more = self._find_installed

    def register(self, value: Target) -> None:
        """Add a target and everything that comes with it; refuse names that another target has."""
        self._check(value.name, value)
        engine = value.backend.engine
        self._bring(
            value.formats,
            {} if value.engine is None or engine is None else {engine: value.engine},
            value.arithmetics,
        )
        for rewrite in value.rewrites:
            self.rewrites.register(rewrite)
        self.backends.register(value.backend)
        super().register(value)

    def reader(self, suffix: str) -> Callable[[bytes], Network] | None:
        """The function that reads files with this suffix, such as ".tflite"; None if no target has one."""
        places = (target.readers[suffix] for target in self.values() if suffix in target.readers)
        place = next(places, None)
        return None if place is None else Lazy(place).load()

    def load_installed(self) -> None:
        """Register the targets that installed packages offer."""
        for point in entry_points(group="detent.targets"):
            if point.name in self._table or point.name in self.refused:
                continue
            try:
                self._put(point.name, load_offered(self.kind, point))
            except RegistrationError as error:
                self.refused[point.name] = error

    def _find_installed(self, name: str) -> None:
        self.load_installed()
        if name in self.refused:
            raise self.refused[name]

    def _put(self, name: str, thing: Any) -> Target:
        self._check(name, thing)
        target: Target = thing
        self.register(target)
        return target

    def _bring(self, formats: Mapping[str, str], engines: Mapping[str, str], arithmetics: Mapping[str, str]) -> None:
        for name, place in formats.items():
            self.formats.register_place(name, place)
        for name, place in engines.items():
            self.engines.register_place(name, place)
        for name, place in arithmetics.items():
            self.arithmetics.register_place(name, place)
