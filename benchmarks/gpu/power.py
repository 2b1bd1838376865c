"""Power and energy of kernels on a GPU: back-to-back launches, the slope of the energy counter.

    PYTHONPATH=src python benchmarks/gpu/power.py --out runs
    PYTHONPATH=src python benchmarks/gpu/power.py --out runs --replay

Configurations are chosen by the times of ``breadth.parquet`` in ``--out``, else of
``sweep.parquet``; those of ``--kernels`` without times are drawn evenly.

Writes ``power.parquet``, a run table, and ``power-baselines.jsonl``: idle and spin power. In a
window are launches of a CUDA graph, with inputs in turn that the last-level cache does not hold.
``benchmarks/shipped_power.py runs/power.parquet`` says how well the power of problems is predicted
that were held out.
"""

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
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
from foretune.errors import ForetuneError, UnknownName
from foretune.kernel import Launch
from foretune.measurement import Measurement

REFERENCE_EVERY = 20
REPLAY_MS = 25.0
"""Of work in one graph; two are in the queue, so the device never waits for the host."""
POLL_S = 0.004
TAIL_S = 0.05
"""Work goes on for so long after a window: its last tick is of a busy device."""
MIN_LAUNCHES = 4
MAX_LAUNCHES = 1000
MAX_INPUT_SETS = 32
SPIN_CYCLES = 2_000_000
REPEATED_SHARE = 0.2
BLOCK = 10
"""Configurations after which some of them are metered again: ten windows, or ten seconds, later."""
TABLES = ("breadth.parquet", "sweep.parquet")
"""Tables of times by which configurations are chosen; the first that exists counts."""
REFERENCE_SIZES = {"M": 4096, "N": 4096, "K": 4096, "dtype": "fp16", "cache": "warm"}
DRAWN_PROBLEMS = 6
"""Problems per kernel without a table of times."""
DRAWN_CONFIGS = 24
QUEUED_RUNS = 2


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
    launch_ms: float = math.nan

    def counters(self) -> dict[str, float]:
        """Return what a row of the run table keeps of it."""
        values = {
            "power_error_w": self.error_w,
            "ticks": float(self.ticks),
            "window_s": self.seconds,
            "window_launch_ms": self.launch_ms,
            **self.state,
        }
        return {n: rounded(value) for n, value in values.items() if not math.isnan(value)}


def main(argv: list[str] | None = None) -> None:
    stage = Stage(__doc__)
    stage.add_argument("--windows", type=int, default=150, help="configurations, repeats aside")
    stage.add_argument(
        "--repeated", type=share, default=REPEATED_SHARE, help="share metered twice; 1: all"
    )
    stage.add_argument("--kernels", nargs="*", help="default: the sweep's that have times")
    stage.add_argument("--problems", type=int, default=100, help="at most, per kernel")
    stage.add_argument("--window-s", type=float, default=1.4, help="length of a window")
    stage.add_argument("--warm-s", type=float, default=0.5, help="before a window")
    stage.add_argument("--idle-s", type=float, default=10.0, help="of idling, and of spinning")
    stage.add_argument("--compilers", type=int, default=0, help="processes that compile")
    run_stage(stage, argv, "power.parquet", meter_all, report)


def share(text: str) -> float:
    """Return a number from 0 to 1.

    Raises:
        ArgumentTypeError: It is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: give a number from 0 to 1")
    return value


def meter_all(options: argparse.Namespace, bench: Any, table: Table, deadline: Deadline) -> bool:
    """Meter what is left; return whether a launch broke the device's context."""
    jobs = [job for job in plan(options, bench) if job.key not in table.done]
    if not jobs:
        return False
    ahead = bench.compiled(jobs, options.compilers)
    try:
        # Processes that compile take seconds to start. The device idles and spins meanwhile.
        with ThreadPoolExecutor(1) as starter:
            first = starter.submit(next, ahead)
            baselines = measure_baselines(options, bench)
        for job, compiled in chain([first.result()], ahead):
            baselines_s = 2 * (options.idle_s + options.warm_s + TAIL_S)  # they come last, too
            if deadline.left_s < baselines_s:
                break
            measurement, counters = meter(job, bench, options, baselines, compiled)
            table.append(measurement, job.role, job.repeat, **counters)
            if bench.device_lost:
                return True
    finally:
        ahead.close()
    measure_baselines(options, bench)
    return False


def plan(options: argparse.Namespace, bench: Any) -> list[Job]:
    """Return all windows in order: each twenty begin with the reference.

    Configurations come in blocks, each of which is followed by its repeats: after an early stop,
    the first configurations have both of their windows.
    """
    from foretune.collect.kernels.triton_gemm import TritonGemm

    chosen = choose(options, bench)
    rng = np.random.default_rng(1)
    order: list[Job] = []
    for start in range(0, len(chosen), BLOCK):
        # No kernel always follows the same other one, which heats the device.
        of_block = chosen[start : start + BLOCK]
        block = [of_block[i] for i in rng.permutation(len(of_block))]
        order += block

        # Repeats are in the order of their firsts, so that about as much time is between the two.
        n_repeats = round(options.repeated * len(block))
        repeated = sorted(rng.permutation(len(block))[:n_repeats])
        for i in repeated:
            order.append(Job(block[i].kernel, block[i].problem, block[i].config, "repeat", 1))

    gemm = TritonGemm()
    problem = gemm.problem(**REFERENCE_SIZES)
    windows = []
    for i, job in enumerate(order):
        if i % REFERENCE_EVERY == 0:
            number = i // REFERENCE_EVERY
            windows.append(Job(gemm, problem, gemm.default(problem), "reference", number))
        windows.append(job)
    return windows


def choose(options: argparse.Namespace, bench: Any) -> list[Job]:
    """Return the configurations to meter: kernels take turns, and so do a kernel's problems.

    From a table of times: for every problem in turn its fastest, its default, and then
    configurations far from all that were taken, by knobs and by share of the best time, where
    all that take twice the best or more count as equally slow. A kernel without times: defaults
    and configurations drawn evenly.
    """
    rng = np.random.default_rng(0)
    timed = _timed(options.out, bench.device.name)
    in_turn = []
    for kernel in _asked_for(options.kernels, timed):
        candidates = [_from_times(kernel, runs) for runs in timed.get(kernel.name, ())]
        if not candidates:
            candidates = _drawn(kernel, bench.device, rng)
        some = rng.permutation(len(candidates))[: options.problems]
        in_turn.append(_in_turn([candidates[i] for i in some]))

    chosen: list[Job] = []
    while in_turn and len(chosen) < options.windows:
        for of_kernel in list(in_turn):
            job = next(of_kernel, None)
            if job is None:
                in_turn.remove(of_kernel)
            else:
                chosen.append(job)
    return chosen[: options.windows]


def meter(
    job: Job,
    bench: Any,
    options: argparse.Namespace,
    baselines: dict[str, float],
    compiled: Any,
) -> tuple[Measurement, dict[str, float]]:
    """Return time, power and energy of a configuration, and the counters of its window."""
    timed = bench.run(job, compiled)
    if not timed.ok:
        return timed, {}

    # A whole number of turns of all input sets, about 25 ms of work.
    launches = [job.kernel.build(job.problem, job.config, inputs) for inputs in _sets(job, bench)]
    wanted = int(np.clip(REPLAY_MS / timed.time_ms, MIN_LAUNCHES, MAX_LAUNCHES))
    n_launches = math.ceil(wanted / len(launches)) * len(launches)
    run, is_graph = bench.rotated(launches, n_launches)
    window = watch(bench, run, options.window_s, options.warm_s, n_launches)
    counters = window.counters() | baselines
    if not window.power_w > 0:  # the counter did not advance: a time without power is kept
        return timed, counters
    metered = bench.row(
        job,
        time_ms=timed.time_ms,
        time_ms_samples=timed.time_ms_samples,
        relative_error=timed.relative_error,
        compile_s=compiled.seconds,
        power_w=rounded(window.power_w),
        energy_mj=rounded(window.power_w * window.launch_ms),
    )
    return metered, counters | {"graph": float(is_graph), "input_sets": float(len(launches))}


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
    begin_s = bench.now() + warm_s
    end_s = begin_s + window_s

    def is_inside() -> bool:
        return begin_s <= bench.now() < end_s

    ticks: list[tuple[float, float]] = []
    states: list[dict[str, float]] = []
    queue = _Queue(bench, run) if run is not None else None
    joules_before = bench.joules()
    while bench.now() < end_s + TAIL_S:
        # Keep the device busy. If the queue is full, there is time to read the sensors.
        finished = None if queue is None else queue.advance()
        if queue is None or finished is None:
            bench.sleep(POLL_S)
        elif is_inside():
            queue.count(finished)
        joules = bench.joules()
        if joules != joules_before and is_inside():
            ticks.append((bench.now(), joules))
            states.append(bench.state(fresh=True))
        joules_before = joules
    bench.synchronize()

    power_w, error_w = fitted(ticks)
    return Window(
        power_w=power_w,
        error_w=error_w,
        ticks=len(ticks),
        seconds=ticks[-1][0] - ticks[0][0] if ticks else 0.0,
        state=_summary(states),
        launch_ms=queue.run_ms() / count if queue is not None else math.nan,
    )


class _Queue:
    """Runs that wait on the device, so that it never waits for the host."""

    def __init__(self, bench: Any, run: Launch) -> None:
        self._bench = bench
        self._run = run
        self._waiting: list[Any] = []
        self._first: Any = None
        self._last: Any = None
        self._n_counted = 0

    def advance(self) -> Any:
        """Fill the queue, and return the event of a run that has ended; None if none has."""
        while len(self._waiting) < QUEUED_RUNS:
            self._run()
            event = self._bench.event()
            event.record()
            self._waiting.append(event)
        return self._waiting.pop(0) if self._waiting[0].query() else None

    def count(self, finished: Any) -> None:
        """Count a run of the window, given the event of its end."""
        self._first = self._first or finished
        self._last = finished
        self._n_counted += 1

    def run_ms(self) -> float:
        """Return the mean time of the counted runs, without the first; NaN with fewer than two."""
        if self._n_counted < 2:
            return math.nan
        return float(self._first.elapsed_time(self._last) / (self._n_counted - 1))


def fitted(ticks: list[tuple[float, float]]) -> tuple[float, float]:
    """Return power in watts, the slope of joules over seconds, and its standard error."""
    power_w = slope_w(ticks)
    if len(ticks) < 3:
        return power_w, math.nan
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

    def spin_for_a_replay() -> None:
        for _ in range(int(REPLAY_MS)):
            spin()

    windows = {
        "idle": watch(bench, None, options.idle_s, options.warm_s),
        "spin": watch(bench, spin_for_a_replay, options.idle_s, options.warm_s, count=1),
    }
    path = options.out / "power-baselines.jsonl"
    baselines = {}
    with path.open("a", encoding="utf-8") as file:
        for name, window in windows.items():
            row = {"what": name, "power_w": window.power_w, **window.counters()}
            file.write(json.dumps(row) + "\n")
            if not math.isnan(window.power_w):
                baselines[f"{name}_w"] = rounded(window.power_w)
    return baselines


def report(options: argparse.Namespace, bench: Any, table: Table) -> str:
    """Return a table of the windows so far."""
    runs = table.runs()
    if not len(runs) or not runs["power_w"].notna().any():
        return "no power was metered: give it more --minutes, or a driver that counts energy"
    metered = runs[runs["power_w"].notna()]
    is_reference = metered["role"] == "reference"
    rows = []
    for kernel, windows in metered[~is_reference].groupby("kernel"):
        power_w = windows["power_w"]
        error_percent = 100 * windows["counter.power_error_w"] / power_w
        is_throttled = windows.get("counter.throttle_reasons", 0) > 1
        rows.append(
            [
                str(kernel),
                str(len(windows)),
                medians(power_w, "{:.0f}"),
                f"{power_w.min():.0f}–{power_w.max():.0f}",
                medians(error_percent, "{:.2f}"),
                noise(windows, "power_w"),
                str(int(is_throttled.sum())),
            ]
        )
    columns = ["kernel", "windows", "power, W", "range", "fit error, %", "repeats, %", "throttled"]

    reference_w = metered.loc[is_reference, "power_w"]
    spread = math.nan
    if len(reference_w):
        spread = 100 * (reference_w.max() / reference_w.min() - 1)
    newest = metered.iloc[-1]
    idle_w = newest.get("counter.idle_w", math.nan)
    spin_w = newest.get("counter.spin_w", math.nan)
    return (
        f"{bench.device.name}; {bench.source}; idle {idle_w:.0f} W, spin {spin_w:.0f} W; reference "
        f"in {len(reference_w)} windows, largest over least {spread:.2f} %\n\n"
        f"{markdown(columns, rows)}"
    )


def _sets(job: Job, bench: Any) -> Iterator[Any]:
    """Yield inputs in turn: as many sets as are twice the last-level cache."""
    yield bench.prepared(job.kernel, job.problem).inputs
    if job.problem.get("cache") == "warm":
        return
    set_bytes = float(job.kernel.cost(job.problem, job.config).bytes_moved)
    cache_bytes = 1024 * bench.device.specs.get("l2_kib", 65536.0)
    n_sets = int(np.clip(np.ceil(2 * cache_bytes / set_bytes), 1, MAX_INPUT_SETS))
    for seed in range(1, n_sets):
        yield bench.inputs(job.kernel, job.problem, seed)


def _summary(states: list[dict[str, float]]) -> dict[str, float]:
    """Return means of the sensors' values; of throttle reasons, all bits that were set."""
    if not states:
        return {}
    names = set.intersection(*(set(state) for state in states))
    summary = {name: float(np.mean([state[name] for state in states])) for name in sorted(names)}
    if "throttle_reasons" in summary:
        bits = np.bitwise_or.reduce([int(state["throttle_reasons"]) for state in states])
        summary["throttle_reasons"] = float(bits)
    return summary


def _asked_for(names: list[str] | None, timed: Collection[str]) -> list[Any]:
    """Return kernels by name; for None those of the sweep that are ``timed``, or all if none is.

    Raises:
        UnknownName: Neither the sweep nor breadth has such a kernel.
    """
    from breadth import kernel_by_name
    from design import kernels

    if names is None:
        of_sweep = kernels()
        return [kernel for kernel in of_sweep if kernel.name in timed] or of_sweep
    known = kernel_by_name()
    for name in names:
        if name not in known:
            raise UnknownName("kernel", name, known)
    return [known[name] for name in dict.fromkeys(names)]


def _timed(folder: Path, device: str) -> dict[str, list[pd.DataFrame]]:
    """Return what a table of times has of each kernel: per problem, with shares of the best.

    Only first measurements that are ok. Empty without a table.

    Raises:
        ForetuneError: The table is of another device, or none of the stages wrote it.
    """
    from foretune.datasets import read_runs
    from foretune.datasets.journal import journal_path

    # A stage that was killed has left its journal only.
    of_kernel = defaultdict[str, list[pd.DataFrame]](list)
    paths = [folder / name for name in TABLES]
    path = next((path for path in paths if path.exists() or journal_path(path).exists()), None)
    if path is None:
        return of_kernel

    all_runs = read_runs(path)
    if not {"role", "counter.repeat"} <= set(all_runs):
        raise ForetuneError(f"{path} is no table of breadth.py or sweep.py: give another --out")
    others = set(all_runs["device"]) - {device}
    if others:
        raise ForetuneError(f"{path} is of {min(others)}, not of {device}: give another --out")

    is_first = (all_runs["status"] == "ok") & (all_runs["counter.repeat"] == 0)
    runs = all_runs[is_first]
    with_share = runs.assign(share=share_of_best(runs)).reset_index(drop=True)
    for _, rows in with_share.groupby(labels(with_share, "problem")):
        of_kernel[str(rows["kernel"].iloc[0])].append(rows)
    return of_kernel


@dataclass
class _Candidates:
    """Configurations of a problem that may be metered.

    Attributes:
        jobs: one per configuration.
        points: a point per job; far points are unlike configurations.
        first: indices of the jobs that are taken before others.
        taken: indices of the jobs that were taken, in order.
    """

    jobs: list[Job]
    points: np.ndarray
    first: list[int]
    taken: list[int] = field(default_factory=list)

    def take(self) -> Job | None:
        """Return one more job, the farthest from all that were taken; None if none is left."""
        remaining = [i for i in range(len(self.jobs)) if i not in self.taken]
        if not remaining:
            return None
        first = [i for i in self.first if i in remaining]
        if first:
            chosen = first[0]
        elif self.taken:
            chosen = max(remaining, key=self._distance_to_taken)
        else:
            chosen = remaining[0]
        self.taken.append(chosen)
        return self.jobs[chosen]

    def _distance_to_taken(self, index: int) -> float:
        distances = np.abs(self.points[self.taken] - self.points[index]).sum(axis=1)
        return float(distances.min())


def _in_turn(candidates: list[_Candidates]) -> Iterator[Job]:
    """Yield the jobs of all problems: in each turn, every problem that has any left gives one."""
    remaining = candidates
    while remaining:
        gave_one = []
        for of_problem in remaining:
            job = of_problem.take()
            if job is not None:
                yield job
                gave_one.append(of_problem)
        remaining = gave_one


def _from_times(kernel: Any, runs: pd.DataFrame) -> _Candidates:
    """Return the timed configurations of a problem; the fastest and the default go first."""
    from foretune.datasets import to_measurements

    measured: list[Measurement] = to_measurements(runs)
    jobs = [Job(kernel, m.problem, m.config, "design") for m in measured]

    # Half of the distance between two configurations is their difference in speed. Speeds below
    # half of the best count as equal.
    knobs = runs.filter(like="config.").apply(lambda column: pd.factorize(column, sort=False)[0])
    scaled_knobs = knobs / knobs.max().clip(lower=1)
    speed = runs["share"].to_numpy()
    points = np.column_stack([scaled_knobs, len(knobs.columns) * np.clip(speed, 0.5, 1)])

    defaults = np.flatnonzero(runs["role"].to_numpy() == "default")[:1]
    first = [int(speed.argmax()), *map(int, defaults)]
    return _Candidates(jobs, points, first)


def _drawn(kernel: Any, device: Any, rng: np.random.Generator) -> list[_Candidates]:
    """Return problems of a kernel: the default and configurations drawn evenly, in this order."""
    from breadth import problems_by_kernel
    from design import evenly, kernels, problems_of

    if kernel.name in {of_sweep.name for of_sweep in kernels()}:
        problems = problems_of(kernel, device, DRAWN_PROBLEMS)
    else:
        problems = problems_by_kernel()[kernel.name]

    candidates = []
    for problem in problems:
        drawn = evenly(kernel.space(problem), DRAWN_CONFIGS, rng)
        configs = dict.fromkeys([kernel.default(problem), *drawn])
        jobs = [Job(kernel, problem, config, "design") for config in configs]
        points = np.arange(len(jobs), dtype=float)[:, None]
        candidates.append(_Candidates(jobs, points, first=[0]))
    return candidates


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ForetuneError as e:
        raise SystemExit(str(e)) from e
