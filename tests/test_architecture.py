"""The shape of the library: who imports whom, what is public, what is never used, what is loaded when."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import detent

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "detent"

# --- who may import whom -----------------------------------------------------------------------------------

EVERYWHERE = {"errors", "files", "processes", "registry", "cpus", "deprecation", "progress", "traversal", "markup"}
TRAINING_LEVEL = {"numerics", "observers", "quantizers", "graph", "recipes", "planning"}
DEPLOYMENT_LEVEL = {"ir", "frontends", "rewrites", "twin", "targets", "deployment", "verification"}
CORE = {
    *TRAINING_LEVEL,
    *DEPLOYMENT_LEVEL,
    "algorithms",
    "known_qparams",
    "preparing",
    "calibrating",
    "loading",
    "retargeting",
    "report",
    "artifact",
    "evaluation",
    "precision",
    "quantizing",
    "layerwise",
    "data",
}
# A package is a folder or a module of src/detent; "detent" is its __init__.py, the public names.
# It may also import itself and, unless it is one of them, those of EVERYWHERE.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "processes": set(),
    "registry": {"errors"},
    "cpus": {"errors"},
    "deprecation": set(),
    "progress": set(),
    "traversal": set(),
    "markup": set(),
    "numerics": set(),
    "observers": {"numerics"},
    "quantizers": {"numerics", "observers"},
    "recipes": {"numerics", "observers", "quantizers"},
    "graph": {"numerics", "observers", "quantizers"},
    "algorithms": {"numerics", "observers", "quantizers", "graph"},
    "planning": {"numerics", "observers", "quantizers", "graph", "recipes"},
    "data": set(),
    "ir": {"numerics", "quantizers"},
    "frontends": {"numerics", "observers", "quantizers", "graph", "ir"},
    "rewrites": {"numerics", "ir", "frontends"},
    "twin": {"numerics", "quantizers", "graph", "ir", "frontends"},
    "targets": TRAINING_LEVEL | {"ir", "frontends", "rewrites", "twin"},
    # What a file that was quantized before says of its grids.
    "known_qparams": TRAINING_LEVEL | {"frontends", "targets"},
    "preparing": TRAINING_LEVEL | {"frontends", "targets", "algorithms", "known_qparams"},
    "calibrating": {"graph", "algorithms", "observers"},
    "deployment": TRAINING_LEVEL | {"ir", "frontends", "rewrites", "targets"},
    # A file that was deployed is read as the model was before its rewrites.
    "loading": {"frontends", "ir", "rewrites"},
    "retargeting": TRAINING_LEVEL
    | {"ir", "frontends", "targets", "deployment", "known_qparams", "loading", "preparing"},
    "zoo": set(),
    "verification": TRAINING_LEVEL | {"ir", "frontends", "rewrites", "twin", "targets", "deployment"},
    # The float network is the model in memory, or the file that was quantized, prepared again.
    "report": {
        "numerics",
        "graph",
        "recipes",
        "algorithms",
        "ir",
        "rewrites",
        "twin",
        "targets",
        "loading",
        "preparing",
        "verification",
    },
    "artifact": {"graph", "ir", "planning", "targets", "deployment", "retargeting", "verification", "report"},
    "evaluation": {"graph", "ir", "frontends", "twin", "targets", "deployment"},
    "kv_cache": {"numerics", "quantizers"},
    "precision": {
        "recipes",
        "planning",
        "targets",
        "graph",
        "algorithms",
        "verification",
        "preparing",
        "calibrating",
        "artifact",
    },
    "quantizing": {
        "recipes",
        "planning",
        "targets",
        "deployment",
        "frontends",
        "loading",
        "preparing",
        "calibrating",
        "artifact",
        "data",
        "algorithms",
        "graph",
        "ir",
        "precision",
    },
    "layerwise": {
        "numerics",
        "quantizers",
        "recipes",
        "graph",
        "algorithms",
        "planning",
        "frontends",
        "targets",
        "preparing",
        "deployment",
    },
    "tuning": CORE,
    "demo": {"graph", "recipes", "targets", "preparing", "calibrating", "artifact", "training"},
    "training": CORE | {"zoo"},
    "bench": CORE | {"training", "zoo", "compat"},  # MQBench's hardware settings are those of its zoo
    "detent": CORE | {"training", "tuning", "zoo"},
    # Names from before the packages were parted.
    "backends": {"targets", "planning"},
    "engines": {"targets"},
    "compat": CORE | {"training", "detent", "zoo"},
    "cli": CORE | {"training", "tuning", "bench", "detent", "compat", "demo", "zoo"},
    "__main__": {"cli"},
}
# A name that a user gives is looked up where the names are, inside of a function.
SHARED = {"__init__", "base", "engines", "arithmetics", "formats", "rewrites"}  # of detent.targets, beside the targets
BORROWED = {
    ("executorch", "litert"): "its delegate is XNNPACK, whose kernels LiteRT runs too",
}
LOOKED_UP = {
    ("ir", "targets"): "which formats wrote the files of a manifest that does not say it (version 1)",
    ("twin", "targets"): '`twin.run(model, inputs, "openvino")`, and the path of a .tflite file',
}


# What a package may name as a type, under `if TYPE_CHECKING:`, and not import: a prepared model knows its backend, its
# recipe and what algorithms did, and the code of `graph` stands on none of them.
TYPES: dict[str, set[str]] = {"graph": {"algorithms", "planning", "recipes"}}


@cache  # it is asked several times of each file, and parsing the library takes seconds
def imported(source: str) -> tuple[tuple[int, str], ...]:
    """(line, dotted name) of each import in `source`, at any depth, `import_module("literal")` included."""
    return tuple(_imported(ast.parse(source)))


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(level=0, module=str(module), names=names):
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in names)
            case ast.ImportFrom(level=level, module=module):
                yield node.lineno, "." * level + (module or "")
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def type_checking_lines(source: str) -> set[int]:
    """The lines under `if TYPE_CHECKING:`, which are read by type checkers alone."""
    found: set[int] = set()
    if "TYPE_CHECKING:" not in source:
        return found
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body):
                found.update(line for inner in body for line in range(inner.lineno, (inner.end_lineno or 0) + 1))
    return found


def indented(source: str, line: int) -> bool:
    """Whether a line stands inside of a function."""
    return source.splitlines()[line - 1].startswith(" ")


def violations(package: str, source: str) -> list[str]:
    """What `source`, a file of `package`, imports against the table; one line each.

    >>> violations("observers", "from detent.numerics import Scheme")
    []
    >>> violations("numerics", "from detent.observers import MinMax")
    ['line 1: numerics may not import observers']
    """
    if package not in ALLOWED:
        return [f"{package} is not a package of the table ALLOWED"]
    allowed = ALLOWED[package] | {package} | (EVERYWHERE if package not in EVERYWHERE else set())
    for_types = type_checking_lines(source)
    found = []
    for line, name in imported(source):
        if name.startswith("."):
            found.append(f"line {line}: relative import of {name}, write it out")
            continue
        top, _, rest = name.partition(".")
        if top != "detent":
            continue
        # `from detent import Scheme` asks the root; `from detent import numerics` asks a package.
        head, _, tail = rest.partition(".")
        target = head if head in ALLOWED or tail else "detent"
        looked_up = (package, target) in LOOKED_UP and indented(source, line)
        if target not in allowed | (TYPES.get(package, set()) if line in for_types else set()) and not looked_up:
            found.append(f"line {line}: {package} may not import {target}")
    return sorted(found)


@pytest.mark.parametrize(
    ("package", "source", "found"),
    [
        ("graph", "import torch\nfrom detent.quantizers import LSQ", []),
        ("graph", "from detent.graph.plan import Plan", []),
        ("graph", "from detent import errors", []),
        ("graph", "if TYPE_CHECKING:\n    from detent.planning import Backend", []),
        ("graph", "from detent.planning import Backend", ["line 1: graph may not import planning"]),
        (
            "graph",
            "if TYPE_CHECKING:\n    from detent.deployment import write",
            ["line 2: graph may not import deployment"],
        ),
        ("numerics", "import detent.observers", ["line 1: numerics may not import observers"]),
        ("numerics", "import detent.observers.minmax as m", ["line 1: numerics may not import observers"]),
        ("numerics", "from detent import observers", ["line 1: numerics may not import observers"]),
        ("observers", "def f():\n    from detent.graph import Plan", ["line 2: observers may not import graph"]),
        ("observers", "import_module('detent.graph')", ["line 1: observers may not import graph"]),
        ("algorithms", "from detent.targets import BACKENDS", ["line 1: algorithms may not import targets"]),
        ("planning", "from detent.targets import BACKENDS", ["line 1: planning may not import targets"]),
        ("twin", "from detent.targets.engines import ENGINES", ["line 1: twin may not import targets"]),
        ("errors", "from detent.registry import Registry", ["line 1: errors may not import registry"]),
        ("graph", "import detent", ["line 1: graph may not import detent"]),
        ("graph", "from detent import prepare", ["line 1: graph may not import detent"]),
        ("graph", "from ..backends import BACKENDS", ["line 1: relative import of ..backends, write it out"]),
        ("graph", "from detent.attic import x", ["line 1: graph may not import attic"]),
        ("attic", "", ["attic is not a package of the table ALLOWED"]),
    ],
)
def test_violations_are_found(package: str, source: str, found: list[str]) -> None:
    assert violations(package, source) == found


def test_the_table_has_no_circle() -> None:
    rest = {package: allowed - EVERYWHERE for package, allowed in ALLOWED.items()}
    while rest:
        ground = [package for package, allowed in rest.items() if not allowed & rest.keys()]
        assert ground, f"these packages stand on each other: {sorted(rest)}"
        rest = {package: allowed for package, allowed in rest.items() if package not in ground}


def package_of(file: Path) -> str:
    first = file.relative_to(SOURCE).parts[0]
    return "detent" if first == "__init__.py" else first.removesuffix(".py")


def test_imports_go_downwards() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert SOURCE / "numerics" / "__init__.py" in files
    found = [f"{file.relative_to(ROOT)}: {v}" for file in files for v in violations(package_of(file), file.read_text())]
    assert not found, "\n".join(found)


def owner(module: str) -> str | None:
    """The target that a module belongs to.

    >>> owner("detent.targets.openvino.arithmetic.adds"), owner("detent.targets.base.engine"), owner("detent.ir")
    ('openvino', None, None)
    """
    parts = module.split(".")
    own = parts[:2] == ["detent", "targets"] and len(parts) > 2 and parts[2] not in SHARED
    return parts[2] if own else None


def test_a_target_imports_no_other() -> None:
    found = set()
    for file in sorted((SOURCE / "targets").rglob("*.py")):
        module = ".".join(("detent", *file.relative_to(SOURCE).with_suffix("").parts))
        here = owner(module)
        others = {owner(name) for _, name in imported(file.read_text())} - {None, here}
        found.update((here, other) for other in others if here is not None)
    assert found == BORROWED.keys()


# Modules that look into ONNX messages, outside of those that read and write them (`ir`, `frontends/onnx`). All others
# work on `ir.Network`, or pass a model on.
LOOK_INTO_MODELS = {
    "compat/ppq/graph.py": "PPQ's graph shows the attributes of the file's nodes",
    "deployment/annotate_base.py": "brings the file that was imported to another opset, before it is a Network",
    "deployment/write.py": "names of outputs, without reading the weights again as a Network",
    "frontends/torch/older_nodes.py": "what torch.onnx.export wrote, in an older opset",
    "frontends/torch/opaque.py": "what torch.onnx.export wrote of one module",
    "report/annotated.py": "notes on the nodes of the file, for viewers of ONNX",
    "targets/base/float_network.py": "reads `float.onnx` back",
    "targets/nxp.py": "its ranges are inputs with values, which a Network does not have",
    "targets/onnxruntime/engine.py": "names and outputs of what the engine loads",
    "targets/onnxruntime/placement.py": "the graph that ONNX Runtime made of the file",
    "targets/onnxruntime_genai/engine.py": "outputs and levels of what the engine loads",
    "targets/openvino/engine.py": "names of Q and DQ in the file that OpenVINO loads",
    "targets/openvino/ir_file.py": "names of Q and DQ in the file that OpenVINO reads",
    "targets/qualcomm/engine.py": "the file that ONNX Runtime loads, with sizes fixed",
    "targets/qualcomm/partition.py": "the file that ONNX Runtime loads, in parts",
    "targets/tvm/qlinear_graph.py": "writes QLinear operators, which a Network does not have",
    "twin/foreign.py": "a model of one operation, for ONNX Runtime",
}
_LOOKS = re.compile(
    r"\b(Node|Graph)Proto\b|\bhelper\.make_|(?<!self)(?<!builder)\.graph\.(node|initializer|input|output)\b"
)


@pytest.mark.parametrize(
    ("source", "looks"),
    [
        ("for node in model.graph.node: ...", True),
        ("helper.make_node('Relu', ['x'], ['y'])", True),
        ("def f(node: onnx.NodeProto): ...", True),
        ("def f(model: onnx.ModelProto): return read_qdq(model)", False),
        ("package.graph.inputs; package.graph.outputs", False),
        ("self.graph.output(x)", False),
    ],
)
def test_what_looks_into_models_is_found(source: str, looks: bool) -> None:
    assert bool(_LOOKS.search(source)) == looks


def test_onnx_messages_are_looked_into_at_the_edges_only() -> None:
    found = {str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if _LOOKS.search(file.read_text())}
    assert {name for name in found if not name.startswith(("ir/", "frontends/onnx/"))} == LOOK_INTO_MODELS.keys()


# --- public names ------------------------------------------------------------------------------------------


def packages() -> list[str]:
    below = pkgutil.walk_packages(detent.__path__, "detent.")
    return ["detent", *(module.name for module in below if module.ispkg)]


def in_order(name: str) -> tuple[int, list[str | int]]:
    """The order the linter wants: CONSTANTS, Classes, the rest; numbers inside a name by value."""
    rank = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return rank, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def bound(body: list[ast.stmt], package: str) -> Iterator[str]:
    """The names a package defines, or imports from its own files, at its top level (inside `if` and `try` too)."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.ImportFrom(module=str(module), names=names) if f"{module}.".startswith(f"{package}."):
                yield from (alias.asname or alias.name for alias in names)
            case ast.Assign(targets=targets):
                yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                yield from bound(inner + other, package)


def public_name_faults(module: ModuleType) -> list[str]:
    """Where `__all__` and the public names of `module` differ; one line each."""
    names: list[str] = module.__all__
    faults = [f"{name} is in __all__ but does not exist" for name in names if not hasattr(module, name)]
    if names != sorted(set(names), key=in_order):
        faults.append(f"__all__ should read {sorted(set(names), key=in_order)}")
    assert module.__file__ is not None
    for name in bound(ast.parse(Path(module.__file__).read_text()).body, module.__name__):
        if name.startswith("_") or name in names or isinstance(getattr(module, name, None), ModuleType):
            continue
        faults.append(f"{name} is public but not in __all__")
    return faults


@pytest.mark.parametrize("package", packages())
def test_public_names_are_all(package: str) -> None:
    module = importlib.import_module(package)
    assert hasattr(module, "__all__"), f"{package} does not say what is public"
    assert not public_name_faults(module)


def test_public_name_faults_are_found(tmp_path: Path) -> None:
    file = tmp_path / "made_up.py"
    file.write_text(
        "from pathlib import Path\n"
        "from detent.errors import DetentError\n"
        "if False:\n    from made_up.part import Piece\n"
        "def shown(): ...\n"
        "def forgotten(): ...\n"
        "def _private(): ...\n"
        "__all__ = ['shown', 'absent', 'shown']\n"
    )
    module = ModuleType("made_up")
    module.__file__ = str(file)
    exec(compile(file.read_text(), file, "exec"), vars(module))
    assert public_name_faults(module) == [
        "absent is in __all__ but does not exist",
        "__all__ should read ['absent', 'shown']",
        "Piece is public but not in __all__",
        "forgotten is public but not in __all__",
    ]


# --- what is never used ------------------------------------------------------------------------------------


def python_files() -> list[Path]:
    folders = ("src", "tests", "examples", "benchmarks", "tools")
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def torch_names(source: str) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of everything in `source` that is reached from `torch`, aliases resolved."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                aliases[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        parts, at = [], node
        while isinstance(at, ast.Attribute):
            parts.append(at.attr)
            at = at.value
        if parts and isinstance(at, ast.Name) and at.id in aliases:
            yield at.lineno, ".".join([aliases[at.id], *reversed(parts)])


def forbidden_torch(source: str) -> list[str]:
    """Uses of torch's deprecated quantization and of its private names (dunders are public)."""
    if not re.search(r"(?<!\bself)(?<!\bcls)\._(?!_)|\bao\b|import _", source):
        return []  # without parsing it, which takes long
    private = re.compile(r"torch(\.\w+)*\.(?!__)_\w+|torch\.ao(\.\w+)*")
    return sorted({f"line {line}: {name}" for line, name in torch_names(source) if private.fullmatch(name)})


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch.nn.Linear(1, 1); torch.__version__", []),
        ("import torch\ntorch.ao.quantization", ["line 2: torch.ao", "line 2: torch.ao.quantization"]),
        ("from torch.ao import quantization", ["line 1: torch.ao.quantization"]),
        ("import torch as t\ndef f():\n    t._C", ["line 3: torch._C"]),
        ("import torch.nn.functional as F\nF._pad", ["line 2: torch.nn.functional._pad"]),
        ("from torch import _dynamo", ["line 1: torch._dynamo"]),
    ],
    ids=["public", "ao", "from-ao", "private", "through-alias", "from-private"],
)
def test_forbidden_torch_is_found(source: str, found: list[str]) -> None:
    assert forbidden_torch(source) == found


def test_only_public_torch() -> None:
    found = [f"{file.relative_to(ROOT)}: {use}" for file in python_files() for use in forbidden_torch(file.read_text())]
    assert not found, "\n".join(found)


# Modules that rely on how torch works inside, and not on its functions alone: what to look at for a new torch.
FOLLOW_TORCH = {
    "frontends/torch/opaque.py": "reads what torch.onnx.export and torch.export give",
    "graph/weights/computed_weights.py": "sees calls by TorchFunctionMode, and gives a module the class of a layer",
    "graph/decompositions/table.py": "patches the forward of torch's own layers",
    "graph/capture/exporting.py": "reads the graphs of torch.export",
    "graph/weights/plain_parameters.py": "takes the class of a parametrized module back",
    "graph/capture/recording.py": "sees calls by TorchFunctionMode, and patches nn.Module.__call__",
    "graph/capture/shape_guards.py": "takes the tracer's patches of nn.Module back",
    "layerwise/skeleton.py": "sees calls by TorchFunctionMode: parameters that are to be filled take no memory",
    "graph/capture/tracing.py": "patches fx.Proxy and torch's factory functions",
    "targets/executorch/program.py": "the dialect of torch.export that ExecuTorch takes",
    "targets/torch_native/engine.py": "calls torch.ops.quantized",
}
_FOLLOWS = re.compile(
    r"\bmock\.patch|\.__class__ = |\bTorchFunctionMode\)"
    r"|\btorch\.onnx\.export\(|\btorch\.export\.\w+\(|\btorch\.ops\.quantized\."
)


def test_what_relies_on_the_inside_of_torch_is_listed() -> None:
    found = {str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if _FOLLOWS.search(file.read_text())}
    assert found == FOLLOW_TORCH.keys()


def test_nothing_is_left_for_later() -> None:
    marker = re.compile(r"\b(TO[D]O|FIX[M]E)\b")
    found = [str(file.relative_to(ROOT)) for file in python_files() if marker.search(file.read_text())]
    assert not found


def test_every_process_that_a_test_starts_has_a_timeout() -> None:
    found = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        source = file.read_text()
        if "subprocess." not in source:
            continue
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        runs = [call for call in calls if ast.unparse(call.func) in ("subprocess.run", "subprocess.check_output")]
        found += [f"{file}:{run.lineno}" for run in runs if "timeout" not in {word.arg for word in run.keywords}]
    assert not found


# --- loading is fast ---------------------------------------------------------------------------------------


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def python(code: str) -> str:
    return run(sys.executable, "-c", code)


HELP_MODULES = """
import sys
from detent.cli import main
sys.argv = ["detent", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    "code",
    ["import sys, detent; print('torch' in sys.modules)", HELP_MODULES],
    ids=["import", "help"],
)
def test_torch_is_not_loaded_before_it_is_needed(code: str) -> None:
    assert python(code).splitlines()[-1] == "False"
