"""How well is a kernel's time predicted from its code alone? Whole kernels are left out.

python examples/predict_from_code/measure/measure_costs.py [--rounds 2] [--table FILE] [--out COSTS]

Compiles the kernels of kernels.c with clang, measures them on one core, counts their LLVM IR,
and learns the costs of what it counts: half an hour. Needs clang, llvm-mca and the extras cpu and
learn. --table keeps times and counts: if the file exists, nothing is measured. --out writes the
costs for 'predict-from-code FILE:NAME --costs COSTS.json'.
"""

import argparse
import ctypes
import hashlib
import itertools
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pandas as pd
from mca import simulated_cycles
from predict_from_code.calls import Code, cache_bytes, count_code
from predict_from_code.code_time import COSTS, CodeTime
from predict_from_code.functions import REGION_BITS
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from foretune.collect import local_device

SOURCE = Path(__file__).with_name("kernels.c")
WIDEST = ("-O3", "-march=native", "-mprefer-vector-width=512", "-w")
OPTIONS = (*WIDEST, "-fno-math-errno", "-ffp-contract=fast", "-fno-trapping-math")
HARNESS = """
#include <time.h>
#include <xmmintrin.h>
typedef void (*F)(void *, void *, void *, void *, long, long);
double seconds(F f, void *a, void *b, void *c, void *idx, long n, long m, long repeats) {
    struct timespec s, e;
    _mm_setcsr(_mm_getcsr() | 0x8040);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &s);
    for (long r = 0; r < repeats; r++) f(a, b, c, idx, n, m);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &e);
    return ((e.tv_sec - s.tv_sec) + 1e-9 * (e.tv_nsec - s.tv_nsec)) / repeats;
}
"""
SLICE_S = 0.6e-3
"""Duration of one timed slice; the fastest slice of all rounds counts."""
Sizes = tuple[tuple[int, int], ...]
Knobs = dict[str, tuple[int, ...]]
VECTOR: Knobs = {"VW": (1, 8, 16), "IL": (1, 4)}
UNROLL: Knobs = {"IL": (1, 4, 8)}
TILES: Knobs = {"TI": (8, 32, 128), "TJ": (8, 32, 128)}
LINE = ((2000, 0), (60_000, 0), (1_000_000, 0), (6_000_000, 0))
SQUARE = ((40, 40), (200, 200), (700, 700), (2500, 2500))
CUBE = ((24, 0), (64, 0), (160, 0), (300, 0))
PRODUCT = ((24, 0), (96, 0), (256, 0), (512, 0))
POINTS = ((100, 0), (600, 0), (2000, 0))
ROWS = ((500, 8), (2000, 30), (2000, 500), (20, 100_000))
TABLE: tuple[tuple[str, Sizes, Knobs, str], ...] = (
    (
        "copy scale triad axpy_double relu softsign horner invsqrt clip",
        LINE,
        VECTOR,
        "n n n 0",
    ),
    (
        "exp_poly hash_int divide_double halve_int many_streams stencil3 reverse deinterleave",
        LINE,
        VECTOR,
        "n n n 0",
    ),
    (
        "saturate",
        LINE,
        VECTOR,
        "n n n 0",
    ),
    ("complex_multiply", LINE, VECTOR, "2*n 2*n 2*n 0"),
    ("lerp_table translate", LINE, VECTOR, "n 256 n 0"),
    ("sum maximum variance bit_count", LINE, VECTOR, "n 0 0 0"),
    ("dot_double square_norm count_if harmonic", LINE, VECTOR, "n n 0 0"),
    ("kahan argmin", LINE, UNROLL, "n 0 0 0"),
    ("prefix_sum prefix_int recurrence biquad running_max", LINE, UNROLL, "n n n 0"),
    ("divide_chain", LINE[:3], UNROLL, "n 0 0 0"),
    ("block_scan", LINE, UNROLL, "n 0 n 0"),
    ("fir16 fir_outer", LINE[:3], VECTOR, "n n n 0"),
    (
        "stencil5 stencil9_double sobel max_pool upsample softmax_rows rotate_rows",
        SQUARE,
        VECTOR,
        "n*m 9 n*m 0",
    ),
    ("stencil5_tiled", SQUARE, {**TILES, "VW": (4, 8), "IL": (1,)}, "n*m 0 n*m 0"),
    ("stencil7_3d", CUBE, VECTOR, "n**3 0 n**3 0"),
    ("gauss_seidel", SQUARE[:3], UNROLL, "n*m 0 0 0"),
    ("matmul_ikj matmul_dot matmul_transposed floyd", PRODUCT, VECTOR, "n*n n*n n*n 0"),
    (
        "matmul_order",
        PRODUCT,
        {"ORDER": (0, 1, 2, 3), "VW": (4, 8), "IL": (1, 4)},
        "n*n n*n n*n 0",
    ),
    ("matmul_tiled", PRODUCT, {**TILES, "VW": (8, 16), "IL": (2,)}, "n*n n*n n*n 0"),
    ("matmul_register", PRODUCT, {"JB": (1, 2, 4, 8, 16)}, "n*n n*n n*n 0"),
    ("matvec matvec_columns", SQUARE, VECTOR, "n*m m n 0"),
    ("matvec_strided", SQUARE, UNROLL, "n*m n m 0"),
    ("outer_product", SQUARE, VECTOR, "n m n*m 0"),
    ("syrk", PRODUCT, VECTOR, "n*n 0 n*n 0"),
    ("batched_4x4", LINE, {"VW": (1, 2, 4), "IL": (1,)}, "n n n 0"),
    ("triangular_solve", SQUARE, VECTOR, "n*n n n 0"),
    ("nbody", POINTS, VECTOR, "n n n 0"),
    ("kmeans", ((300, 0), (6000, 0), (100_000, 0)), {"VW": (1, 4, 8), "IL": (1,)}, "8*n 128 n n"),
    ("layer_norm", SQUARE, VECTOR, "n*m m n*m 0"),
    ("row_sums", ROWS, VECTOR, "n*m 0 n 0"),
    ("column_sums", ROWS, VECTOR, "n*m 0 m 0"),
    ("transpose", SQUARE, {**TILES, "IL": (1, 4)}, "n*m 0 n*m 0"),
    ("transpose_order", SQUARE, {"ORDER": (0, 1), **UNROLL}, "n*m 0 n*m 0"),
    ("gather", LINE, VECTOR, "n 0 n n"),
    ("gather_local", LINE, VECTOR, "n n n n"),
    ("scatter", LINE, UNROLL, "n 0 n n"),
    ("stride8_copy", LINE, VECTOR, "n 0 n 0"),
    ("im2col", SQUARE, VECTOR, "n*m 0 3*n*m 0"),
    ("histogram", LINE, UNROLL, "0 0 256 n"),
    ("weighted_histogram", LINE, UNROLL, "n 0 256 n"),
    ("pointer_chase", LINE[:3], {"IL": (1, 4)}, "0 0 0 n"),
    (
        "spmv",
        ((300, 0), (8000, 0), (100_000, 0), (1_000_000, 0)),
        {"VW": (1, 4, 8), "IL": (1,)},
        "8*n 9*n n 8*n",
    ),
    ("binary_search", ((1000, 0), (30_000, 0), (1_000_000, 0)), {"IL": (1,)}, "0 0 1024 n"),
    ("odd_even_sort", LINE[:3], UNROLL, "n 0 n 0"),
    ("insertion_sort", LINE[:3], {"IL": (1,)}, "n 0 n 0"),
    ("mandelbrot", LINE[:2], UNROLL, "n n n 0"),
    ("edit_distance", ((40, 40), (300, 300), (1500, 1500)), UNROLL, "n m m+2 0"),
    ("fft_stage", ((1024, 1024), (65_536, 65_536), (2**20, 2**20)), VECTOR, "n n 0 0"),
)
"""Kernels, sizes n and m, knobs, and elements of a, b, c and idx (64 more are allocated)."""
INDICES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    **dict.fromkeys(("gather", "scatter"), lambda rng, n: rng.integers(0, n - 64, n)),
    **dict.fromkeys(
        ("gather_local", "spmv"),
        lambda rng, n: np.minimum(np.arange(n) + rng.integers(0, 64, n), n - 65),
    ),
    **dict.fromkeys(("histogram", "weighted_histogram"), lambda rng, n: rng.integers(0, 256, n)),
    "pointer_chase": lambda rng, n: chain(rng.permutation(n)),
    "binary_search": lambda rng, n: np.sort(rng.integers(0, 2**30, n)),
}


@dataclass(frozen=True)
class Variant:
    """A kernel in one configuration, compiled."""

    kernel: str
    config: str
    ir: str
    library: Path
    sizes: Sizes
    lengths: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.table and given.table.exists():
        table = pd.read_parquet(given.table)
    else:
        table = make_table(given.rounds)
        if given.table:
            table.to_parquet(given.table)
    report(table, given.out)


def make_table(rounds: int) -> pd.DataFrame:
    """Return times and counts of all variants and sizes."""
    with tempfile.TemporaryDirectory() as name:
        variants = list(compile_all(Path(name)))
        runs = measured(variants, rounds, Path(name))
    return runs.merge(counted(variants), on=["kernel", "config", "n", "m"]).fillna(0.0)


def chain(order: np.ndarray) -> np.ndarray:
    """Return each element's successor in a cycle through all."""
    following = np.empty_like(order)
    following[order] = np.roll(order, -1)
    return following


def compile_all(folder: Path) -> Iterator[Variant]:
    """Yield the variants with distinct code."""
    text = SOURCE.read_text(encoding="utf-8")
    head = text[: text.index("\nvoid ")]
    for names, sizes, knobs, lengths in TABLE:
        for kernel in names.split():
            body = re.search(rf"^void {kernel}\(.*?^}}$", text, re.DOTALL | re.MULTILINE)
            assert body is not None, kernel
            main_file = folder / f"{kernel}.c"
            main_file.write_text(f"{head}\n{body[0]}\n", encoding="utf-8")
            seen = set()
            for values in itertools.product(*knobs.values()):
                config = {"VW": 1, "IL": 1, **dict(zip(knobs, values, strict=True))}
                bitcode = folder / "code.bc"
                defines = [f"-D{knob}={value}" for knob, value in config.items()]
                run(
                    "clang",
                    *OPTIONS,
                    *defines,
                    "-fno-discard-value-names",
                    "-c",
                    "-emit-llvm",
                    str(main_file),
                    "-o",
                    str(bitcode),
                )
                ir = str(llvm.parse_bitcode(bitcode.read_bytes()))
                if (digest := hashlib.sha256(ir.encode()).hexdigest()[:16]) in seen:
                    continue
                seen.add(digest)
                library = folder / f"{kernel}-{digest}.so"
                run(
                    "clang",
                    *WIDEST,
                    "-fPIC",
                    "-shared",
                    "-Xclang",
                    "-disable-llvm-passes",
                    str(bitcode),
                    "-o",
                    str(library),
                )
                yield Variant(kernel, json.dumps(config), ir, library, sizes, lengths)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def arguments(variant: Variant, n: int, m: int) -> list[np.ndarray]:
    """Return a, b, c and idx."""
    rng = np.random.default_rng(0)
    kind = {"float": np.float32, "double": np.float64, "i32": np.int32}[element(variant)]
    lengths = [eval(part, {"n": n, "m": m}) + 64 for part in variant.lengths.split()]
    whole = kind is np.int32
    arrays = [
        rng.integers(0, 1000, k).astype(kind) if whole else rng.uniform(0.5, 1.5, k).astype(kind)
        for k in lengths[:3]
    ]
    index = INDICES.get(variant.kernel, lambda rng, n: np.zeros(n))(rng, lengths[3])
    return [*arrays, index.astype(np.int32)]


def element(variant: Variant) -> str:
    """Return the element type of a, b and c."""
    text = SOURCE.read_text(encoding="utf-8")
    found = re.search(rf"^void {variant.kernel}\((\w+)", text, re.MULTILINE)
    assert found is not None
    return {"int": "i32"}.get(found[1], found[1])


def measured(variants: list[Variant], rounds: int, folder: Path) -> pd.DataFrame:
    """Return the fastest slice of every variant and size, in ms."""
    timer = make_timer(folder)
    best: dict[tuple[Any, ...], float] = {}
    calls = {v.library: getattr(ctypes.CDLL(str(v.library)), v.kernel) for v in variants}
    rng = np.random.default_rng(0)
    for number in range(rounds):
        for _, same in itertools.groupby(variants, key=lambda v: v.kernel):
            group = list(same)
            for n, m in group[0].sizes:
                given = arguments(group[0], n, m)
                for k in rng.permutation(len(group)):
                    v = group[int(k)]
                    key = (v.kernel, v.config, n, m)
                    ms = fastest_ms(timer, calls[v.library], given, n, m)
                    best[key] = min(ms, best.get(key, ms))
        print(f"round {number + 1}: {len(best):,} runs, {time.strftime('%H:%M')}", flush=True)
    columns = ["kernel", "config", "n", "m", "ms"]
    return pd.DataFrame([(*key, ms) for key, ms in best.items()], columns=columns)


def make_timer(folder: Path) -> Any:
    source, library = folder / "harness.c", folder / "harness.so"
    source.write_text(HARNESS, encoding="utf-8")
    run("clang", "-O2", "-shared", "-fPIC", str(source), "-o", str(library))
    timer = ctypes.CDLL(str(library)).seconds
    timer.restype = ctypes.c_double
    timer.argtypes = [*[ctypes.c_void_p] * 5, *[ctypes.c_long] * 3]
    return timer


def fastest_ms(timer: Any, call: Any, given: list[np.ndarray], n: int, m: int) -> float:
    pointers = [ctypes.cast(call, ctypes.c_void_p).value, *(a.ctypes.data for a in given)]
    once = timer(*pointers, n, m, 1)
    repeats = max(1, int(SLICE_S / once))
    slices = 5 if once < 5e-3 else 2
    return min(timer(*pointers, n, m, repeats) for _ in range(slices)) * 1e3


def counted(variants: list[Variant]) -> pd.DataFrame:
    """Return the counts and the simulated cycles of every variant and size."""
    caches = cache_bytes(local_device("cpu", measure=False))
    rows = []
    for v in variants:
        for n, m in v.sizes:
            given = arguments(v, n, m)
            names = ("%a", "%b", "%c", "%idx")
            values = {name: (k + 1) << REGION_BITS for k, name in enumerate(names)}
            code = Code(
                v.ir,
                v.kernel,
                {**values, "%n": n, "%m": m},
                {k + 1: float(a.nbytes) for k, a in enumerate(given)},
            )
            cycles = simulated_cycles(code)
            rows.append(
                {"kernel": v.kernel, "config": v.config, "n": n, "m": m, "simulated": cycles}
                | count_code(code, caches)
            )
    return pd.DataFrame(rows)


Fitted = Callable[[pd.DataFrame], np.ndarray]


def scaled(column: "pd.Series[float]", ms: "pd.Series[float]") -> float:
    """Return the factor between a column and the time, by its median."""
    return float(np.exp(np.median(np.log(ms / column))))


def fit_scaled(values: Callable[[pd.DataFrame], "pd.Series[float]"]) -> Callable[..., Fitted]:
    """Return a baseline: one factor on a quantity."""

    def fit(table: pd.DataFrame) -> Fitted:
        factor = scaled(values(table), table["ms"])
        return lambda rows: factor * values(rows).to_numpy(float)

    return fit


START_NS = {"cycles": 0.27, "l1": 0.4, "l2": 0.8, "l3": 2.7, "call": 5.4}
"""Costs before anything is measured, in nanoseconds."""
PRIOR_WEIGHT = 3.0
"""How strongly the costs stay at those above: of as much weight as a row's relative error."""
COVERED = 0.9
"""Share of left-out runs within the factor of the costs."""


def learn_costs(
    counts: pd.DataFrame, ms: np.ndarray, kernels: np.ndarray, device: str = ""
) -> CodeTime:
    """Fit to rows of counts and ms of calls; every one of the ``kernels`` counts the same."""
    start, target = np.log([START_NS[name] for name in COSTS]), np.log(ms)
    share = 1 / pd.Series(kernels).groupby(kernels).transform("size").to_numpy()
    weight = np.sqrt(share / share.mean())

    def costs(logs: np.ndarray) -> CodeTime:
        return CodeTime(dict(zip(COSTS, np.exp(logs).tolist(), strict=True)), device)

    def residuals(log_costs: np.ndarray) -> np.ndarray:
        error = np.log(costs(log_costs).predict(counts)) - target
        return np.r_[np.arcsinh(3 * error) * weight, PRIOR_WEIGHT * (log_costs - start)]

    return costs(least_squares(residuals, start, max_nfev=60).x)


def save_costs(costs: CodeTime, path: Path) -> None:
    """Write what `CodeTime.load` reads."""
    path.write_text(json.dumps(asdict(costs), indent=1) + "\n", encoding="utf-8")


def fit_costs(dropped: str) -> Callable[[pd.DataFrame], Fitted]:
    """Return the model without the counts that a pattern matches, for the ablation."""

    def counts(rows: pd.DataFrame) -> pd.DataFrame:
        if dropped == "chain":
            rows = rows.assign(cycles=rows["busy"])
        elif dropped:
            rows = rows.drop(columns=rows.filter(regex=dropped).columns)
        return rows

    def fit(table: pd.DataFrame) -> Fitted:
        kernels = table["kernel"].to_numpy()
        model = learn_costs(counts(table), table["ms"].to_numpy(), kernels)
        return lambda rows: model.predict(counts(rows))

    return fit


OPERATIONS = (
    r"^(f(add|mul|ma|div|div64)|load|store|v?alu|v?mul|idiv|cvt|shuffle|gather|scatter|call)$"
)


def roofline(table: pd.DataFrame) -> "pd.Series[float]":
    """Return the larger of arithmetic at the peak, and the footprint at the memory's speed."""
    peak = table.filter(regex=r"^(fadd|fmul|fma|valu)$").sum(axis=1) / 2
    return pd.Series(np.maximum(peak, table["footprint"] / 64 * 4) + 1)


MODELS: dict[str, Callable[[pd.DataFrame], Fitted]] = {
    "operation count": fit_scaled(lambda t: t.filter(regex=OPERATIONS).sum(axis=1) + 1),
    "roofline": fit_scaled(roofline),
    "llvm-mca": fit_scaled(lambda t: t["simulated"] + 1),
    "from code": fit_costs(""),
    "– without chains between iterations": fit_costs("chain"),
    "– without cache lines": fit_costs(r"^l\d$"),
}


def left_out(
    table: pd.DataFrame, fit: Callable[[pd.DataFrame], Fitted], folds: int = 10
) -> np.ndarray:
    """Return the prediction of every row by a model that saw no run of its kernel."""
    kernels = np.random.default_rng(0).permutation(sorted(set(table["kernel"])))
    predicted = np.empty(len(table))
    for k in range(folds):
        out = table["kernel"].isin(kernels[k::folds]).to_numpy()
        predicted[out] = fit(table[~out])(table[out])
    return predicted


def report(table: pd.DataFrame, out: Path | None) -> None:
    device = local_device("cpu", measure=False)
    print(f"Time from code on {device.name}, {device.architecture}\n")
    count = table["kernel"].nunique()
    print(f"{len(table):,} runs of {count} kernels, each left out with a tenth of them\n")
    rows, predicted = [], {}
    for name, fit in MODELS.items():
        predicted[name] = left_out(table, fit)
        error = np.abs(predicted[name] / table["ms"] - 1)
        ranks, first, needed, _ = ranking(table, predicted[name])
        rows.append(
            [
                name,
                f"{error.mean():.1%}",
                f"{error.median():.1%}",
                f"{(error < 0.25).mean():.0%}",
                f"{ranks:.2f}",
                f"{first:.3f}",
                f"{needed:.2f}",
            ]
        )
    *_, random = ranking(table, predicted["from code"])
    rows.append(["any order", *[""] * 5, f"{random:.2f}"])
    print(pd.DataFrame(rows, columns=list(COLUMNS)).to_string(index=False), "\n")
    ratio = predicted["from code"] / table["ms"]
    errors = np.abs(ratio - 1).groupby(table["kernel"]).mean().sort_values()
    listed = ", ".join(f"{kernel} {error:.0%}" for kernel, error in errors.items())
    print(f"mean error of each kernel left out: {listed}")
    kernels = table["kernel"].to_numpy()
    fitted = learn_costs(table, table["ms"].to_numpy(), kernels, device.name)
    factor = float(np.exp(np.quantile(np.abs(np.log(ratio)), COVERED)))
    print(f"\n{COVERED:.0%} of the runs are within a factor of {factor:.2f}")
    if out:
        save_costs(replace(fitted, factor=factor), out)


COLUMNS = (
    "",
    "mean error",
    "median error",
    "within 25 %",
    "rank of configurations",
    "first one keeps",
    "measured to 95 %",
)


def ranking(table: pd.DataFrame, predicted: np.ndarray) -> tuple[float, float, float, float]:
    """Return how well configurations are ordered.

    The rank correlation; the share of the best speed that the first one has; how many are measured
    until one has 95 %, in the predicted order and in any. Means over kernels and sizes of which the
    configurations differ by a quarter or more.
    """
    found = []
    for _, group in table.assign(predicted=predicted).groupby(["kernel", "n", "m"]):
        ms = group["ms"].to_numpy()
        if len(ms) < 3 or ms.max() < 1.25 * ms.min():
            continue
        even = group["predicted"].nunique() == 1
        rank = 0.0 if even else spearmanr(group["predicted"], ms)[0]
        ordered = ms[np.argsort(group["predicted"].to_numpy(), kind="stable")]
        good = ordered <= ms.min() / 0.95
        any_order = (len(ms) + 1) / (good.sum() + 1)
        found.append((rank, ms.min() / ordered[0], 1 + int(good.argmax()), any_order))
    a, b, c, d = np.mean(found, axis=0)
    return float(a), float(b), float(c), float(d)


if __name__ == "__main__":
    main()
