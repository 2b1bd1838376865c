"""Parallel layouts on this machine's cores: predicted from operators, then run.

    python benchmarks/plan_layouts.py [--seconds 240] [--repeats 3] [--json FILE]

Two processes (torch.distributed, gloo), one thread each, run a small transformer on one rank and
in tensor, pipeline and data parallelism. Prints, per repeat, every step and layout; then how well
the layouts' order was predicted, by what: operators alone, operators with coefficients fitted to
other steps, and counting work only (half of it on two ranks). Spearman is the mean over steps;
regret is how much slower the chosen layout is than the best; pairs are those whose measured ratio
lies surely beyond 5 %.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from machine import heading, markdown
from plan_parallel.arrangement import StepProblem
from plan_parallel.grid import Grid
from plan_parallel.parallel import (
    LayoutTimes,
    ParallelCheck,
    ProblemCheck,
    check_parallel,
    small_model,
)
from scipy.stats import spearmanr

from foretune.collect import local_device
from foretune.support.console import progress_bar

MODELS = (
    small_model(256, 4, 2, 704),
    small_model(640, 4, 2, 1728),
    small_model(1024, 2, 4, 2752),
    small_model(1280, 2, 4, 3456),
)
PROBLEMS = [
    StepProblem(model, batch, new, context)
    for model in MODELS
    for batch, new, context in ((1, 72, 0), (4, 24, 0), (2, 1, 200), (10, 1, 120))
]
TEACHERS = (
    small_model(128, 6, 2, 352),
    small_model(384, 2, 2, 1088),
    small_model(768, 2, 4, 2048),
)
LESSONS = [
    StepProblem(model, batch, new, context)
    for model in TEACHERS
    for batch, new, context in ((2, 24, 0), (4, 1, 150))
]
"""No model of the problems is among them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=240.0, help="of measuring, per repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    print(heading("Parallel layouts on two cores", local_device("cpu")))
    checks = []
    for number in range(options.repeats):
        with progress_bar() as progress:
            check = check_parallel(
                PROBLEMS, LESSONS, Grid(), options.seconds, progress=progress, seed=number
            )
        checks.append(check)
        print(_steps(check, number), flush=True)
    print(_scores(checks))
    if options.json:
        found = [check.to_json() for check in checks]
        options.json.write_text(json.dumps(found), encoding="utf-8")


def _steps(check: ParallelCheck, number: int) -> str:
    """Return the table of one repeat."""
    rows = [
        [
            row["problem"],
            row["layout"],
            f"{row['operators_ms']:.2f}",
            f"{row['predicted_ms']:.2f}",
            f"{row['measured_ms']:.2f}",
            f"{row['predicted_ratio']:.2f}",
            f"{row['measured_ratio']:.2f}",
            f"{row['low']:.2f} … {row['high']:.2f}",
        ]
        for row in check.table().to_dict("records")
    ]
    error = check.table()["error"].max()
    table = markdown(
        (
            "step",
            "layout",
            "operators ms",
            "predicted ms",
            "measured ms",
            "predicted / one rank",
            "measured / one rank",
            "95 %",
        ),
        rows,
    )
    coefficients = ", ".join(f"{value:.2f}" for value in check.coefficients)
    return (
        f"Repeat {number + 1}: {check.operators} operators in {check.seconds:.0f} s, coefficients "
        f"{coefficients}; {100 * check.seen_share:.1f} % of the steps' operators were measured at "
        f"the same sizes; outputs differ by at most {error:.0e}\n\n{table}"
    )


def _work(check: ProblemCheck, layout: LayoutTimes) -> float:
    """Return the share of one rank's work that each rank has, were there nothing else."""
    if layout.layout == "one rank":
        return 1.0
    if layout.layout.startswith("pp"):
        parts = min(2, check.problem.batch)
        return (parts + 1) / (2 * parts)
    return 0.5


METHODS: dict[str, Callable[[ProblemCheck, LayoutTimes], float]] = {
    "work only": _work,
    "operators": lambda check, layout: layout.operators_ms,
    "operators and coefficients": lambda check, layout: layout.predicted_ms,
}


def _scores(checks: Sequence[ParallelCheck]) -> str:
    """Return the table of how well each method orders layouts, over all steps and repeats."""
    problems = [problem for check in checks for problem in check.problems]
    rows = []
    for name, method in METHODS.items():
        scored = pd.DataFrame([_score(problem, method) for problem in problems])
        by_repeat = np.array_split(scored["regret"].to_numpy(), len(checks))
        spread = " … ".join(f"{100 * f([r.mean() for r in by_repeat]):.1f}" for f in (min, max))
        rows.append(
            [
                name,
                f"{100 * scored['regret'].mean():.1f} ({spread})",
                f"{100 * scored['regret'].max():.1f}",
                f"{int((scored['regret'] <= 0.05).sum())} of {len(scored)}",
                f"{scored['spearman'].mean():.2f}",
                f"{int(scored['kept'].sum())} of {int(scored['pairs'].sum())}",
                "–" if name == "work only" else f"{100 * scored['error'].median():.1f}",
            ]
        )
    return markdown(
        (
            "predicted by",
            "mean regret % (by repeat)",
            "largest",
            "within 5 %",
            "Spearman",
            "pairs in order",
            "median error of times %",
        ),
        rows,
    )


def _score(
    problem: ProblemCheck, method: Callable[[ProblemCheck, LayoutTimes], float]
) -> dict[str, float]:
    layouts = problem.layouts
    predicted = np.array([method(problem, layout) for layout in layouts])
    measured = np.array([layout.measured_ms for layout in layouts])
    # Where a method sees no difference, any of its choices is as likely.
    chosen = measured[predicted <= predicted.min() * (1 + 1e-9)].mean()
    of = {id(layout): value for layout, value in zip(layouts, predicted, strict=True)}
    untied = len(set(predicted)) > 1
    return {
        "regret": chosen / measured.min() - 1.0,
        "spearman": float(spearmanr(predicted, measured)[0]) if untied else 0.0,
        "pairs": len(problem.pairs),
        "kept": sum(of[id(fast)] < of[id(slow)] for fast, slow in problem.pairs),
        "error": float(np.median(np.abs(predicted / measured - 1.0))),
    }


if __name__ == "__main__":
    main()
