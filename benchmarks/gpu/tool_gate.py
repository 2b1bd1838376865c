"""Item of `tools.py`: `foretune gate` on a kernel that does more work, and on an equal one.

A repository is made in a temporary folder. Its library has two functions, which run a chain of
multiplications in CUDA C++; without a GPU, in C. The head's ``slower`` has a known share more of
them, its ``equal`` as many. The gate builds both revisions in environments of their own; and it
compares two interpreters, into which the base and an equal twin were built before.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from smoke_rows import REAL, Run

ROOT = Path(__file__).resolve().parents[2]
SHARE = 0.1
"""More work of the slower kernel on a GPU."""
REPLAYED_SHARE = 1.0
"""The same on a CPU, which may be busy."""
STEPS = 400_000
"""Multiplications one after the other: under a millisecond."""
BUDGET_S = 12.0
"""Seconds of measuring of each gate."""
LIMIT_S = 90.0

CUDA = """
#define BLOCKS 264
#define THREADS 128

__global__ void multiply(float *out, float a, float b, int steps) {
    float x = threadIdx.x;
    for (int i = 0; i < steps; i++) x = x * a + b;
    out[blockIdx.x * THREADS + threadIdx.x] = x;
}

static int run(int steps) {
    static float *out = nullptr;
    if (!out && cudaMalloc(&out, BLOCKS * THREADS * sizeof(float))) return 1;
    multiply<<<BLOCKS, THREADS>>>(out, 0.5f, 1.0f, steps);
    if (cudaGetLastError()) return 2;
    return cudaDeviceSynchronize() ? 3 : 0;
}

extern "C" int slower() { return run(SLOWER); }
extern "C" int equal() { return run(EQUAL); }
"""
C = """
static volatile float a = 0.5f, b = 1.0f, out;

static int run(int steps) {
    float x = 0.0f, factor = a, summand = b;
    for (int i = 0; i < steps; i++) x = x * factor + summand;
    out = x;
    return 0;
}

int slower(void) { return run(SLOWER); }
int equal(void) { return run(EQUAL); }
"""
LIBRARY = """
import ctypes
from pathlib import Path

_library = ctypes.CDLL(str(Path(__file__).parent / "libtwin.so"))

def run(name):
    code = getattr(_library, name)()
    if code:
        raise RuntimeError(f"{name} failed with {code}")
"""
BUILD = """
import shutil, subprocess, sysconfig
from pathlib import Path

here = Path(__file__).parent
installed = Path(sysconfig.get_paths()["purelib"])
command = {command!r}
source = str(here / "src" / {source!r})
subprocess.run([*command, source, "-o", str(installed / "libtwin.so")], check=True)
shutil.copy(here / "src" / "twin.py", installed)
"""
BENCHMARKS = """
import twin

def bench_slower():
    twin.run("slower")

def bench_equal():
    twin.run("equal")
"""


@dataclass(frozen=True)
class Language:
    """A language of kernels.

    Attributes:
        text: the kernels' source.
        file: its name.
        command: compiles it to a library.
        share: more work of the slower kernel.
    """

    text: str
    file: str
    command: list[str]
    share: float

    def source(self, more: float, remark: str) -> str:
        """Return the source in which ``slower`` has a share more work."""
        head = f"#define SLOWER {round(STEPS * (1 + more))}\n#define EQUAL {STEPS}\n"
        return f"/* {remark} */\n{head}{self.text}"


def gate(run: Run) -> None:
    """Let the gate compare a slower and an equal twin."""
    language = language_here()
    if language is None:
        run.leave_out("nvcc" if REAL else "cc", "no compiler is found")
        return
    if not shutil.which("git"):
        run.leave_out("git", "the gate's revisions need it")
        return
    if not REAL:
        compile_ahead(run)
    folder = run.folder / "gate"
    commits = make_repository(folder, language)
    is_compared = False
    if importlib.util.find_spec("ensurepip") is None:
        detail = "not run: without ensurepip, the gate cannot make environments of revisions"
        run.check("BASE..HEAD", True, detail)
    else:
        with run.checking("BASE..HEAD"):
            words = ["--install", "python build.py", f"{commits['base']}..{commits['slower']}"]
            check_slower(run, "BASE..HEAD", run_gate(folder, [*words, "benchmarks"]), language)
            is_compared = True

    wanted = ["base", "equal"] if is_compared else ["base", "equal", "slower"]
    pythons = {name: build(folder, name, commits[name]) for name in wanted}
    if not is_compared:
        words = ["--base", pythons["base"], "--head", pythons["slower"], "benchmarks"]
        check_slower(run, "--base and --head", run_gate(folder, words), language)
    words = ["--base", pythons["base"], "--head", pythons["equal"], "benchmarks"]
    code, result = run_gate(folder, words)
    run.check("equal twin", code == 0, f"exit code {code}: {text_of(result)}")


def check_slower(
    run: Run, what: str, answer: tuple[int, dict[str, Any]], language: Language
) -> None:
    """Check that the gate is red, and only for the kernel with more work."""
    code, result = answer
    words = {row["benchmark"].rpartition("::")[2]: row["verdict"] for row in result["verdicts"]}
    is_right = words.get("bench_slower") == "slower"
    is_right = is_right and words.get("bench_equal") in ("same", "cannot tell")
    run.check(
        f"{100 * language.share:g} % more work, {what}",
        code == 1 and is_right,
        f"exit code {code}: {text_of(result)}",
    )


def compile_ahead(run: Run) -> None:
    """Compile the source in CUDA for the replayed device, if its compiler is here."""
    nvcc = find_nvcc()
    if nvcc is None:
        run.check("CUDA C++", True, "not compiled: there is no nvcc")
        return
    architecture = run.driver.device_interface.target.name
    source = run.folder / "twin.cu"
    language = cuda(nvcc, architecture)
    source.write_text(language.source(SHARE, "compiled only"))
    command = [*language.command, str(source), "-o", str(run.folder / "libtwin.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stderr[-300:] or f"nvcc compiles it for {architecture}"
    run.check("CUDA C++", done.returncode == 0, said)


def cuda(nvcc: str, architecture: str) -> Language:
    """Return CUDA C++, compiled for an architecture."""
    command = [nvcc, f"-arch={architecture}", "-O2", "-shared", "-Xcompiler", "-fPIC"]
    return Language(CUDA, "twin.cu", command, SHARE)


def language_here() -> Language | None:
    """Return the language of this machine's kernels; None without its compiler."""
    if not REAL:
        compiler = shutil.which("cc") or shutil.which("gcc")
        command = [compiler or "", "-O2", "-shared", "-fPIC"]
        return Language(C, "twin.c", command, REPLAYED_SHARE) if compiler else None
    nvcc = find_nvcc()
    if nvcc is None:
        return None
    major, minor = torch.cuda.get_device_capability()
    return cuda(nvcc, f"sm_{major}{minor}")


def find_nvcc() -> str | None:
    """Return CUDA's compiler: on the path, or where CUDA is usually installed."""
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    homes += sorted(Path("/usr/local").glob("cuda*"), reverse=True)
    found = [shutil.which("nvcc"), *(shutil.which("nvcc", path=str(h / "bin")) for h in homes)]
    return next((path for path in found if path), None)


def make_repository(folder: Path, language: Language) -> dict[str, str]:
    """Make a repository with three commits; return them by name."""
    sources = {
        "base": language.source(0.0, "the base"),
        "slower": language.source(language.share, "more work"),
        "equal": language.source(0.0, "as much work, other words"),
    }
    files = {
        "build.py": BUILD.format(command=language.command, source=language.file),
        "src/twin.py": LIBRARY,
        "benchmarks/bench_twin.py": BENCHMARKS,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "init", "--quiet")
    commits = {}
    for name, text in sources.items():
        (folder / "src" / language.file).write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", name)
        commits[name] = git(folder, "rev-parse", "HEAD")
    return commits


def git(folder: Path, *words: str) -> str:
    """Return what git prints in a folder."""
    author = ["-c", "user.name=Foretune", "-c", "user.email=foretune@example.org"]
    command = ["git", *author, "-c", "commit.gpgsign=false", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def build(folder: Path, name: str, commit: str) -> str:
    """Build a commit into an interpreter of its own, and return that."""
    tree = folder / "builds" / name
    git(folder, "worktree", "add", "--detach", "--quiet", str(tree), commit)
    place = tree / "environment"
    python = str(place / "bin" / "python")
    for command in (
        [sys.executable, "-m", "venv", "--without-pip", str(place)],
        [python, str(tree / "build.py")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-600:]}")
    return python


def run_gate(folder: Path, words: list[str]) -> tuple[int, dict[str, Any]]:
    """Run a gate in the repository; return its exit code and its result."""
    # The gate's processes work in other folders: a relative path would mean another one there.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([str(ROOT / "src"), *(str(Path(p).resolve()) for p in given if p)])
    command = [sys.executable, "-m", "foretune", "--json", "gate", *words]
    done = subprocess.run(
        [*command, "--budget", f"{BUDGET_S:g}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"the gate said {done.stdout[-300:]} {done.stderr[-600:]}") from None


def text_of(result: dict[str, Any]) -> str:
    """Return a gate's verdicts in words."""
    rows = result.get("verdicts", [])
    texts = [
        f"{row['benchmark'].rpartition('::')[2]} {row['verdict']} ({100 * row['change']:+.1f} %, "
        f"{100 * row['change_low']:+.1f} … {100 * row['change_high']:+.1f}; "
        f"{row['base']:.3g} ms, {row['sessions']} sessions)"
        for row in rows
        if row["change"] is not None
    ]
    return "; ".join(texts) or str(result)[:300]
