"""What does the decorator's choice keep of the best, and what does it measure for that?

Measures a list of configurations on many problems of a CPU kernel, every one on each, and lets the
decision logic of `foretune.autotune` choose from the recording: first on problems it tunes one
after the other with budget "auto", from nothing; then, knowing those, on problems it never saw,
with budgets 0, 1, 4, 8 and "auto". Prints the share of the best of the list that is kept and the
measurements spent, beside what needs no model: the one configuration that is best over all tuned
problems, the winner of the tuned problem most like the new one, and as many random measurements.

    python benchmarks/autotune.py softmax matmul --out autotune-runs

The kernels run on the CPU: what is tested is choosing, not the estimate, which is made for GPUs.
Resumable: rows already in ``--out`` are not measured again.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from machine import heading, markdown

from foretune.collect import InProcessRunner, Timing, local_device
from foretune.datasets import RunLog
from foretune.device import Device
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.registry import get_kernel
from foretune.search.encoding import nearest_first
from foretune.search.loop import run
from foretune.space import Configuration
from foretune.tune.triton.call_tuner import CallTuner, CallTunerFactory
from foretune.tune.triton.options import Budget, Options
from foretune.tune.triton.prior import PriorFactory
from foretune.tune.triton.problem_key import Call

Table = dict[Problem, dict[Configuration, Measurement]]
BUDGETS: tuple[Budget, ...] = (0, 1, 4, 8, "auto")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*", default=["softmax", "matmul"])
    parser.add_argument("--problems", type=int, default=24, help="a third of them is never tuned")
    parser.add_argument("--configs", type=int, default=48, help="configurations on the list")
    parser.add_argument("--orders", type=int, default=5, help="orders in which problems come")
    parser.add_argument("--out", type=Path, default=Path("autotune-runs"))
    options = parser.parse_args()
    device = local_device()
    print(heading("Choosing from a list, problem after problem", device))
    rows = []
    for name in options.kernels:
        table = record(name, device, options)
        for label, shares, spent in evaluate(table, device, options.orders):
            low, middle = np.quantile(shares, [0.05, 0.5])
            rows.append(
                [
                    name,
                    label,
                    f"{np.mean(shares):.3f}",
                    f"{middle:.3f}",
                    f"{low:.3f}",
                    f"{np.mean(spent):.1f}",
                ]
            )
    print(
        f"{options.problems} problems, {options.configs} configurations, all measured; "
        f"{options.orders} orders of the problems, two thirds tuned before the others. Share of "
        "the list's best: mean, median and 5 % quantile; measurements per problem.\n"
    )
    columns = ["kernel", "choice", "mean", "median", "5 %", "measured"]
    print(markdown(columns, rows))


def record(name: str, device: Device, options: argparse.Namespace) -> Table:
    """Return the time of every configuration of the list on every problem."""
    kernel = get_kernel(name)
    problems = kernel.training_problems(options.problems, seed=5)
    common = set.intersection(*(set(kernel.space(p)) for p in problems))
    ordered = sorted(common, key=lambda c: c.id)
    chosen = np.random.default_rng(0).choice(len(ordered), options.configs, replace=False)
    configs = [ordered[i] for i in chosen]
    options.out.mkdir(parents=True, exist_ok=True)
    runner = InProcessRunner(device, Timing(max_seconds=0.12, warmup_s=0.01), power=False)
    table: Table = {}
    with RunLog(options.out / f"{name}.parquet") as log:
        for problem in problems:
            table[problem] = {}
            for config in configs:
                known = log.find((kernel.name, device.name, problem, config))
                if known is None:
                    (known,) = runner.run(kernel, problem, [config])
                    log.append(known)
                table[problem][config] = known
    return table


def evaluate(
    table: Table, device: Device, orders: int
) -> list[tuple[str, list[float], list[float]]]:
    """Return for each way of choosing: its name, the shares of the best, and its measurements."""
    shares: dict[str, list[float]] = {}
    spent: dict[str, list[float]] = {}

    def note(label: str, problem: Problem, config: Configuration, measured: float) -> None:
        times = {c: _time(m) for c, m in table[problem].items()}
        shares.setdefault(label, []).append(min(times.values()) / times[config])
        spent.setdefault(label, []).append(measured)

    for order in range(orders):
        rng = np.random.default_rng(order)
        problems = [list(table)[i] for i in rng.permutation(len(table))]
        cut = 2 * len(problems) // 3
        tuner = Replayed(table, device)
        for i, problem in enumerate(problems[:cut]):
            config, measured = tuner.choose(problem, "auto")
            label = "auto, first problem" if i == 0 else "auto, while learning"
            note(label, problem, config, measured)
        for problem in problems[cut:]:
            for budget in BUDGETS:
                config, measured = tuner.copy().choose(problem, budget)
                note(f"unseen problem, budget {budget}", problem, config, measured)
            for label, config in plain_choices(table, problems[:cut], problem).items():
                note(label, problem, config, 0)
            for n in (4, 8):
                picks = rng.choice(len(table[problem]), n, replace=False)
                drawn = [list(table[problem].values())[i] for i in picks]
                note(f"best of {n} random", problem, min(drawn, key=_time).config, n)
    return [(label, shares[label], spent[label]) for label in shares]


def _time(m: Measurement) -> float:
    return m.time_ms if m.ok else np.inf


def plain_choices(
    table: Table, tuned: list[Problem], problem: Problem
) -> Mapping[str, Configuration]:
    """Return what those choose who know every time of the tuned problems, and have no model."""
    configs = list(table[problem])
    logs = np.array([[np.log(table[p][c].time_ms) for c in configs] for p in tuned])
    overall = configs[int(np.argmin(logs.mean(axis=0)))]
    like, *_ = nearest_first([next(iter(table[p].values())) for p in tuned], problem)
    there = table[like.problem]
    return {
        "best over all tuned (measured: all)": overall,
        "winner of the most similar (measured: all)": min(there, key=lambda c: there[c].time_ms),
    }


class Replayed:
    """The decorator's decisions over a recording."""

    def __init__(self, table: Table, device: Device) -> None:
        self._table = table
        self._device = device
        self._runs: list[Measurement] = []
        first = next(iter(next(iter(table.values())).values()))
        self._kernel = first.kernel

    def copy(self) -> "Replayed":
        """Return one that knows as much, and learns on its own."""
        other = Replayed(self._table, self._device)
        other._runs = list(self._runs)
        return other

    def choose(self, problem: Problem, budget: Budget) -> tuple[Configuration, int]:
        """Return the choice for a problem, and how many measurements it took."""
        call = Call(self._kernel, "recorded", problem, {}, self._device, None)
        options = Options(budget=budget, store=False)
        cache = CallTunerFactory(options).cache_of(call)
        cache.append(*self._runs)
        priors = PriorFactory(call.kernel, call.source, self._device, options)
        tuner = CallTuner.for_call(
            call, list(self._table[problem]), options=options, cache=cache, priors=priors
        )
        run(tuner.search.start(), lambda batch: [self._table[problem][c] for c in batch])
        self._runs = tuner.history.all_measurements
        return tuner.search.best, tuner.history.new_count


if __name__ == "__main__":
    main()
