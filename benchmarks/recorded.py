"""What does the decorator keep of the best on tables of real GPUs, and what does it measure?

    python benchmarks/recorded.py TABLE.parquet… [--leave-kernel-out] [--json]

Every problem of a table was measured with every configuration of its list. Here the decorator's own
objects (prior, searcher, stopping rule, cache) choose from the recording: with nothing known, and
after tuning 12 and 30 other problems of the table with budget "auto", one after the other. On
tables with 16-bit and 32-bit problems a 32-bit one is asked for after 20 of the others, too.

Printed per table, state and budget: the share of the best speed that is kept (mean, median, 5 %
quantile, worst), measurements, the loss that was promised and the one there was. Beside: random
configurations, the first of the list, the winner of the most similar problem, and the winners of
the eight most similar ones, measured.

The prior is the shipped one, whose card names the tables that it learned from. With
--leave-kernel-out and --leave-device-out it is trained on the other given tables, with
--leave-dtype-out on the other types, and with --leave-rows-out on other numbers of rows.
"""

import argparse
import json
import sys
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import recorded_tables
from launch_training import fit_orders
from machine import markdown
from recorded_replay import BUDGETS, Chosen, Kept, Replayed
from recorded_tables import Recorded

from foretune.errors import UsageError
from foretune.search.encoding import nearest_first
from foretune.space import Configuration
from foretune.tune.triton.launch_order import LaunchOrders

AFTER = (12, 30)
TRAP = 20
"""16-bit problems after which a 32-bit one is asked for."""
ORDERS = 4
"""Orders in which other problems are tuned; each is known to as large a part of those judged."""
LEARN = 600
"""Problems of a table that a prior learns from."""
DRAWS = 50
"""Random lists whose mean is the baseline."""

Case = tuple[Recorded, Replayed, Sequence[Recorded]]
"""A problem, a decorator for it, and the problems that this has tuned."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--leave-kernel-out", action="store_true")
    parser.add_argument("--leave-device-out", action="store_true")
    parser.add_argument("--leave-dtype-out", metavar="DTYPE", help="judge only problems of it")
    parser.add_argument("--leave-rows-out", metavar="M", type=int, help="judge only products of it")
    parser.add_argument("--learn-from", nargs="*", type=Path, default=[], metavar="TABLE")
    parser.add_argument("--problems", type=int, default=120, help="random problems of each table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-cold", action="store_true", help="nothing known, only")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    anew = options.leave_kernel_out or options.leave_device_out
    anew = anew or options.leave_dtype_out or options.leave_rows_out
    known: list[Recorded] = []
    for path in dict.fromkeys([*options.tables, *options.learn_from] if anew else []):
        for of_table in recorded_tables.read(path, LEARN, seed=1000).values():
            known += of_table
    tables = {}
    for path in options.tables:
        found = recorded_tables.read(path, options.problems + 4 * max(AFTER), options.seed)
        for name, some in found.items():
            if options.leave_rows_out and some[0].rows is None:
                continue
            order = learned(known, some[0], options) if anew else None
            tables[name] = judge(some, order, options)
            print(f"{name} is judged", file=sys.stderr)
    result = {"prior": "learned anew" if anew else "shipped", "tables": tables}
    print(json.dumps(result) if options.json else text_of(result))


def learned(
    known: Sequence[Recorded], judged: Recorded, options: argparse.Namespace
) -> LaunchOrders:
    """Return a prior that learned from the tables that are not held out.

    Raises:
        UsageError: No table is left.
    """
    left = [
        r.learned
        for r in known
        if r.is_product
        and not (options.leave_kernel_out and r.kernel == judged.kernel)
        and not (options.leave_device_out and r.call.device.name == judged.call.device.name)
        and r.dtype != options.leave_dtype_out
        and (options.leave_rows_out is None or r.rows != options.leave_rows_out)
    ]
    if not left:
        raise UsageError("no table is left to learn from: give more, or --learn-from TABLE")
    return fit_orders(left)


def judge(
    problems: Sequence[Recorded], order: LaunchOrders | None, options: argparse.Namespace
) -> dict[str, Any]:
    """Return summaries by state and budget, and those of the baselines."""
    dtype = options.leave_dtype_out
    m = options.leave_rows_out
    judged = [
        r for r in problems[: options.problems] if dtype in (None, r.dtype) and m in (None, r.rows)
    ]
    others = problems[options.problems :]
    if not judged:
        raise UsageError(f"nothing to judge is among {options.problems} problems: ask for more")
    cases: dict[str, list[Case]] = {"cold": [(r, Replayed(order), ()) for r in judged]}
    summaries: dict[str, Any] = {}
    if not options.only_cold:
        learning, found = learn(judged, others, order)
        summaries["learning"] = {"auto": learning.summary()}
        cases |= found | trap(judged, others, order)
    for state, mine in cases.items():
        kept: dict[str, Kept] = {}
        for problem, tuner, _ in mine:
            for budget, choice in tuner.choose(problem).items():
                note(kept.setdefault(budget, Kept()), problem, choice)
        summaries[state] = {budget: k.summary() for budget, k in sorted(kept.items())}
    return {**summaries, "baselines": {state: baselines(mine) for state, mine in cases.items()}}


def learn(
    judged: Sequence[Recorded], others: Sequence[Recorded], order: LaunchOrders | None
) -> tuple[Kept, dict[str, list[Case]]]:
    """Tune other problems one after the other, in several orders.

    Returns:
        The shares that were kept while tuning; and for each number in `AFTER` the problems to
        judge, each with a decorator that knows that number of problems.
    """
    learning = Kept()
    cases = {f"after_{n}": list[Case]() for n in AFTER}
    for i in range(ORDERS):
        chain = np.random.default_rng(i).permutation(len(others))[: max(AFTER)]
        tuner = Replayed(order)
        for n, number in enumerate(chain, 1):
            note(learning, others[number], tuner.choose(others[number], ())["auto"])
            if n in AFTER:
                tuned = [others[j] for j in chain[:n]]
                cases[f"after_{n}"] += [(r, tuner.copy(), tuned) for r in judged[i::ORDERS]]
    return learning, cases


def trap(
    judged: Sequence[Recorded], others: Sequence[Recorded], order: LaunchOrders | None
) -> dict[str, list[Case]]:
    """Return the 32-bit problems, for a decorator that knows `TRAP` of other types; or nothing."""
    narrow = [r for r in others if r.dtype != "float32"][:TRAP]
    wide = [r for r in judged if r.dtype == "float32"]
    if len(narrow) < TRAP or not wide:
        return {}
    tuner = Replayed(order)
    for r in narrow:
        tuner.choose(r, ())
    return {f"fp32_after_{TRAP}_narrow": [(r, tuner.copy(), narrow) for r in wide]}


def note(kept: Kept, problem: Recorded, choice: Chosen) -> None:
    config, measured, promised = choice
    kept.note(problem.kept(config), measured, promised)


def baselines(cases: Sequence[Case]) -> dict[str, Any]:
    """Return the summaries of choices that need no model, by name and budget."""
    kept = defaultdict[str, dict[str, Kept]](lambda: defaultdict(Kept))
    for problem, _, tuned in cases:
        rng = np.random.default_rng(zlib.crc32(str(problem.call.problem).encode()))
        shares = np.array([problem.kept(config) for config in problem.configs])

        for budget in BUDGETS:
            tried = min(max(budget, 1), len(shares))
            measured = 0 if budget == 0 else tried
            kept["first_of_list"][str(budget)].note(shares[:tried].max(), measured)

            drawn = [shares[rng.permutation(len(shares))[:tried]].max() for _ in range(DRAWS)]
            kept["random"][str(budget)].note(float(np.mean(drawn)), budget)

        # Winners of similar problems: take the most similar one, or measure eight.
        winners = [winner(other) for other in similar(problem, tuned)]
        of_one = [config for config in winners[:1] if config in problem.configs]
        of_eight = dict.fromkeys(config for config in winners[:8] if config in problem.configs)
        if of_one:
            kept["most_similar_winner"]["0"].note(problem.kept(of_one[0]), 0)
        if of_eight:
            best = max(problem.kept(config) for config in of_eight)
            kept["winners_of_8_similar"]["auto"].note(best, len(of_eight))

    return {
        name: {budget: of_budget.summary() for budget, of_budget in by_budget.items()}
        for name, by_budget in kept.items()
    }


def winner(problem: Recorded) -> Configuration:
    """Return the fastest configuration."""
    return problem.configs[int(np.argmin(problem.time_ms))]


def similar(problem: Recorded, tuned: Sequence[Recorded]) -> list[Recorded]:
    """Return tuned problems, the most similar first."""
    runs = {r.call.problem: r for r in tuned}
    ordered = nearest_first([r.run(r.configs[0]) for r in tuned], problem.call.problem)
    return [runs[m.problem] for m in ordered]


def text_of(found: dict[str, Any]) -> str:
    """Return all summaries as one Markdown table."""
    budgets = [*map(str, BUDGETS), "auto"]
    rows = []
    for table, states in found["tables"].items():
        for state, ours in states.items():
            if state == "baselines":
                continue
            of_state = {"Foretune": ours, **states["baselines"].get(state, {})}
            if state.startswith("after"):  # these two know nothing in any state
                of_state.pop("first_of_list", None)
                of_state.pop("random", None)
            for name, by_budget in of_state.items():
                cells = [cell(by_budget[b]) if b in by_budget else "" for b in budgets]
                auto = by_budget.get("auto", {})
                lost = f"{auto['promised']:.3f} / {auto['lost']:.3f}" if "promised" in auto else ""
                spent = f"{auto['measured']:.1f}" if auto else ""
                rows.append([table, state, name.replace("_", " "), *cells, spent, lost])
    head = ["table", "known", "choice", *budgets, "measured, auto", "promised / lost, auto"]
    return f"Prior: {found['prior']}.\n\n{markdown(head, rows)}"


def cell(summary: dict[str, float]) -> str:
    """Return mean, 5 % quantile and worst share."""
    return " / ".join(f"{summary[name]:.3f}" for name in ("kept_mean", "kept_p5", "kept_worst"))


if __name__ == "__main__":
    main(sys.argv[1:])
