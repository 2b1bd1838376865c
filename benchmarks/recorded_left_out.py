"""What does the decorator keep of kernels that are left out of everything that it learned?

    python benchmarks/recorded_left_out.py TABLE… [--leave family] [--keep LISTS.pickle] [--json]
    python benchmarks/recorded_left_out.py TABLE… --without NEW.parquet --keep LISTS.pickle

The tables are those of `recorded.py`. For each kernel, all orders are learned from the other
kernels of the tables: at most `LEARN` problems of each list, because more kernels teach and more
problems of a kernel do not. Then the decorator's prior, searcher and stopping rule choose for
problems of the kernel that was left out, with nothing known. ``--leave family`` leaves out all
kernels of its family: products, attention, or kernels without a product. ``--without`` names tables
from which nothing is learned, whose kernels are judged all the same: run it with and without the
option to see what a new table teaches.

Printed for each list of a kernel: the share of the best speed that is kept (mean, 10 % and 5 %
quantile, worst), measurements, the loss that was promised and the one there was. The decorator
with "auto" comes first, then with fixed budgets. Beside: stock Triton, which measures all; as many
random configurations as "auto" measured; the first of the list; the configuration that wins most
often among the kernel's other problems, which were measured whole; and the first choice and the
best of eight of trees that rank by sizes alone, as FlagTune does, and of a formula
(`recorded_baselines`).
"""

import argparse
import json
import math
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from launch_training import fit_orders
from machine import markdown
from recorded_baselines import roofline_log_time
from recorded_lists import ListedProblem, ProblemList, read_or_load
from recorded_replay import Kept

from foretune.errors import ForetuneError, UnknownName, UsageError
from foretune.objective import Objective
from foretune.search.ordered import OrderedSearcher
from foretune.search.searcher import Prior
from foretune.search.stopping import DEFAULT_REGRET, Stopping
from foretune.space import Configuration, ListedSpace
from foretune.tune.triton.launch_order import LaunchOrders, size_scores
from foretune.tune.triton.prior import launch_prior
from foretune.tune.triton.row_order import row_prior

LEARN = 60
"""Maximum number of problems of a list from which orders learn."""
BUDGETS = (1, 4, 8)
"""Fixed numbers of measurements."""
BEST_OF = 8
"""Measurements of a baseline's order, besides its first choice."""
DRAWS = 50
"""Random lists whose mean is the baseline."""
PROMISE_FACTOR = 1.5
"""A promise holds if at most this many times the promised loss is lost."""
SUMMARY = ("kept_mean", "measured", "promised", "lost")
"""What the last lines print, as means over all lists."""
MAX_PROMISE = 9.0
"""Promised losses are cut here: before the first success, they are infinite."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--leave", choices=("kernel", "family"), default="kernel")
    parser.add_argument(
        "--without", nargs="*", default=[], metavar="TABLE", help="learn nothing from these"
    )
    parser.add_argument("--problems", type=int, default=24, help="problems of a list to judge")
    parser.add_argument("--only", nargs="*", metavar="KERNEL", help="judge only these kernels")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where the lists are kept")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)

    lists = read_or_load(options.keep, options.tables, LEARN)
    teachers = teaching(lists, options.without)
    learned: dict[str, Learned] = {}
    found: dict[str, Any] = {}
    for of_kernel in lists:
        if options.only and of_kernel.kernel not in options.only:
            continue
        unit = getattr(of_kernel, options.leave)
        if unit not in learned:
            others = [other for other in teachers if getattr(other, options.leave) != unit]
            learned[unit] = Learned.from_lists(others, of_kernel.family)
        kept = judge(of_kernel, of_kernel.problems[: options.problems], learned[unit])
        found[of_kernel.name] = {choice: k.summary() for choice, k in kept.items()}
        print(f"{of_kernel.name} is judged", file=sys.stderr)
    print(json.dumps(found) if options.json else text_of(found, options.leave))


def teaching(lists: Sequence[ProblemList], without: Sequence[str]) -> list[ProblemList]:
    """Return the lists that orders learn from: those of no table in ``without``.

    Raises:
        UnknownName: No list is of such a table.
        UsageError: No list is left.
    """
    tables = {of_kernel.table for of_kernel in lists}
    left_out = {Path(name).name for name in without}
    for name in sorted(left_out - tables):
        raise UnknownName("table", name, tables)
    teachers = [of_kernel for of_kernel in lists if of_kernel.table not in left_out]
    if not teachers:
        raise UsageError("no table is left to learn from: give more, or fewer --without")
    return teachers


@dataclass(frozen=True)
class Learned:
    """Everything learned without a kernel, or a family; None for rows, which learn nothing."""

    launches: LaunchOrders | None

    @classmethod
    def from_lists(cls, lists: Sequence[ProblemList], family: str) -> "Learned":
        """Learn what a family needs from the lists of other kernels."""
        problems = [p for of_kernel in lists for p in of_kernel.problems]
        if family == "rows":
            return cls(None)
        learned = [problem.learned for problem in problems if problem.launches]
        if not learned:
            raise UsageError(f"no other kernel multiplies tiles, as {family} do: give more tables")
        return cls(fit_orders(learned))

    def prior(self, problem: ListedProblem) -> Prior:
        """Return the prior of a problem's candidates, as the decorator makes it."""
        if self.launches is not None:
            return launch_prior(problem.learned.columns, self.launches)
        return row_prior(problem.row_launches)


def judge(
    of_kernel: ProblemList, judged: Sequence[ListedProblem], learned: Learned
) -> dict[str, Kept]:
    """Return what each way of choosing keeps of a list's problems."""
    kept = defaultdict[str, Kept](Kept)
    for problem in judged:
        shares = problem.shares
        choices = choose(problem, learned.prior(problem))
        for budget, (share, measured, promised) in choices.items():
            kept[f"Foretune, {budget}"].note(share, measured, promised)

        # Choices that need no model.
        kept["stock Triton"].note(1.0, len(shares))
        _, measured_by_auto, _ = choices["auto"]
        rng = np.random.default_rng(zlib.crc32(str(problem.problem).encode()))
        lists = [rng.permutation(len(shares))[:measured_by_auto] for _ in range(DRAWS)]
        drawn = [shares[tried].max() for tried in lists]
        kept["random, as many"].note(float(np.mean(drawn)), measured_by_auto)
        kept["first of the list"].note(shares[0], 0)
        frequent = most_frequent_winner(problem, of_kernel.problems)
        if frequent is not None:
            kept["most frequent winner"].note(shares[problem.configs.index(frequent)], 0)

        # Orders of other tools.
        if learned.launches is not None:
            orders = {
                "ranking on sizes": size_scores(learned.launches.sizes, problem.learned.columns),
                "formula": roofline_log_time(problem.launches, problem.device),
            }
            for name, scores in orders.items():
                in_order = np.argsort(scores, kind="stable")
                kept[f"{name}, first"].note(shares[in_order[0]], 0)
                tried = in_order[:BEST_OF]
                kept[f"{name}, {BEST_OF}"].note(shares[tried].max(), len(tried))
    return kept


def choose(problem: ListedProblem, prior: Prior) -> dict[str, tuple[float, int, float]]:
    """Return the share kept, measurements and promised loss, by budget."""
    searcher = OrderedSearcher(
        ListedSpace(problem.configs),
        Objective.TIME,
        0,
        prior,
        problem.problem,
        problem.device,
        statics=problem.statics,
    )
    automatic = Stopping(None, DEFAULT_REGRET)
    choices: dict[str, tuple[float, int, float]] = {}
    measured = 0
    while True:
        # What is chosen now: the incumbent, else the most promising candidate.
        chosen = searcher.choice()
        share = float(problem.shares[problem.configs.index(chosen)])
        is_complete = measured == len(problem.configs)
        regret = 0.0 if is_complete else searcher.search_posterior.expected_regret
        now = share, measured, min(regret, MAX_PROMISE)
        if measured in BUDGETS:
            choices[str(measured)] = now
        stops = is_complete or automatic.reason(searcher, measured) is not None
        if stops and "auto" not in choices:
            choices["auto"] = now
        if is_complete or ("auto" in choices and measured >= max(BUDGETS)):
            break
        (config,) = searcher.ask()
        searcher.tell([problem.measurement(problem.configs.index(config))])
        measured += 1

    # A list may be shorter than a budget.
    by_budget = {str(budget): choices.get(str(budget), now) for budget in BUDGETS}
    return {"auto": choices["auto"], **by_budget}


def most_frequent_winner(
    problem: ListedProblem, others: Sequence[ListedProblem]
) -> Configuration | None:
    """Return the listed configuration that wins most of the other problems; None if none does."""
    winners = [p.configs[int(np.argmin(p.time_ms))] for p in others if p is not problem]
    wins = Counter(config for config in winners if config in problem.configs)
    return wins.most_common(1)[0][0] if wins else None


def text_of(found: dict[str, Any], left_out: str) -> str:
    """Return all summaries as one Markdown table, and what holds over all lists."""
    head = ["list", "choice", "mean", "10 %", "5 %", "worst", "measured", "promised", "lost"]
    rows = []
    for name, by_choice in found.items():
        for choice, summary in by_choice.items():
            shares = ("kept_mean", "kept_p10", "kept_p5", "kept_worst")
            cells = [f"{summary[share]:.3f}" for share in shares]
            promised = f"{summary['promised']:.3f}" if "promised" in summary else ""
            lost = f"{summary['lost']:.3f}"
            rows.append([name, choice, *cells, f"{summary['measured']:.1f}", promised, lost])

    auto = {name: by_choice["Foretune, auto"] for name, by_choice in found.items()}
    broken = [name for name, summary in auto.items() if not holds(summary)]
    mean = {key: np.mean([summary[key] for summary in auto.values()]) for key in SUMMARY}
    worst_list = min(summary["kept_mean"] for summary in auto.values())
    worst_problem = min(summary["kept_worst"] for summary in auto.values())
    return (
        f"{markdown(head, rows)}\nEach {left_out} left out, mean over {len(auto)} lists: auto "
        f"keeps {mean['kept_mean']:.3f} (worst list {worst_list:.3f}, worst problem "
        f"{worst_problem:.3f}), measures {mean['measured']:.1f}, promises {mean['promised']:.3f}, "
        f"loses {mean['lost']:.3f}.\nPromises broken: {', '.join(broken) or 'none'}.\n"
    )


def holds(summary: dict[str, float]) -> bool:
    """Whether at most `PROMISE_FACTOR` times the promised loss is lost."""
    return summary["lost"] <= PROMISE_FACTOR * summary["promised"] or math.isclose(
        summary["lost"], PROMISE_FACTOR * summary["promised"]
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ForetuneError as e:
        raise SystemExit(str(e)) from e
