"""The native library: built once into a private folder, never a condition for the results.

`library()` decides once for a process. So one process is started that has imported everything and built
nothing, and each question is answered by a fork of it, with the environment of the question.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from detent.numerics import native

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="there is no fork, and no native library, on Windows"),
]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler on this machine")

FORKING_PROCESS = """
import json, logging, os, signal, sys, torch
from detent.numerics import PerChannel, fused_fake_quantize, native

said = []

class Kept(logging.Handler):
    def emit(self, record):
        said.append([record.levelname, record.getMessage()])

logging.getLogger("detent").addHandler(Kept())

def answer():
    library = native.library()
    native.library()
    x = torch.tensor([[-9.0, -0.5, 0.49999997, 2.5], [0.1, 0.2, 0.3, 9.0]], requires_grad=True)
    scale = torch.tensor([1.0, 0.1], requires_grad=True)
    y = fused_fake_quantize(x, scale, torch.tensor(-4.0), torch.tensor(3.0), granularity=PerChannel(0))
    y.backward(torch.ones(2, 4))
    path = None if library is None else library._name
    return {"library": path, "said": said, "y": y.tolist(), "dx": x.grad.tolist(), "ds": scale.grad.tolist()}

for line in sys.stdin:
    if os.fork() == 0:
        signal.alarm(400)
        failed = 1
        try:
            for name, value in json.loads(line).items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            print(json.dumps(answer()), flush=True)
            failed = 0
        finally:
            os._exit(failed)
    if os.wait()[1] != 0:
        print(json.dumps({"y": "the process died"}), flush=True)
"""


@pytest.fixture(scope="module")
def process():
    with subprocess.Popen(
        [sys.executable, "-c", FORKING_PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        yield running
        running.stdin.close()


@pytest.fixture
def in_new_process(process, tmp_path):
    """Ask a new process for its library and its results; the user's own cache stays out of it."""

    def ask(**environment):
        clean = {"DETENT_CACHE": None, "DETENT_NATIVE": None, "CC": None, "XDG_CACHE_HOME": str(tmp_path / "xdg")}
        process.stdin.write(json.dumps({**clean, **environment}) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        # The results, whatever the way: [-9, -0.5, 0.5-, 2.5] / 1 and [0.1, 0.2, 0.3, 9] / 0.1 on [-4, 3].
        assert answer["y"] == [[-4, 0, 0, 2], torch.tensor([0.1, 0.2, 0.3, 0.3]).tolist()]
        assert answer["dx"] == [[0, 1, 1, 1], [1, 1, 1, 0]]
        # -4 + 0.5 - 0.49999997 - 0.5, and 3 + the errors of the quotients in float32.
        assert answer["ds"] == pytest.approx([-4.5, 3.0], abs=1e-6)
        return answer

    return ask


def compiler_script(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The machine's compiler without its optimizer, which compiles once and remembers: for questions that are not about
    speed. Its last word is where the object goes."""
    folder = tmp_path_factory.mktemp("quick")
    kept = folder / "fused.o"
    script = f"""
        for last; do :; done
        case " $* " in
            *" -c "*) if [ -f {kept} ]; then cp {kept} "$last"; else {COMPILER} "$@" -O0 && cp "$last" {kept}; fi;;
            *) exec {COMPILER} "$@";;
        esac"""
    return compiler_script(folder / "cc", script)


# ---- the cache ----


@needs_compiler
def test_it_is_built_once_into_a_folder_of_the_user_alone(in_new_process, tmp_path, quick):
    cache = tmp_path / "cache"
    first = Path(in_new_process(CC=quick, DETENT_CACHE=str(cache))["library"])
    folder = cache / "detent"
    assert first.parent == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == [first]
    before = first.stat().st_mtime_ns, first.stat().st_ino

    second = Path(in_new_process(CC=quick, DETENT_CACHE=str(cache))["library"])
    assert second == first
    assert (second.stat().st_mtime_ns, second.stat().st_ino) == before
    assert list(folder.iterdir()) == [first]


@needs_compiler
def test_without_its_own_setting_the_cache_is_the_user_s(in_new_process, tmp_path, quick):
    assert Path(in_new_process(CC=quick)["library"]).parent == tmp_path / "xdg" / "detent"


@pytest.mark.by_default("others-may-write")
@needs_compiler
@pytest.mark.parametrize(
    "mode", [pytest.param(0o777, id="others-may-write"), pytest.param(0o770, id="group-may-write")]
)
def test_a_folder_that_others_may_write_to_is_not_used(in_new_process, tmp_path, mode, quick):
    """What lies there is executed."""
    folder = tmp_path / "cache" / "detent"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    answer = in_new_process(CC=quick, DETENT_CACHE=str(tmp_path / "cache"))
    assert answer["library"] is not None
    assert folder not in Path(answer["library"]).parents
    assert not Path(answer["library"]).exists(), "what is built elsewhere is not left behind"
    assert list(folder.iterdir()) == []


@needs_compiler
def test_a_cache_that_cannot_be_made_is_no_obstacle(in_new_process, tmp_path, quick):
    (tmp_path / "file").write_text("not a folder")
    answer = in_new_process(CC=quick, DETENT_CACHE=str(tmp_path / "file"))
    assert answer["library"] is not None
    assert not Path(answer["library"]).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@needs_compiler
def test_a_cache_that_cannot_be_written_is_no_obstacle(in_new_process, tmp_path, quick):
    folder = tmp_path / "cache" / "detent"
    folder.mkdir(parents=True)
    folder.chmod(0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("root may write everywhere")
    answer = in_new_process(CC=quick, DETENT_CACHE=str(tmp_path / "cache"))
    assert answer["library"] is not None
    assert list(folder.iterdir()) == []


@pytest.mark.by_default("garbage", "cut-off")
@needs_compiler
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda _: b"not a library", id="garbage"),
        pytest.param(lambda whole: whole[: len(whole) // 2], id="half"),
        pytest.param(lambda whole: whole[:-4200], id="cut-off"),
        pytest.param(lambda _: b"", id="empty"),
    ],
)
def test_a_damaged_library_in_the_cache_is_replaced(in_new_process, tmp_path, quick, damage):
    """Loading one that is cut off would end the process by SIGBUS."""
    built = Path(in_new_process(CC=quick, DETENT_CACHE=str(tmp_path))["library"])
    whole = built.read_bytes()
    built.unlink()
    built.write_bytes(damage(whole))
    assert Path(in_new_process(CC=quick, DETENT_CACHE=str(tmp_path))["library"]) == built
    assert built.read_bytes() == whole


@needs_compiler
def test_a_library_that_others_may_write_to_is_not_loaded(in_new_process, tmp_path, quick):
    built = Path(in_new_process(CC=quick, DETENT_CACHE=str(tmp_path))["library"])
    built.chmod(0o666)
    before = built.stat().st_ino
    assert Path(in_new_process(CC=quick, DETENT_CACHE=str(tmp_path))["library"]) == built
    assert (built.stat().st_ino, stat.S_IMODE(built.stat().st_mode)) != (before, 0o666)
    assert stat.S_IMODE(built.stat().st_mode) == 0o600


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a file away")
def test_a_library_of_another_user_is_not_loaded(in_new_process, tmp_path, quick):
    built = Path(in_new_process(CC=quick, DETENT_CACHE=str(tmp_path))["library"])
    os.chown(built, 65534, -1)
    assert Path(in_new_process(CC=quick, DETENT_CACHE=str(tmp_path))["library"]) == built
    assert built.stat().st_uid == os.getuid()


# ---- without it ----


def test_it_can_be_switched_off(in_new_process, tmp_path):
    answer = in_new_process(DETENT_NATIVE="0", DETENT_CACHE=str(tmp_path / "cache"))
    assert (answer["library"], answer["said"]) == (None, [])
    assert not (tmp_path / "cache").exists()


SLOW = "quantizers run without their compiled kernels, up to 7 times slower and with the same results: "


def test_without_a_compiler_there_is_none_which_is_said_once(in_new_process, tmp_path):
    (tmp_path / "empty").mkdir()
    answer = in_new_process(PATH=str(tmp_path / "empty"), DETENT_CACHE=str(tmp_path / "cache"))
    assert answer["library"] is None
    found = f"{SLOW}no C compiler was found; install gcc or clang (DETENT_NATIVE=0 hides this)"
    assert answer["said"] == [["WARNING", found]]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("exit 1", id="fails"),
        pytest.param('case "$*" in *-shared*) exit 1;; esac', id="fails-to-link"),
    ],
)
def test_a_compiler_that_fails_is_no_obstacle_and_leaves_nothing(in_new_process, tmp_path, script):
    compiler = compiler_script(tmp_path / "broken-cc", script)
    answer = in_new_process(CC=compiler, DETENT_CACHE=str(tmp_path / "cache"))
    assert answer["library"] is None
    ((level, text),) = answer["said"]
    assert (level, text.startswith(f"{SLOW}{compiler} does not build them; ")) == ("WARNING", True)
    assert list((tmp_path / "cache" / "detent").iterdir()) == []


def test_a_compiler_that_writes_nothing_is_no_obstacle(in_new_process, tmp_path):
    compiler = compiler_script(tmp_path / "idle-cc", "exit 0")
    assert in_new_process(CC=compiler, DETENT_CACHE=str(tmp_path / "cache"))["library"] is None


@needs_compiler
def test_a_compiler_that_breaks_float_arithmetic_is_found_out(in_new_process, tmp_path):
    """Every `0.5f` read as `0.25f`: it compiles and runs, and rounds wrongly."""
    wrong = f'for a in "$@"; do case "$a" in *.c) sed -i s/0.5f/0.25f/g "$a";; esac; done; exec {COMPILER} "$@" -O0'
    compiler = compiler_script(tmp_path / "wrong-cc", wrong)
    assert in_new_process(CC=compiler, DETENT_CACHE=str(tmp_path / "cache"))["library"] is None


@needs_compiler
def test_the_compiler_named_by_cc_is_the_one_that_is_used(in_new_process, tmp_path):
    compiler = compiler_script(tmp_path / "my-cc", f'touch {tmp_path}/was-called; exec {COMPILER} "$@" -O0')
    assert in_new_process(CC=compiler, DETENT_CACHE=str(tmp_path / "cache"))["library"] is not None
    assert (tmp_path / "was-called").exists()


# ---- what it computes ----


@pytest.fixture
def library():
    loaded = native.library()
    if loaded is None:
        pytest.skip("no C compiler on this machine")
    return loaded


def test_threads_that_ask_at_once_get_one_library():
    found = []
    threads = [threading.Thread(target=lambda: found.append(native.library())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_a_mask_passes_or_stops_each_gradient(library):
    dy = torch.tensor([1.0, float("inf"), float("nan"), -2.0])
    mask = torch.tensor([True, False, False, True])
    dx = torch.empty(4)
    library.apply_mask(dy.data_ptr(), mask.data_ptr(), dx.data_ptr(), 4)
    assert dx.tolist() == [1, 0, 0, -2]


def histogram(library, x, *, inv_width, half, parts, counts):
    scratch = torch.empty(parts * 2 * half, dtype=torch.int32)
    library.histogram(x.data_ptr(), x.numel(), inv_width, half, counts.data_ptr(), scratch.data_ptr(), parts)
    return counts.tolist()


def test_a_histogram_counts_half_open_bins_on_both_sides_of_zero(library):
    # Bins of width 1/2 from -1 to 1: [-1, -0.5), [-0.5, 0), [0, 0.5), [0.5, 1).
    x = torch.tensor([-1.0, -0.75, -0.5, -0.1, -0.0, 0.0, 0.49, 0.5, 0.99])
    assert histogram(library, x, inv_width=2.0, half=2, parts=1, counts=torch.zeros(4, dtype=torch.int64)) == [
        2,
        2,
        3,
        2,
    ]


def test_a_histogram_adds_to_what_was_counted_before(library):
    counts = torch.tensor([10, 20])
    assert histogram(library, torch.tensor([-0.5, 0.5, 0.5]), inv_width=1.0, half=1, parts=1, counts=counts) == [11, 22]


@pytest.mark.parametrize("parts", [1, 2, 7, 64])
def test_a_histogram_is_the_same_in_any_number_of_parts(library, parts):
    x = torch.randn(50_001, generator=torch.Generator().manual_seed(0)).clamp(-7.9, 7.9)
    expected = torch.histogram(x.double(), bins=64, range=(-8.0, 8.0)).hist.long().tolist()
    counts = torch.zeros(64, dtype=torch.int64)
    assert histogram(library, x, inv_width=4.0, half=32, parts=parts, counts=counts) == expected
