"""Power and energy of kernels on a GPU: back-to-back launches, the slope of the energy counter.

    PYTHONPATH=src python benchmarks/gpu/power.py --out runs         # chooses by sweep.py's times
    PYTHONPATH=src python benchmarks/gpu/power.py --out runs --replay

Writes ``power.parquet``, a run table, and ``power-baselines.jsonl``: idle and spin power. In a
window are launches of a CUDA graph, with inputs in turn that the last-level cache does not hold.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from running import Stage, run_stage
from stage import (
    Deadline,
    Job,
    Table,
    labels,
    markdown,
    medians,
    noise,
    rounded,
    share_of_best,
)

from foretune.collect.power import slope_w
from foretune.errors import ForetuneError
from foretune.kernel import Launch
from foretune.measurement import Measurement

REFERENCE_EVERY = 20
REPLAY_MS = 25.0
"""Of work in one graph; two are in the queue, so the device never waits for the host."""
POLL_S = 0.004
TAIL_S = 0.15
MOST_LAUNCHES, LEAST_LAUNCHES = 1000, 4
MOST_SETS = 32
SPIN_CYCLES = 2_000_000
REPEATED_SHARE = 0.2


@dataclass(frozen=True)
class Window:
    """Readings of the sensors while one configuration ran.

    Attributes:
        power_w: Slope of the energy counter.
        error_w: Standard error of that slope.
        ticks: Ticks of the counter inside the window.
        seconds: Time from the first to the last tick.
        state: Means of clocks and temperature, and all throttle reasons that occurred.
        launch_ms: Time per launch; NaN if nothing was launched.
    """

    power_w: float
    error_w: float
    ticks: int
    seconds: float
    state: dict[str, float]
    launch_ms: float = float("nan")

    def counters(self) -> dict[str, float]:
        """Return what a row of the run table keeps of it."""
        values = {
            "power_error_w": self.error_w,
            "ticks": float(self.ticks),
            "window_s": self.seconds,
            "window_launch_ms": self.launch_ms,
            **self.state,
        }
        return {name: rounded(value) for name, value in values.items() if value == value}


def main(argv: list[str] | None = None) -> None:
    stage = Stage(__doc__)
    stage.add_argument("--windows", type=int, default=150, help="configurations, repeats aside")
    stage.add_argument("--problems", type=int, default=100, help="at most, per kernel")
    stage.add_argument("--window-s", type=float, default=1.4, help="length of a window")
    stage.add_argument("--warm-s", type=float, default=0.5, help="before a window")
    stage.add_argument("--idle-s", type=float, default=10.0, help="of idling, and of spinning")
    stage.add_argument("--compilers", type=int, default=0, help="processes that compile")
    run_stage(stage, argv, "power.parquet", meter_all, report)


def meter_all(options: argparse.Namespace, bench: Any, table: Table, deadline: Deadline) -> bool:
    """Meter what is left; return whether a launch broke the device's context."""
    jobs = [job for job in plan(options, bench) if job.key not in table.done]
    if not jobs:
        return False
    baselines = measure_baselines(options, bench)
    ahead = bench.compiled(jobs, options.compilers)
    try:
        for job, compiled in ahead:
            baselines_s = 2 * (options.idle_s + options.warm_s + TAIL_S)  # they come last, too
            if deadline.left_s < baselines_s:
                break
            m, more = meter(job, bench, options, baselines, compiled)
            table.append(m, job.role, job.repeat, **more)
            if bench.device_lost:
                return True
    finally:
        ahead.close()
    measure_baselines(options, bench)
    return False


def plan(options: argparse.Namespace, bench: Any) -> list[Job]:
    """Return all windows in order: each twenty begin with the reference, repeats are mixed in."""
    from foretune.collect.kernels.triton_gemm import TritonGemm

    chosen = choose(options, bench)
    rng = np.random.default_rng(1)
    half = len(chosen) // 2
    # repeats are of what comes in the first half, and come in the second, among the others
    again = rng.permutation(half)[: int(REPEATED_SHARE * len(chosen))]
    repeats = [Job(j.kernel, j.problem, j.config, "repeat", 1) for j in (chosen[i] for i in again)]
    rest = [*chosen[half:], *repeats]
    order = [*chosen[:half], *(rest[int(i)] for i in rng.permutation(len(rest)))]
    gemm = TritonGemm()
    problem = gemm.problem(M=4096, N=4096, K=4096, dtype="fp16", cache="warm")
    found = []
    for i, job in enumerate(order):
        if i % REFERENCE_EVERY == 0:
            turn = i // REFERENCE_EVERY
            found.append(Job(gemm, problem, gemm.default(problem), "reference", turn))
        found.append(job)
    return found


def choose(options: argparse.Namespace, bench: Any) -> list[Job]:
    """Return the configurations to meter, in random order.

    From the sweep's times: for every problem in turn its default, its fastest, and then
    configurations far from all that were taken, by knobs and by share of the best time, where
    all that take twice the best or more count as equally slow. Without a sweep, defaults and
    configurations drawn evenly.
    """
    from design import kernels, problems_of

    known = {kernel.name: kernel for kernel in kernels()}
    path = options.out / "sweep.parquet"
    rng = np.random.default_rng(0)
    found: dict[Any, Job] = {}
    if path.exists():
        offers = [_of_sweep(known, runs) for runs in _per_problem(path)]
    else:
        offers = [
            _drawn(kernel, problem, rng)
            for kernel in known.values()
            for problem in problems_of(kernel, bench.device, 6)
        ]
    offers = [offers[int(i)] for i in rng.permutation(len(offers))]
    of_kernel = defaultdict[str, list[_Offer]](list)
    for offer in offers:
        of_kernel[offer.jobs[0].kernel.name].append(offer)
    offers = [offer for some in of_kernel.values() for offer in some[: options.problems]]
    while len(found) < options.windows and offers:
        offers = [offer for offer in offers if _take(offer, found, options.windows)]
    chosen = list(found.values())
    return [chosen[int(i)] for i in rng.permutation(len(chosen))]


def meter(
    job: Job,
    bench: Any,
    options: argparse.Namespace,
    baselines: dict[str, float],
    compiled: Any,
) -> tuple[Measurement, dict[str, float]]:
    """Return time, power and energy of a configuration, and the counters of its window."""
    m = bench.run(job, compiled)
    if not m.ok:
        return m, {}
    launches = [job.kernel.build(job.problem, job.config, inputs) for inputs in _sets(job, bench)]
    count = int(np.clip(REPLAY_MS / m.time_ms, LEAST_LAUNCHES, MOST_LAUNCHES))
    count = -(-count // len(launches)) * len(launches)
    run, graph = bench.rotated(launches, count)
    window = watch(bench, run, options.window_s, options.warm_s, count)
    if not window.power_w > 0:  # the counter did not tell: a time without power is kept
        return m, window.counters() | baselines
    metered = bench.row(
        job,
        time_ms=m.time_ms,
        time_ms_samples=m.time_ms_samples,
        relative_error=m.relative_error,
        compile_s=compiled.seconds,
        power_w=rounded(window.power_w),
        energy_mj=rounded(window.power_w * window.launch_ms),
    )
    how = {"graph": float(graph), "input_sets": float(len(launches))}
    return metered, window.counters() | baselines | how


def watch(bench: Any, run: Launch | None, window_s: float, warm_s: float, count: int = 0) -> Window:
    """Return what the sensors see in ``window_s`` seconds of ``run`` again and again.

    ``warm_s`` before and some after do not count: sensors settle, and the last tick is whole.

    Args:
        bench: The bench to run on.
        run: Queues about 25 ms of work; None: nothing runs.
        window_s: Length of the window in seconds.
        warm_s: Warm-up in seconds.
        count: launches in ``run``.
    """
    begin, ticks, states = bench.now() + warm_s, list[tuple[float, float]](), []
    end, before, runs = begin + window_s, bench.joules(), 0
    queued: list[Any] = []
    first: Any = None
    last: Any = None
    while bench.now() < end + TAIL_S:
        if run is None:
            bench.sleep(POLL_S)
        else:
            while len(queued) < 2:
                run()
                queued.append(bench.event())
                queued[-1].record()
            if queued[0].query():
                done = queued.pop(0)
                if begin <= bench.now() < end:
                    first, last, runs = first or done, done, runs + 1
            else:
                bench.sleep(POLL_S)
        joules = bench.joules()
        if joules != before and begin <= bench.now() < end:
            ticks.append((bench.now(), joules))
            states.append(bench.state(fresh=True))
        before = joules
    bench.synchronize()
    power_w, error_w = fitted(ticks)
    launch_ms = first.elapsed_time(last) / ((runs - 1) * count) if runs > 1 else float("nan")
    seconds = ticks[-1][0] - ticks[0][0] if ticks else 0.0
    return Window(power_w, error_w, len(ticks), seconds, _summary(states), launch_ms)


def fitted(ticks: list[tuple[float, float]]) -> tuple[float, float]:
    """Return power in watts, the slope of joules over seconds, and its standard error."""
    power_w = slope_w(ticks)
    if len(ticks) < 3:
        return power_w, float("nan")
    seconds, joules = np.array(ticks).T
    seconds = seconds - seconds.mean()
    residual = joules - joules.mean() - power_w * seconds
    variance = float(residual @ residual) / (len(ticks) - 2)
    return power_w, float(np.sqrt(variance / (seconds @ seconds)))


def measure_baselines(options: argparse.Namespace, bench: Any) -> dict[str, float]:
    """Return idle and spin power, and append them to ``power-baselines.jsonl``."""
    import torch

    bench.synchronize()
    spin = bench.call(lambda: torch.cuda._sleep(SPIN_CYCLES), 1.0)  # about a millisecond
    idle = watch(bench, None, options.idle_s, options.warm_s)
    spins = lambda: [spin() for _ in range(int(REPLAY_MS))]  # noqa: E731
    spinning = watch(bench, spins, options.idle_s, options.warm_s, 1)
    path = options.out / "power-baselines.jsonl"
    with path.open("a", encoding="utf-8") as file:
        for name, window in (("idle", idle), ("spin", spinning)):
            row = {"what": name, "power_w": window.power_w, **window.counters()}
            file.write(json.dumps(row) + "\n")
    found = {"idle_w": rounded(idle.power_w), "spin_w": rounded(spinning.power_w)}
    return {name: watts for name, watts in found.items() if watts == watts}


def report(options: argparse.Namespace, bench: Any, table: Table) -> str:
    """Return a table of the windows so far."""
    runs = table.runs()
    if not len(runs) or not runs["power_w"].notna().any():
        return "no power was metered: give it more --minutes, or a driver that counts energy"
    metered = runs[runs["power_w"].notna()]
    rows = []
    for kernel, of_kernel in metered[metered["role"] != "reference"].groupby("kernel"):
        error = 100 * of_kernel["counter.power_error_w"] / of_kernel["power_w"]
        rows.append(
            [
                str(kernel),
                str(len(of_kernel)),
                medians(of_kernel["power_w"], "{:.0f}"),
                f"{of_kernel['power_w'].min():.0f}–{of_kernel['power_w'].max():.0f}",
                medians(error, "{:.2f}"),
                noise(of_kernel, "power_w"),
                str(int((of_kernel.get("counter.throttle_reasons", 0) > 1).sum())),
            ]
        )
    reference = metered[metered["role"] == "reference"]["power_w"]
    spread = 100 * (reference.max() / reference.min() - 1) if len(reference) else float("nan")
    base = metered.iloc[-1]
    columns = ["kernel", "windows", "power, W", "range", "fit error, %", "repeats, %", "throttled"]
    return (
        f"{bench.device.name}; {bench.source}; idle {base.get('counter.idle_w', float('nan')):.0f}"
        f" W, spin {base.get('counter.spin_w', float('nan')):.0f} W; reference in "
        f"{len(reference)} windows, largest over least {spread:.2f} %\n\n{markdown(columns, rows)}"
    )


def _sets(job: Job, bench: Any) -> Iterator[Any]:
    """Yield inputs in turn: as many sets as are twice the last-level cache."""
    cost = job.kernel.cost(job.problem, job.config)
    cache = 1024 * bench.device.specs.get("l2_kib", 65536.0)
    sets = int(np.clip(np.ceil(2 * cache / float(cost.bytes_moved)), 1, MOST_SETS))
    yield bench.prepared(job.kernel, job.problem).inputs
    if job.problem.get("cache") == "warm":
        return
    for seed in range(1, sets):
        yield bench.inputs(job.kernel, job.problem, seed)


def _summary(states: list[dict[str, float]]) -> dict[str, float]:
    """Return means of what the sensors said; of throttle reasons, all bits that were set."""
    if not states:
        return {}
    names = set.intersection(*(set(state) for state in states))
    found = {n: float(np.mean([s[n] for s in states])) for n in sorted(names)}
    if "throttle_reasons" in found:
        bits = np.bitwise_or.reduce([int(s["throttle_reasons"]) for s in states])
        found["throttle_reasons"] = float(bits)
    return found


def _per_problem(path: Any) -> list[pd.DataFrame]:
    """Return the first rows that are ok, per problem, with their share of the best."""
    from foretune.datasets import read_runs

    runs = read_runs(path)
    runs = runs[(runs["status"] == "ok") & (runs["counter.repeat"] == 0)]
    runs = runs.assign(share=share_of_best(runs)).reset_index(drop=True)
    return [part for _, part in runs.groupby(labels(runs, "problem"))]


@dataclass
class _Offer:
    """Configurations of a problem that may be metered, with a place of each among all."""

    jobs: list[Job]
    places: np.ndarray
    first: list[int]
    taken: list[int]


def _of_sweep(known: dict[str, Any], runs: pd.DataFrame) -> _Offer:
    from foretune.datasets import to_measurements

    measured: list[Measurement] = to_measurements(runs)
    jobs = [Job(known[m.kernel], m.problem, m.config, "design") for m in measured]
    share = runs["share"].to_numpy()
    knobs = runs.filter(like="config.").apply(lambda c: pd.factorize(c, sort=False)[0])
    scaled = knobs / knobs.max().clip(lower=1)
    # Half of the distance between two configurations is their difference in speed. Speeds below
    # half of the best count as equal.
    places = np.column_stack([scaled, len(knobs.columns) * np.clip(share, 0.5, 1)])
    default = np.flatnonzero(runs["role"].to_numpy() == "default")[:1]
    return _Offer(jobs, places, [int(share.argmax()), *map(int, default)], [])


def _drawn(kernel: Any, problem: Any, rng: np.random.Generator) -> _Offer:
    from design import evenly

    configs = list(
        dict.fromkeys([kernel.default(problem), *evenly(kernel.space(problem), 24, rng)])
    )
    jobs = [Job(kernel, problem, config, "design") for config in configs]
    return _Offer(jobs, np.arange(len(jobs), dtype=float)[:, None], [0], [])


def _take(offer: _Offer, found: dict[Any, Job], at_most: int) -> bool:
    """Take one more configuration of a problem; return whether it has any left."""
    left = [i for i in range(len(offer.jobs)) if i not in offer.taken]
    if not left or len(found) >= at_most:
        return False
    fresh = [i for i in offer.first if i in left]
    distance: Callable[[int], float] = lambda i: min(  # noqa: E731
        float(np.abs(offer.places[i] - offer.places[j]).sum()) for j in offer.taken
    )
    pick = fresh[0] if fresh else max(left, key=distance) if offer.taken else left[0]
    offer.taken.append(pick)
    found[offer.jobs[pick].key] = offer.jobs[pick]
    return True


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ForetuneError as e:
        raise SystemExit(str(e)) from e
