"""How fast is Foretune itself? Import, enumeration, prediction, a proposal.

python benchmarks/speed.py [samplers]

With ``samplers`` it says only what a trial of an Optuna study costs.
"""

import itertools
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import optuna
import pandas as pd
from machine import heading, markdown
from numpy.typing import ArrayLike

from foretune.collect import local_device
from foretune.datasets import from_measurements
from foretune.device import Device, available_cores, find_device
from foretune.features.candidates import candidate_rows
from foretune.features.families_of_runs import family_for
from foretune.features.roofline import row_roofline_ms
from foretune.measurement import Measurement, Status
from foretune.models import Predictor
from foretune.problem import Problem
from foretune.registry import get_kernel
from foretune.search import Prior, Searcher, SurrogateSampler, make_searcher
from foretune.space import Configuration, SearchSpace

REPEATS = 5
ROWS = 2000
SINGLY = 1000
TRIALS = (100, 300, 500)
ALL_NAMES = "import foretune; [getattr(foretune, name) for name in foretune.__all__]"
H100 = find_device("NVIDIA H100 80GB HBM3")
TRAINED = 100_000
MILLION = 1_000_000
BATCHES = sorted({round(2 ** (i / 6)) for i in range(90)})
WIDTHS = [*range(256, 4097, 256), *range(5120, 16385, 1024)]


def main() -> None:
    device = local_device()
    print(heading("Speed of Foretune itself", device))
    if "samplers" in sys.argv[1:]:
        print(markdown(["sampler", *(f"ms at {n} trials" for n in TRIALS)], samplers()))
        return
    rows = [
        ["import foretune (whole process)", timed(lambda: python("import foretune")), ""],
        ["import all its public names (whole process)", timed(lambda: python(ALL_NAMES)), ""],
        ["python alone (whole process)", timed(lambda: python("pass")), ""],
        *enumeration(),
        *prediction(),
        *proposals(),
        *operators(),
    ]
    print(markdown(["what", f"median of {REPEATS} (min–max)", "rate"], rows))


def enumeration() -> list[list[str]]:
    values = {f"p{i}": list(range(1, 9)) for i in range(7)}  # 2,097,152 combinations
    rules = ["p0 * p1 <= 48", "p2 + p3 >= 4", "p4 % 2 == 0 or p5 > 2"]
    size = len(SearchSpace(values, rules))
    rows = [[f"enumerate {size:,} of {8**7:,}", timed(lambda: len(SearchSpace(values, rules))), ""]]
    try:
        import constraint
    except ImportError:
        return rows

    def solve() -> None:
        problem = constraint.Problem()
        for name, domain in values.items():
            problem.addVariable(name, domain)
        for rule in rules:
            problem.addConstraint(rule)
        assert len(problem.getSolutionsAsListDict(validate=False)[0]) == size

    return [*rows, ["the same, python-constraint2", timed(solve), ""]]


def prediction() -> list[list[str]]:
    """A predictor of 2,000 rows of synthetic times; its speed does not depend on their values."""
    device = local_device()
    kernel = get_kernel("matmul")
    rng = np.random.default_rng(0)
    problems = kernel.training_problems(20)
    space = kernel.space(problems[0])
    runs = [
        Measurement(kernel.name, p, c, device.name, Status.OK, time_ms=float(rng.lognormal()))
        for p in problems
        for c in space.sample(ROWS // len(problems), rng)
    ]
    rows = []
    problem = problems[0]
    for model in ("xgboost", "random_forest"):
        predictor = Predictor(model).fit(from_measurements(runs, device))
        part = np.arange(len(space) if model == "xgboost" else 50_000)
        predict = partial(predictor.predict_space, problem, space, device, part)
        for cores in sorted({1, available_cores()}):
            with on_cores(cores):
                seconds = samples(predict)
            rate = f"{len(part) / np.median(seconds):,.0f} per second"
            what = f"predict {len(part):,} configurations, {model}, {cores} core(s)"
            rows.append([what, show(seconds), rate])
        one = candidate_rows(kernel.name, problem, space, device, part[:1])
        rows.append([f"predict one row, {model}", timed(partial(predictor.predict, one)), ""])
        singly = [(problem, space[int(i)]) for i in rng.integers(len(space), size=SINGLY)]
        rows.append([f"predict_one, {model}", *one_by_one(predictor, singly, device)])
    return rows


def proposals() -> list[list[str]]:
    """A search of 200 measurements on made-up times: what `ask` and `tell` cost the tuner."""
    rows = []
    for size in (10_000, MILLION):
        values = {f"tile_{axis}": tuple(2**i for i in range(10)) for axis in "abcd"}
        values |= {"unroll": tuple(range(1, size // 10_000 + 1))}
        space = SearchSpace(values)
        log_ms = sum((np.log2(v) - 4) ** 2 / 20 for v in space.columns().values())
        wrong = np.random.default_rng(0).normal(0, 0.3, size)
        for prior in (None, Prior(log_ms + wrong, 0.3, np.ones(size))):
            searcher = make_searcher("surrogate", space, prior=prior)
            seconds = [propose(searcher, log_ms) for _ in range(200)]
            guided = "with a prior" if prior else "alone"
            mean = f"{1e3 * np.mean(seconds):.1f} ms on average"
            rows.append([f"one proposal of 200 among {size:,}, {guided}", show(seconds), mean])
    return rows


def propose(searcher: Searcher, log_ms: np.ndarray) -> float:
    """Ask and tell once; return the seconds."""
    start = time.perf_counter()
    (config,) = searcher.ask()
    time_ms = float(np.exp(log_ms[searcher.space.index(config)]))
    searcher.tell([Measurement("made up", Problem(), config, "none", Status.OK, time_ms)])
    return time.perf_counter() - start


def samplers() -> list[list[str]]:
    """Studies of 500 trials, in turn: what `ask` and `tell` cost, medians of 40 trials up to n."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kinds = {
        "SurrogateSampler": SurrogateSampler(seed=0),
        "TPESampler": optuna.samplers.TPESampler(seed=0),
    }
    studies = {name: optuna.create_study(sampler=sampler) for name, sampler in kinds.items()}
    costs: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(TRIALS[-1]):
        for name, study in studies.items():
            start = time.perf_counter()
            trial = study.ask()
            study.tell(trial, mixed(trial))
            costs[name].append(1e3 * (time.perf_counter() - start))
    return [
        [
            name,
            *(
                f"{np.median(ms[n - 40 : n]):.1f} (mean {np.mean(ms[n - 40 : n]):.1f})"
                for n in TRIALS
            ),
        ]
        for name, ms in costs.items()
    ]


def mixed(trial: optuna.Trial) -> float:
    """Floats, integers, sizes and words: best, 1, at x = 1, rate = 0.01, n = 20, size = 64, "a"."""
    x = trial.suggest_float("x", -5, 5)
    rate = trial.suggest_float("rate", 1e-4, 1, log=True)
    n = trial.suggest_int("n", 1, 64)
    m = trial.suggest_int("m", 0, 20)
    size = trial.suggest_categorical("size", [16, 32, 64, 128, 256])
    way = trial.suggest_categorical("way", ["a", "b", "c"])
    far = (x - 1) ** 2 + (math.log10(rate) + 2) ** 2 + abs(n - 20) / 10 + abs(m - 7) / 5
    return 1 + far + abs(math.log2(size / 64)) + "abc".index(way) / 2


def operators() -> list[list[str]]:
    """Matrix products on a grid of sizes: training, a million rows with two targets, one row."""
    grid = np.array(list(itertools.product(BATCHES, WIDTHS, WIDTHS, range(3))))
    train = products(np.random.default_rng(0).permutation(grid)[:TRAINED])
    drawn = np.random.default_rng(1).integers(1, 16384, (MILLION, 3))
    million = products(np.column_stack([drawn, np.arange(MILLION) % 3]))
    rows = []
    for name, parameters in (("as trained by default", None), ("100 trees", {"rounds": 100})):
        started = time.perf_counter()
        predictor = Predictor(parameters=parameters).fit(train)
        seconds = time.perf_counter() - started
        rows.append([f"train {len(train):,} rows, 2 targets, {name}", f"{seconds:.1f} s", ""])
        for runs in (million[:TRAINED], million):
            what = f"predict {len(runs):,}, 3 quantities, {name}"
            rows.append([what, *once(partial(predictor.predict, runs))])
        rows.append(
            [f"predict one row, {name}", timed(partial(predictor.predict, million[:1])), ""]
        )
        fp8 = Configuration(format="fp8")
        singly = [(Problem(M=int(m), N=int(n), K=int(k)), fp8) for m, n, k in drawn[:SINGLY]]
        rows.append([f"predict_one, {name}", *one_by_one(predictor, singly, H100)])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return [*rows, ["most memory at any time, training included", f"{most:.2f} GiB", ""]]


def one_by_one(
    predictor: Predictor, asked: Sequence[tuple[Problem, Configuration]], device: Device
) -> tuple[str, str]:
    """Return how long one of many different rows takes, each by itself, and the rows per second."""
    predictor.predict_one(*asked[0], device)  # the first call is slower
    seconds = []
    for problem, config in asked:
        started = time.perf_counter()
        predictor.predict_one(problem, config, device)
        seconds.append(time.perf_counter() - started)
    return show(seconds), f"{len(seconds) / sum(seconds):,.0f} per second"


def once(predict: Callable[[], pd.DataFrame]) -> tuple[str, str]:
    """Return how long predicting took, and the rows per second."""
    started = time.perf_counter()
    rows = len(predict())
    seconds = time.perf_counter() - started
    return f"{seconds:.1f} s", f"{rows / seconds:,.0f} per second"


def products(sizes_and_formats: np.ndarray) -> pd.DataFrame:
    """Return runs of matrix products on an H100 with invented times and power.

    Columns of the array: M, N, K and the number of the format.
    """
    n_rows = len(sizes_and_formats)
    codes = sizes_and_formats[:, 3]
    columns: dict[str, ArrayLike] = {
        "problem.M": sizes_and_formats[:, 0],
        "problem.N": sizes_and_formats[:, 1],
        "problem.K": sizes_and_formats[:, 2],
        "config.format": pd.Categorical.from_codes(codes, ["bf16", "fp8", "fp8_block"]),
    }
    columns |= {f"device.{name}": np.full(n_rows, value) for name, value in H100.specs.items()}
    runs = pd.DataFrame(columns)
    runs = runs.assign(kernel="gemm", device=H100.name, status="ok")

    # A third slower than the roofline, 4 µs for the launch, and 2 % of noise.
    roofline_ms = row_roofline_ms(family_for("gemm", runs), runs)
    noise = np.random.default_rng(0).lognormal(0.0, 0.02, n_rows)
    runs["time_ms"] = (0.004 + 1.3 * roofline_ms) * noise
    runs["power_w"] = 120.0 + 500.0 * roofline_ms / runs["time_ms"]
    texts = dict.fromkeys(["kernel", "device", "status"], "category")
    return runs.astype(texts)


@contextmanager
def on_cores(n: int) -> Iterator[None]:
    """Let this process use ``n`` cores only (Linux)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:n])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def samples(call: Callable[[], object]) -> list[float]:
    call()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def timed(call: Callable[[], object]) -> str:
    return show(samples(call))


def show(seconds: list[float]) -> str:
    low, middle, high = (1e3 * f(seconds) for f in (min, np.median, max))
    return f"{middle:.3g} ms ({low:.3g}–{high:.3g})"


if __name__ == "__main__":
    main()
