"""How many measurements does an unseen problem need?

Profiles a kernel over training problems, trains the predictor on them, and measures every one of
``--space`` configurations, drawn from the whole space, on unseen problems. Searchers then tune
those problems from the recording, each seeing a time only by spending a measurement. Prints, per
kernel: what the choice of configuration is worth, and what each searcher has found after 1, 5 and
10 measurements, as a share of the exhaustive best.

    python benchmarks/tuning.py matmul softmax --out tuning-runs

Resumable: rows already in ``--out`` are not measured again.
"""

import argparse
from pathlib import Path

import numpy as np
from machine import heading, markdown

from foretune.collect import IsolatedRunner, Timing, collect_runs, local_device
from foretune.collect.collection import plan_configurations
from foretune.datasets import RunLog
from foretune.device import Device
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.models import Predictor, train_predictor
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.registry import get_kernel
from foretune.search.prior import prior_from_predictor
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.replay.replay import replay
from foretune.space import SearchSpace
from foretune.support.console import progress_bar

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "kernels"
KERNELS = ["matmul", "quantized_matvec", "softmax", f"{EXAMPLES / 'conv2d.py'}:Conv2d"]
BUDGET = 10
CONTENDERS = {
    # name in the table -> searcher, with the predictor as prior, repeats
    "random": ("random", False, 50),
    "Optuna TPE": ("tpe", False, 20),
    "surrogate, no predictor": ("surrogate", False, 20),
    "predictor's order, no updates": ("exhaustive", True, 1),
    "surrogate + predictor (Foretune)": ("surrogate", True, 5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*", default=KERNELS, help="names or FILE.py:NAME")
    parser.add_argument("--train", type=int, default=12, help="training problems")
    parser.add_argument("--configs", type=int, default=20, help="configurations of each")
    parser.add_argument("--unseen", type=int, default=8, help="unseen problems")
    parser.add_argument("--space", type=int, default=200, help="configurations measured on each")
    parser.add_argument(
        "--out", type=Path, default=Path("tuning-runs"), help="folder of recordings"
    )
    parser.add_argument("--plot", type=Path, help="write the curves to this SVG")
    options = parser.parse_args()
    device = local_device()
    print(heading("Tuning unseen problems", device))
    worth = []
    found = []
    shares = {}
    for name in options.kernels:
        kernel = get_kernel(name)
        name = kernel.name
        recorded, predictor, space_size = record(kernel, device, options)
        worth.append([name, f"{space_size:,}", *worth_of(kernel, recorded)])
        shares[name] = search_all(kernel, device, recorded, predictor)
        found += [[name, searcher, *summary(table)] for searcher, table in shares[name].items()]
    print(
        f"{options.unseen} unseen problems per kernel; on each, every one of {options.space} "
        "configurations drawn at random from the space was measured, the default among them: "
        "the best of those is the exhaustive best. Median over problems (least-most).\n"
    )
    columns = ["kernel", "space", "best vs median", "best vs default", "library / best"]
    print(markdown(columns, worth))
    columns = ["kernel", "searcher", "after 1", "after 5", "after 10", "to 95 %", "problems ≥ 95 %"]
    print(markdown(columns, found))
    if options.plot:
        plot(shares, options.plot)


def record(
    kernel: Kernel, device: Device, options: argparse.Namespace
) -> tuple[dict[Problem, list[Measurement]], Predictor, int]:
    """Measure (or read) everything; return the unseen problems' rows and the trained predictor."""
    problems = kernel.training_problems(options.train + options.unseen, seed=1)
    known = problems[: options.train]
    unseen = problems[options.train :]
    plan = plan_configurations(kernel, known, options.configs, seed=1)
    pool = kernel.space(unseen[0]).sample(options.space - 1, np.random.default_rng(2))
    full = {
        p: list(dict.fromkeys([kernel.default(p), *(c for c in pool if c in kernel.space(p))]))
        for p in unseen
    }
    timing = Timing(max_seconds=0.1)
    options.out.mkdir(parents=True, exist_ok=True)
    with (
        IsolatedRunner(device, timing, power=False) as runner,
        RunLog(options.out / f"{kernel.name}-train.parquet", device) as log,
        RunLog(options.out / f"{kernel.name}-unseen.parquet", device) as unseen_log,
        progress_bar() as progress,
    ):
        collect_runs(kernel, plan, log, runner, progress)
        collect_runs(kernel, full, unseen_log, runner, progress)
        predictor = train_predictor(log.runs()).predictor
        rows = {
            p: [m for c in configs if (m := unseen_log.find((kernel.name, device.name, p, c)))]
            for p, configs in full.items()
        }
    return rows, predictor, len(kernel.space(unseen[0]))


def worth_of(kernel: Kernel, recorded: dict[Problem, list[Measurement]]) -> list[str]:
    median = []
    default = []
    library = []
    for problem, rows in recorded.items():
        times = {m.config: m.time_ms for m in rows if m.ok}
        best = min(times.values())
        median.append(np.median(list(times.values())) / best)
        default.append(times[kernel.default(problem)] / best)
        library.append(library_ms(kernel, problem) / best)
    return [spread(median), spread(default), spread(library)]


def library_ms(kernel: Kernel, problem: Problem) -> float:
    from foretune.collect.timing import time_launch

    found = kernel.library(problem, kernel.make_inputs(problem))
    if found is None:
        return np.nan
    # Its own threads may share a core for a while: the best of several looks.
    return min(float(np.median(time_launch(found[1], Timing(max_seconds=0.2)))) for _ in range(4))


def search_all(
    kernel: Kernel,
    device: Device,
    recorded: dict[Problem, list[Measurement]],
    predictor: Predictor,
) -> dict[str, np.ndarray]:
    """Return by contender the best share of the optimum so far: (problems, measurements)."""
    tables = {}
    for name, (searcher, uses_prior, repeats) in CONTENDERS.items():
        curves = []
        for problem, measurements in recorded.items():
            by_config = {m.config: m for m in measurements}
            space = SearchSpace.from_configs(by_config)
            prior = None
            if uses_prior:
                prior = prior_from_predictor(predictor, problem, space, device, Objective.TIME)
            in_order = tuple(by_config[config] for config in space)
            searched = RecordedSpace(str(problem), device, space, in_order)
            result = replay(searched, searcher, BUDGET, repeats, prior=prior)
            curves.append(result.curves.mean(axis=0))
        tables[name] = np.array(curves)
    return tables


def summary(table: np.ndarray) -> list[str]:
    reached = [float(np.argmax(c >= 0.95)) + 1 if c[-1] >= 0.95 else np.inf for c in table]
    to95 = float(np.median(reached))
    return [
        *(f"{np.median(table[:, n - 1]):.3f}" for n in (1, 5, 10)),
        f"{to95:.0f}" if np.isfinite(to95) else f">{BUDGET}",
        f"{int(np.isfinite(reached).sum())} of {len(table)}",
    ]


def plot(shares: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    styles = {
        "random": ("#8a8f98", ":", "random search"),
        "Optuna TPE": ("#8a8f98", "-", "Optuna TPE"),
        "surrogate + predictor (Foretune)": ("#0b6fb8", "-", "Foretune"),
    }
    figure, axes = pyplot.subplots(1, len(shares), figsize=(2.6 * len(shares), 2.8), sharey=True)
    for axis, (kernel, tables) in zip(np.atleast_1d(axes), shares.items(), strict=True):
        for name, (color, line, label) in styles.items():
            steps = np.arange(1, BUDGET + 1)
            low, middle, high = np.quantile(tables[name], (0.25, 0.5, 0.75), axis=0)
            axis.plot(steps, middle, line, color=color, linewidth=2, label=label)
            if label == "Foretune":
                axis.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
        axis.axhline(0.95, color="#c0c4cc", linewidth=0.8, zorder=0)
        axis.set(title=kernel, xlabel="measurements", ylim=(0, 1.03), xticks=(1, 5, 10))
        axis.spines[["top", "right"]].set_visible(False)
    np.atleast_1d(axes)[0].set_ylabel("share of the best performance")
    np.atleast_1d(axes)[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def spread(values: list[float]) -> str:
    return f"{np.median(values):.2f}× ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    main()
