"""Is it true which tiles are slow in TF32? Products of operands of 32 bits, in all layouts.

    PYTHONPATH=src python benchmarks/gpu/tf32.py --out runs       # again: goes on where it stopped
    PYTHONPATH=src python benchmarks/gpu/tf32.py --out runs --replay

`foretune.features.launches` says that on Hopper, tiles of at least 64 rows and 4 warps compute at
0.4 of the rate unless both operands are contiguous along K. Foretune's order of a list rests on it.
Writes ``tf32.parquet``, a run table. Prints per size and layout, each as a share of the best of
the list: the best of the first four in Foretune's order, the best of those tiles and of the others.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from breadth_products import Tf32Gemm
from running import Stage, measured, run_stage
from stage import Deadline, Job, Table, markdown

from foretune.datasets import to_measurements
from foretune.features.launches import TF32_ROWS, TF32_WARPS
from foretune.measurement import Measurement
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.search.ordered import OrderedSearcher
from foretune.space import Configuration, ListedSpace
from foretune.tune.triton.launch_order import shipped_orders
from foretune.tune.triton.prior import launch_prior

SIZES = (2048, 4096)
LAYOUTS = ("nn", "nt", "tn", "tt")
K_MAJOR = "nt"
"""The layout in which both operands are contiguous along K."""
TILES = ((32, 64), (32, 128), (64, 64), (64, 128), (128, 64), (128, 128))
WARPS = (2, 4, 8)
STAGES = (2, 4)
BLOCK_K = 32
IEEE_STAGES = 2
"""Stages of the products that are not rounded: fewer configurations, since they are slow."""
FIRST = 4
"""Entries of the list that are measured before a choice."""
GOAL = 0.85
"""Share of the best speed that the first entries should keep."""
MINUTES = 1.0


def main(argv: list[str] | None = None) -> None:
    stage = Stage(__doc__)
    stage.set_defaults(minutes=MINUTES)
    stage.add_argument("--sizes", nargs="*", type=int, default=list(SIZES), help="M, N and K")
    stage.add_argument("--compilers", type=int, default=0, help="processes that compile")
    run_stage(stage, argv, "tf32.parquet", measure, report)


def listed(precision: str) -> list[Configuration]:
    """Return the list of a precision."""
    return [
        Configuration(
            BLOCK_M=m, BLOCK_N=n, BLOCK_K=BLOCK_K, GROUP_M=8, num_warps=warps, num_stages=stages
        )
        for m, n in TILES
        for warps in WARPS
        for stages in (STAGES if precision == "tf32" else (IEEE_STAGES,))
    ]


def jobs(kernel: Tf32Gemm, options: argparse.Namespace) -> Iterator[Job]:
    """Yield all that is measured: layouts take turns, TF32 comes first."""
    for precision in ("tf32", "ieee"):
        for size in options.sizes:
            for config in listed(precision):
                for layout in LAYOUTS:
                    problem = _problem(kernel, size, layout, precision)
                    yield Job(kernel, problem, config, "list")


def measure(options: argparse.Namespace, bench: Any, table: Table, deadline: Deadline) -> bool:
    """Measure what is left; return whether a launch broke the device's context."""
    left = [job for job in jobs(Tf32Gemm(), options) if job.key not in table.done]
    for _ in measured(bench, table, deadline, left, options.compilers):
        pass
    return bool(bench.device_lost)


def report(options: argparse.Namespace, bench: Any, table: Table) -> str:
    """Return a table of sizes and layouts."""
    runs = table.runs()
    if not len(runs):
        return "nothing was measured: give it more --minutes"
    by_problem: dict[Problem, list[Measurement]] = {}
    for measurement in to_measurements(runs):
        by_problem.setdefault(measurement.problem, []).append(measurement)

    kernel = Tf32Gemm()
    rows = []
    kept = []
    n_held = 0
    for size in options.sizes:
        for layout in LAYOUTS:
            rounded = by_problem.get(_problem(kernel, size, layout, "tf32"), [])
            exact = by_problem.get(_problem(kernel, size, layout, "ieee"), [])
            if not any(m.ok for m in rounded):
                continue
            of_first = first_share(kernel, rounded, bench.device)
            kept.append(of_first)
            n_held += rule_holds(layout, rounded)
            alone = first_share(kernel, rounded, bench.device, first=1)
            rows.append(_row(size, layout, [alone, of_first], rounded, exact))
    if not rows:
        return "no product in TF32 has run: see the column error of the table"
    columns = [
        "M = N = K",
        "layout",
        "measured",
        "first / best",
        f"first {FIRST} / best",
        "≥ 64 rows, ≥ 4 warps",
        "other tiles",
        "best, ms",
        "ieee, ms",
    ]
    n_met = sum(share >= GOAL for share in kept)
    return (
        f"{bench.device.name}; {bench.source}\n\n{markdown(columns, rows)}\n"
        f"the rule holds on {n_held} of {len(kept)} problems: tiles of at least "
        f"{TF32_ROWS:.0f} rows and {TF32_WARPS:.0f} warps are slower than the others, "
        "unless both operands are K-major; "
        f"the first {FIRST} keep at least {GOAL} of the best on {n_met}"
    )


def rule_holds(layout: str, measured: list[Measurement]) -> bool:
    """Whether the best tile is none that Foretune calls slow, or the layout has no slow ones."""
    large_ms = _best_ms([m for m in measured if _is_asynchronous(m.config)])
    others_ms = _best_ms([m for m in measured if not _is_asynchronous(m.config)])
    return large_ms <= others_ms if layout == K_MAJOR else large_ms > others_ms


def first_share(
    kernel: Tf32Gemm, measured: list[Measurement], device: Any, first: int = FIRST
) -> float:
    """Return the share of the best speed that the first entries in Foretune's order keep.

    The order is that of the decorator's searcher, which learns from each entry.
    """
    from recorded_gpu import recorded_list
    from recorded_lists import ListedProblem

    recorded = recorded_list(kernel, measured[0].problem, measured, device)
    assert recorded is not None, "the list is too short"
    problem = ListedProblem.of(recorded)
    searcher = OrderedSearcher(
        ListedSpace(problem.configs),
        Objective.TIME,
        0,
        launch_prior(problem.learned.columns, shipped_orders()),
        problem.problem,
        problem.device,
        statics=problem.statics,
    )
    best = 0.0
    for _ in range(min(first, len(problem.configs))):
        (config,) = searcher.ask()
        number = problem.configs.index(config)
        searcher.tell([problem.measurement(number)])
        best = max(best, float(problem.shares[number]))
    return best


def _row(
    size: int,
    layout: str,
    of_first: list[float],
    rounded: list[Measurement],
    exact: list[Measurement],
) -> list[str]:
    best_ms = _best_ms(rounded)
    asynchronous = [m for m in rounded if _is_asynchronous(m.config)]
    others = [m for m in rounded if not _is_asynchronous(m.config)]
    return [
        str(size),
        f"{layout} (K-major)" if layout == K_MAJOR else layout,
        str(sum(m.ok for m in rounded)),
        *(f"{share:.3f}" for share in of_first),
        f"{best_ms / _best_ms(asynchronous):.3f}",
        f"{best_ms / _best_ms(others):.3f}",
        f"{best_ms:.4f}",
        f"{_best_ms(exact):.4f}",
    ]


def _is_asynchronous(config: Configuration) -> bool:
    """Whether Triton would give the tile to Hopper's asynchronous units, by Foretune's rule."""
    return int(config["BLOCK_M"]) >= TF32_ROWS and int(config["num_warps"]) >= TF32_WARPS


def _best_ms(measured: list[Measurement]) -> float:
    """Return the shortest time; infinity if nothing has run."""
    return min((m.time_ms for m in measured if m.ok), default=float("inf"))


def _problem(kernel: Tf32Gemm, size: int, layout: str, precision: str) -> Problem:
    return kernel.problem(M=size, N=size, K=size, layout=layout, precision=precision)


if __name__ == "__main__":
    main(sys.argv[1:])
