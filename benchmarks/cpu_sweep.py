"""Times of the CPU kernels on this machine: the run table that Foretune ships for it.

    PYTHONPATH=src python benchmarks/cpu_sweep.py --minutes 12 --out datasets/shipped

Writes ``NAME.parquet``, a run table, and ``NAME.json``, its card; NAME is that of the CPU. The same
command continues an interrupted run. It starts again if the table was provisional, or belongs to
other code. Nothing else should run meanwhile; if something does, mark the table with
``--provisional WHY``.

Compiling a configuration takes ten times as long as timing it, so each compiled configuration runs
on every problem of its kernel. The list begins with the default and random configurations, and
grows by six at a time: half of them random, half neighbors of the best of some problem. The best of
this list is known for each problem. Defaults are measured three times more, minutes apart. Last,
the two fastest configurations of each problem, its default and the library's call are measured in
turns. Power is measured if there is an energy counter.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
import pandas as pd
from machine import markdown

sys.path.append(str(Path(__file__).resolve().parent / "gpu"))  # stage.py

from stage import Bests, Deadline, Table, labels, library_columns, medians, share_of_best

from foretune.collect import IsolatedRunner, Runner, Timing, local_device
from foretune.collect.benchmark import environment
from foretune.collect.devices import probe_cpu
from foretune.collect.power import explain_missing_meter
from foretune.collect.versions import versions
from foretune.datasets import DatasetCard, card, shipped, to_measurements
from foretune.datasets.catalog import card_text
from foretune.device import Device
from foretune.errors import MeasurementError
from foretune.kernel import Kernel
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.registry import get_kernel
from foretune.space import Configuration

KERNELS = ("matmul", "softmax", "quantized_matvec")
MOST_MS = 3.0
"""Least time of a problem at the device's peak: slow configurations take tens of times as long."""
CHUNK = 6
"""Configurations that are compiled, and run on every problem, before another kernel's turn."""
EVERY = 2
"""Chunks between two repeats of the defaults."""
LAST_REPEAT = 3
FINAL = LAST_REPEAT + 1
"""The repeat of finalists."""
FINALISTS = 2
RACE_S = 0.4
VERIFYING = 0.15
"""Share of the time that is left for the finalists."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
TIMING = Timing(max_seconds=0.1, max_repeats=60)
PROTOCOL = (
    "Each configuration in a child process, threads pinned: output checked against higher "
    "precision after it was spoilt, 20 ms of warm-up, then 3 to 60 samples (of at least 50 µs, "
    "several launches if need be) until the 95 % interval of the median is within 1 % or 0.1 s "
    "are over; time_ms is the median, caches stay warm. role tells why a row was measured: list "
    "(default among them) ran on every problem of its kernel, repeat is the default again, minutes "
    "later, finalist the two fastest and the default of a problem in turn with the library's call "
    "(library, counter.library_ms; a new order each round). "
)


class Plan:
    """What one kernel still has to run.

    Args:
        kernel: The kernel.
        problems: Its problems.
        known: Finished measurements.
        most: Maximum length of the list.

    Attributes:
        listed: configurations that run on every problem.
        bests: the fastest of every problem so far.
        octaves: how often the space can be halved.
    """

    def __init__(
        self, kernel: Kernel, problems: list[Problem], known: list[Measurement], most: int
    ) -> None:
        self.kernel = kernel
        self.problems = problems
        self._most = most
        self.octaves = float(np.log2(len(kernel.space(problems[0]))))
        mine = [m for m in known if m.kernel == kernel.name and m.problem in set(problems)]
        self.listed = list(dict.fromkeys(m.config for m in mine))
        self.bests = Bests(mine)

    def fastest(self, problem: Problem, measurements: list[Measurement]) -> list[Configuration]:
        """Return the finalists of a problem, the fastest and the default; none if none ran."""
        mine = [m for m in measurements if (m.kernel, m.problem) == (self.kernel.name, problem)]
        ok = dict.fromkeys(m.config for m in sorted(mine, key=lambda m: m.time_ms) if m.ok)
        if not ok:
            return []
        return list(dict.fromkeys([*[*ok][:FINALISTS], self.kernel.default(problem)]))

    def grow(self) -> bool:
        """Put the next few configurations on the list; return whether there were any."""
        rng = np.random.default_rng(len(self.listed))
        offers = self._offers(rng)
        before = len(self.listed)
        seen = dict.fromkeys(self.listed)
        for config in offers:
            if len(seen) >= min(before + CHUNK, self._most):
                break
            seen.setdefault(config)
        self.listed = list(seen)
        return len(self.listed) > before

    def _offers(self, rng: np.random.Generator) -> Iterator[Configuration]:
        some = self.problems[int(rng.integers(len(self.problems)))]
        if not self.listed:
            yield self.kernel.default(some)
        elif best := self.bests(self.kernel, some):
            beside = self.kernel.space(some).neighbors(best)
            new = [c for c in beside if c not in set(self.listed)]
            yield from (new[int(i)] for i in rng.permutation(len(new))[: CHUNK // 2])
        yield from self.kernel.space(some).sample(20 * CHUNK, rng)


@dataclass
class Sweep:
    """The measuring.

    Attributes:
        plans: one per kernel.
        runner: measures.
        table: gets the rows.
    """

    plans: list[Plan]
    runner: Runner
    table: Table

    def run(self, deadline: Deadline) -> None:
        """Measure until all is done or the time is over: larger spaces get longer lists."""
        for plan in self.plans:  # what an earlier run began
            if not self._measure(plan, plan.listed, deadline):
                return
        open_plans = list(self.plans)
        while open_plans and not deadline.over:
            plan = min(open_plans, key=lambda p: len(p.listed) / p.octaves)
            done = len(plan.listed)
            if not plan.grow():
                open_plans.remove(plan)
            elif not self._measure(plan, plan.listed[done:], deadline):
                return

    def verify(self, deadline: Deadline) -> None:
        """Run the finalists of every problem in turn with the library's call."""
        measurements = to_measurements(self.table.runs())
        turns = zip_longest(*([(plan, p) for p in plan.problems] for plan in self.plans))
        for plan, problem in filter(None, chain.from_iterable(turns)):
            finalists = plan.fastest(problem, measurements)
            if all(self._done(plan.kernel, problem, c, FINAL) for c in finalists):
                continue
            if deadline.over:
                return
            self._race(plan.kernel, problem, finalists)

    def _measure(self, plan: Plan, configs: list[Configuration], deadline: Deadline) -> bool:
        """Measure ``configs`` on all problems; return whether there was time for it."""
        repeat, rest = divmod(len(plan.listed) // CHUNK, EVERY)
        again = rest == 0 and 1 <= repeat <= LAST_REPEAT
        for problem in plan.problems:
            space = plan.kernel.space(problem)
            default = plan.kernel.default(problem)
            jobs = [(c, "list", 0) for c in configs if c in space]
            jobs += [(default, "repeat", repeat)] if again else []
            for config, role, number in jobs:
                if deadline.over:
                    return False
                if self._done(plan.kernel, problem, config, number):
                    continue
                (m,) = self.runner.run(plan.kernel, problem, [config])
                self.table.append(
                    m, "default" if (config, number) == (default, 0) else role, number
                )
                plan.bests.see(m)
        return True

    def _race(self, kernel: Kernel, problem: Problem, finalists: list[Configuration]) -> None:
        try:
            rounds = self.runner.compare_interleaved(kernel, problem, finalists, RACE_S)
        except MeasurementError as e:
            print(e, file=sys.stderr)
            return
        raced = rounds.time_ms
        more = library_columns(raced)
        for config in finalists:
            if config.id in raced and not self._done(kernel, problem, config, FINAL):
                samples = tuple(float(s) for s in raced[config.id][: TIMING.max_repeats])
                m = Measurement(
                    kernel.name,
                    problem,
                    config,
                    self.runner.device.name,
                    Status.OK,
                    time_ms=float(np.median(raced[config.id])),
                    time_ms_samples=samples,
                    environment=environment(kernel),
                )
                self.table.append(m, "finalist", FINAL, **more)

    def _done(self, kernel: Kernel, problem: Problem, config: Configuration, number: int) -> bool:
        return (kernel.name, problem, config, number) in self.table.done


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=12.0, help="begin nothing new after them")
    parser.add_argument("--out", type=Path, default=Path("cpu-runs"), metavar="FOLDER")
    parser.add_argument("--name", help="name of the table; default: the CPU and its cores")
    parser.add_argument("--kernels", nargs="*", default=list(KERNELS))
    parser.add_argument("--problems", type=int, default=12, help="per kernel")
    parser.add_argument("--configs", type=int, default=1000, help="per kernel, at most")
    parser.add_argument("--provisional", default="", metavar="WHY", help="not to be relied on")
    options = parser.parse_args(argv)
    for variable in THREADS:  # the library may use all cores, as kernels do
        os.environ.pop(variable, None)
    probe_cpu(refresh=True)  # cached rates may have been measured on a busy machine
    device = local_device("cpu")
    with IsolatedRunner(device, TIMING, limit_s=20.0) as runner:
        print(sweep(options, [get_kernel(name) for name in options.kernels], runner))


def sweep(options: argparse.Namespace, kernels: list[Kernel], runner: Runner) -> str:
    """Measure, write table and card, and return a report in Markdown."""
    device = runner.device
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    name = options.name or name_of(device)
    start_anew(name, out, kernels, bool(options.provisional))
    deadline = Deadline(options.minutes)
    began = time.monotonic()
    with Table(out / f"{name}.parquet", device) as table:
        runs = table.runs()
        known = to_measurements(runs) if len(runs) else []
        plans = [
            Plan(k, problems_of(k, device, options.problems), known, options.configs)
            for k in kernels
        ]
        work = Sweep(plans, runner, table)
        work.run(Deadline(options.minutes * (1 - VERIFYING)))
        if table.done:
            work.verify(deadline)
        runs = table.runs()
    if not len(runs):
        raise SystemExit("nothing was measured: give it more --minutes")
    made = card_of(name, runs, device, kernels, options.provisional)
    (out / f"{name}.json").write_text(card_text(made), encoding="utf-8")
    print(f"{table.new} new rows in {time.monotonic() - began:.0f} s\n")
    return report(runs)


def name_of(device: Device) -> str:
    """Return the name of a CPU's table, e.g. ``amd-epyc-2-cores``."""
    words = "".join(c if c.isalnum() else " " for c in device.name.lower()).split()
    return "-".join([*words, f"{device.specs['cores']:.0f}", "cores"])


def problems_of(kernel: Kernel, device: Device, at_most: int) -> list[Problem]:
    """Return up to ``at_most`` problems of a kernel that do not take too long."""
    drawn = kernel.training_problems(2 * at_most, seed=7)
    limits = [device.roofline_ms(kernel.cost(p, kernel.default(p))) for p in drawn]
    return [p for p, ms in zip(drawn, limits, strict=True) if not float(ms) > MOST_MS][:at_most]


def start_anew(name: str, out: Path, kernels: list[Kernel], provisional: bool) -> None:
    """Remove a table that this run cannot go on with: provisional, or of other code."""
    if name not in shipped(out):
        return
    there = card(name, out)
    other = [k.name for k in kernels if there.kernels.get(k.name) not in (None, k.source_hash)]
    reason = f"it is of other code of {', '.join(other)}" if other else ""
    if there.provisional and not provisional:
        reason = f"it was provisional: {there.provisional}"
    if reason:
        print(f"{name} is measured anew: {reason}")
        (out / f"{name}.parquet").unlink()
        (out / f"{name}.json").unlink()


def card_of(
    name: str, runs: pd.DataFrame, device: Device, kernels: list[Kernel], provisional: str
) -> DatasetCard:
    """Return the card of the table."""
    no_meter = explain_missing_meter("cpu")
    power = f"No power: {no_meter}." if no_meter else "Power over 0.6 s of launches, RAPL counters."
    release = ".".join(platform.release().split("-")[0].split(".")[:2])
    return DatasetCard(
        name=name,
        device=device.name,
        architecture=device.architecture,
        specs=dict(device.specs),
        system=f"{platform.system()} {release}; {versions()}",
        began=str(runs["recorded_at"].min()),
        ended=str(runs["recorded_at"].max()),
        protocol=PROTOCOL + power,
        command="python benchmarks/cpu_sweep.py --minutes 12 --out datasets/shipped",
        licence="MIT, as Foretune",
        kernels={k.name: k.source_hash for k in kernels if (runs["kernel"] == k.name).any()},
        provisional=provisional,
    )


def report(runs: pd.DataFrame) -> str:
    """Return a table of the runs so far."""
    runs = runs.assign(
        share=share_of_best(runs[runs["counter.repeat"] == 0]),
        problem=labels(runs, "problem"),
        config=labels(runs, "config"),
    )
    rows = []
    for kernel, mine in runs.groupby("kernel"):
        first = mine[mine["counter.repeat"] == 0]
        everywhere = first.groupby("config")["problem"].nunique() == first["problem"].nunique()
        default = first["share"][first["role"] == "default"]
        rows.append(
            [
                str(kernel),
                str(len(mine)),
                str(int((mine["status"] != Status.OK.value).sum())),
                str(first["problem"].nunique()),
                str(int(everywhere.sum())),
                medians(default),
            ]
        )
    columns = ["kernel", "rows", "failed", "problems", "on every problem", "default / best"]
    return markdown(columns, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
