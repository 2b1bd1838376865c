"""What small decisions gain: a table per page of ``docs/decisions`` that needs only this machine.

    python benchmarks/small_decisions.py [NAME…]

Names: ``columns`` (kernel-interface), ``journal`` (run-log), ``child`` (measuring-in-a-child-
process), ``vectors`` and ``threads`` (cpu-kernels), ``identity`` (kernel-identity), ``restoring``
(anything-as-a-kernel), ``formats`` (saved-formats). Times are medians, with the fastest and the
slowest tenth; what a table compares is measured in turn.
"""

import argparse
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from machine import heading, markdown

from foretune.collect import InProcessRunner, IsolatedRunner, local_device
from foretune.collect.kernels import numba_codegen
from foretune.collect.timing import Timing
from foretune.datasets import RunLog, from_measurements, write_runs
from foretune.kernel import Launch
from foretune.measurement import Measurement, Status
from foretune.registry import get_kernel
from foretune.space import Configuration

ROUNDS = 30
Table = tuple[list[str], list[list[str]]]
"""Columns and rows."""


def in_turn(
    calls: Mapping[str, Callable[[], object]], rounds: int = ROUNDS
) -> dict[str, np.ndarray]:
    """Return the seconds of each call, which take turns after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def shown(seconds: np.ndarray, unit: float = 1e3) -> str:
    """Return median, first and last tenth, by default in milliseconds."""
    low, middle, high = unit * np.quantile(seconds, [0.1, 0.5, 0.9])
    return f"{middle:.3g} ({low:.3g}–{high:.3g})"


def columns() -> Table:
    """Features of many configurations: columns at once, and one configuration after another."""
    kernel = get_kernel("matmul")
    problem = kernel.training_problems(1)[0]
    space = kernel.space(problem)
    drawn = space.sample(1000, np.random.default_rng(0))
    given = {name: np.array([c[name] for c in drawn]) for name in drawn[0]}

    def quantities(config: Mapping[str, Any]) -> object:
        return kernel.cost(problem, config), kernel.derived(problem, config, {})

    calls = {
        "columns of 1,000 configurations": lambda: quantities(given),
        "1,000 configurations one by one": lambda: [quantities(c) for c in drawn],
    }
    rows = [
        [name, shown(s), f"{s.min() / len(drawn) * len(space):.3g}"]
        for name, s in in_turn(calls).items()
    ]
    return ["cost and derived quantities", "ms", f"s for all {len(space):,}"], rows


def journal() -> Table:
    """A row that is kept: a synced line of the journal, and the Parquet file written again."""
    device, kernel = local_device(), get_kernel("softmax")
    problem = kernel.training_problems(1)[0]
    config = kernel.default(problem)
    row = Measurement(kernel.name, problem, config, device.name, Status.OK, time_ms=1.0)
    rows = []
    for count in (100, 1000, 10_000):
        table = from_measurements([row] * count, device)
        with tempfile.TemporaryDirectory() as folder, RunLog(Path(folder, "log.parquet")) as log:
            whole = partial(write_runs, Path(folder, "all.parquet"), table)
            seconds = in_turn({"journal": partial(log.append, row), "Parquet": whole})
        rows.append([f"{count:,}", shown(seconds["journal"]), shown(seconds["Parquet"])])
    return ["rows so far", "a line of the journal, ms", "the whole file, ms"], rows


def child() -> Table:
    """A measurement in this process and in a child; what is left where a configuration dies."""
    device, kernel = local_device(), get_kernel("softmax")
    problem = kernel.problem({"R": 64, "C": 256})
    config, timing = kernel.default(problem), Timing(min_repeats=1, max_repeats=1)
    with (
        InProcessRunner(device, timing, power=False) as here,
        IsolatedRunner(device, timing, power=False) as there,
    ):

        def fresh() -> None:
            there.renew()
            list(there.run(kernel, problem, [config]))

        calls = {
            "in this process": lambda: list(here.run(kernel, problem, [config])),
            "in a child process": lambda: list(there.run(kernel, problem, [config])),
        }
        seconds = in_turn(calls) | in_turn({"in a fresh child process": fresh}, 5)
    rows = [[name, shown(s), *survived(name)] for name, s in seconds.items() if "fresh" not in name]
    name = "in a fresh child process"
    return (
        ["a configuration", "ms", "rows of ten, if the second dies"],
        [*rows, [name, shown(seconds[name]), ""]],
    )


DYING = """
import numpy as np
from foretune.collect import InProcessRunner, IsolatedRunner, local_device
from foretune.space import Configuration
from foretune.testing.runners import _MisbehavingKernel
kernel = _MisbehavingKernel()
works, dies = (Configuration(does=does, rounds=1) for does in ("works", "dies"))
with {runner}(local_device(), power=False) as runner:
    for m in runner.run(kernel, kernel.problem({{"n": 10}}), [works, dies, *[works] * 8]):
        print(m.status.value, flush=True)
"""


def survived(name: str) -> list[str]:
    """Return how many rows there are where the second of ten configurations ends its process."""
    runner = "InProcessRunner" if name == "in this process" else "IsolatedRunner"
    command = [sys.executable, "-c", DYING.format(runner=runner)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Traceback" in done.stderr:
        raise RuntimeError(done.stderr)
    return [str(len(done.stdout.split()))]


PLAIN = """
def product(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            c[i, j] = 0
        for k in range(a.shape[1]):
            for j in range(b.shape[1]):
                c[i, j] += a[i, k] * b[k, j]
"""
TILED = """
def product(a, b, c):
    c[:] = 0
    for kb in range(0, a.shape[1], 256):
        for ib in range(0, a.shape[0], 4):
            for jb in range(0, b.shape[1], 16):
                for k in range(kb, min(kb + 256, a.shape[1])):
                    for i in range(ib, min(ib + 4, a.shape[0])):
                        for j in range(jb, min(jb + 16, b.shape[1])):
                            c[i, j] += a[i, k] * b[k, j]
"""


def vectors() -> Table:
    """A matrix product on one core: explicit vectors, and loops that LLVM may vectorize."""
    kernel, rows = get_kernel("matmul"), []
    for n in (128, 256, 512):
        problem = kernel.problem({"M": n, "N": n, "K": n})
        inputs = kernel.make_inputs(problem)
        out = np.empty((n, n), np.float32)
        explicit = Configuration({**kernel.default(problem), "threads": 1})

        def loops(source: str, inputs: Mapping[str, Any] = inputs, out: np.ndarray = out) -> Launch:
            function = numba_codegen.compile_function(source, "product")
            return lambda: function(inputs["a"], inputs["b"], out)

        seconds = in_turn(
            {
                "explicit": kernel.build(problem, explicit, inputs),
                "plain": loops(PLAIN),
                "tiled": loops(TILED),
            }
        )
        rows.append([str(n), *(f"{2e-9 * n**3 / np.median(s):.3g}" for s in seconds.values())])
    names = ["explicit vectors, default tiles", "three loops", "six loops (tiles)"]
    return ["N = M = K", *(f"{n}, GFLOP/s" for n in names)], rows


def threads() -> Table:
    """A product on all cores whose threads are pinned, and not: how far launches spread."""
    kernel = get_kernel("matmul")
    problem = kernel.problem({"M": 128, "N": 128, "K": 128})
    config, inputs = kernel.default(problem), kernel.make_inputs(problem)
    launch = kernel.build(problem, config, inputs)
    pin = numba_codegen._pin
    found: dict[str, list[np.ndarray]] = {}
    try:
        for number in range(2 * 5):
            pinned = number % 2 == 0
            numba_codegen._pin = pin if pinned else lambda number: None
            numba_codegen._executor.cache_clear()
            seconds = in_turn({"": launch}, 400)[""]
            found.setdefault("pinned" if pinned else "not pinned", []).append(seconds)
    finally:
        numba_codegen._pin = pin
        numba_codegen._executor.cache_clear()
    rows = []
    for name, sessions in found.items():
        medians = [np.median(s) for s in sessions]
        rows.append(
            [name, shown(np.concatenate(sessions), 1e6), f"{max(medians) / min(medians):.2f}"]
        )
    return ["threads", "µs of a launch", "slowest median of five sessions / fastest"], rows


MODULE = """
import triton
import triton.language as tl

from {folder}_helper import scaled


@triton.jit
def scale(x, out, n, BLOCK: tl.constexpr):
    \"\"\"``out = 2 * x``.\"\"\"
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, scaled(tl.load(x + at, mask=at < n)), mask=at < n)
"""
HELPER = """
import triton
import triton.language as tl


@triton.jit
def scaled(x):
    return 2 * x


@triton.jit
def unused(x):
    return x
"""
EDITS: Mapping[str, tuple[str, str, str]] = {
    "another list of configurations": (
        "module",
        "@triton.jit",
        "@triton.autotune([triton.Config({'BLOCK': 64})], ['n'])\n@triton.jit",
    ),
    "a line above the kernel": ("module", "@triton.jit", "LIMIT = 3\n\n\n@triton.jit"),
    "a comment in it": ("module", "    at =", "    # the block\n    at ="),
    "its docstring": ("module", "``out = 2 * x``", "Scales."),
    "another function of the file": ("helper", "    return x\n", "    return x + 1\n"),
    "the kernel's code": ("module", "mask=at < n)), mask", "mask=at < n, other=0)), mask"),
    "the function that it calls": ("helper", "2 * x", "3 * x"),
}
"""What is edited: the file, a text in it, and the text that replaces it."""


def identity() -> Table:
    """Edits of a Triton kernel: whose key of measurements or compiled code stays."""
    from foretune.tune.triton.problem_key import source_hash, undecorated_kernel

    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)

        def keys(number: int, edit: tuple[str, str, str] | None) -> tuple[str, str]:
            texts = {"helper": HELPER, "module": MODULE.format(folder=f"edit{number}")}
            if edit:
                file, old, new = edit
                assert old in texts[file]
                texts[file] = texts[file].replace(old, new, 1)
            for name, text in texts.items():
                Path(folder, f"edit{number}_{name}.py").write_text(text)
            module = importlib.import_module(f"edit{number}_module")
            kernel = undecorated_kernel(module.scale)
            return source_hash(kernel), kernel.cache_key

        before = keys(0, None)
        try:
            rows = []
            for number, (name, edit) in enumerate(EDITS.items(), 1):
                same = [a == b for a, b in zip(keys(number, edit), before, strict=True)]
                rows.append([name, *("kept" if kept else "measured again" for kept in same)])
        finally:
            sys.path.remove(folder)
    return ["edited", "Foretune's measurements", "by Triton's key"], rows


def restoring() -> Table:
    """A function that writes into its argument, timed on restored data and on its own output."""
    drawn = np.random.default_rng(0).random(100_000)
    array = drawn.copy()
    restored: list[float] = []
    repeated: list[float] = []
    for _ in range(ROUNDS):
        for seconds, again in ((restored, True), (repeated, False)):
            if again:
                array[:] = drawn
            start = time.perf_counter()
            array.sort(kind="stable")
            seconds.append(time.perf_counter() - start)
    copies = in_turn({"": lambda: array.__setitem__(slice(None), drawn)})[""]
    return ["100,000 numbers", "ms"], [
        ["sorted in place, restored untimed before each call", shown(np.array(restored))],
        ["sorted in place again and again", shown(np.array(repeated))],
        ["the untimed copy", shown(copies)],
    ]


def formats() -> Table:
    """A shipped predictor: files without code, and a pickle of the same object."""
    from foretune.models import Predictor

    rows = []
    for name in ("matmul", "softmax", "triton_gemm"):
        (folder,) = Path(__file__).parents[1].joinpath("models/shipped", name).iterdir()
        predictor = Predictor.load(folder)
        pickled = pickle.dumps(predictor)
        calls = {
            "files": partial(Predictor.load, folder),
            "pickle": partial(pickle.loads, pickled),
        }
        seconds = in_turn(calls, 5)
        files = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        sizes = f"{files / 1024:,.0f}", f"{len(pickled) / 1024:,.0f}"
        rows.append([name, sizes[0], shown(seconds["files"]), sizes[1], shown(seconds["pickle"])])
    return ["predictor", "files, KiB", "load, ms", "pickle, KiB", "load, ms"], rows


TABLES: Mapping[str, Callable[[], Table]] = {
    f.__name__: f for f in (columns, journal, child, vectors, threads, identity, restoring, formats)
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TABLES))
    names = parser.parse_args(argv).names or list(TABLES)
    if unknown := set(names) - set(TABLES):
        parser.error(f"no table is named {', '.join(sorted(unknown))}")
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    print(heading("Small decisions", local_device()))
    for name in names:
        about = (TABLES[name].__doc__ or "").partition("\n")[0]
        print(f"{about}\n\n{markdown(*TABLES[name]())}", flush=True)


if __name__ == "__main__":
    main()
