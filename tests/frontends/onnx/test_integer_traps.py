"""Integer operations that a CPU ends a process at, or that C leaves undefined: folded and run without harm.

Each runs in a process of its own, which must end by itself.
"""

from __future__ import annotations

import json
import subprocess
import sys

LEAST = {"int64": -(2**63), "int32": -(2**31), "int16": -(2**15), "int8": -128}

PROGRAM = """
import json, sys
import numpy as np, torch
from onnx import helper, numpy_helper
import detent
from detent.errors import DetentError
from detent.ir import read_qdq
from detent.ir.folding import fold_constants

def outcome(made):
    try:
        return made()
    except DetentError as error:
        return type(error).__name__
    except (RuntimeError, ZeroDivisionError, ValueError, TypeError) as error:
        return "raised " + type(error).__name__

def both(op, a, b, **attributes):
    kind = helper.np_dtype_to_tensor_dtype(a.dtype)
    nodes = [helper.make_node(op, ["a", "b"], ["c"], **attributes), helper.make_node("Cast", ["c"], ["d"], to=1),
             helper.make_node("Add", ["x", "d"], ["y"])]
    ends = [helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    held = [numpy_helper.from_array(a, "a"), numpy_helper.from_array(b, "b")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    def imported():
        return detent.load(model)(torch.zeros(2)).tolist()
    def folded():
        return fold_constants(read_qdq(model), {}).constants["d"].tolist()
    return [outcome(imported), outcome(folded)]

found = {}
for name in ("int64", "int32", "int16", "int8"):
    least = np.iinfo(name).min
    a, one = np.array([least, 7], name), np.array([-1, -1], name)
    zero = np.array([0, 0], name)
    found[f"div {name}"] = both("Div", a, one)
    found[f"div by zero {name}"] = both("Div", a, zero)
    for fmod in (0, 1):
        found[f"mod {fmod} {name}"] = both("Mod", a, one, fmod=fmod)
        found[f"mod by zero {fmod} {name}"] = both("Mod", a, zero, fmod=fmod)
    found[f"pow {name}"] = both("Pow", a, one)
    found[f"pow many {name}"] = both("Pow", a, np.array([100, 100], name))
for name in ("uint8", "uint16", "uint32", "uint64"):
    a, by = np.array([1, 255], name), np.array([200, 64], name)
    for direction in ("LEFT", "RIGHT"):
        found[f"shift {direction} {name}"] = both("BitShift", a, by, direction=direction)
print(json.dumps(found))
"""


def test_no_integer_operation_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    found = json.loads(done.stdout)
    for name in ("int64", "int32"):
        wraps = [float(LEAST[name]), -7.0]
        assert found[f"div {name}"] == [wraps, wraps], "as negation wraps around"
