"""What does the decorator keep of kernels that are left out of everything that it learned?

    python benchmarks/recorded_left_out.py TABLE… [--leave family] [--json]

The tables are those of `recorded.py`. For each kernel, all orders are learned from the other
kernels of the tables: at most `LEARN` problems of each, because more kernels teach and more
problems of a kernel do not. Then the decorator's own objects choose for problems of the kernel that
was left out, with nothing known. ``--leave family`` leaves out all kernels of its family: products,
attention, or kernels without a product.

Printed for each list of a kernel: the share of the best speed that is kept (mean, 10 % and 5 %
quantile, worst), measurements, the loss that was promised and the one there was. The decorator
with "auto" comes first, then with fixed budgets. Beside: stock Triton, which measures all; as many
random configurations as "auto" measured; the first of the list; the configuration that wins most
often among the kernel's other problems, which were measured whole; and the first choice and the
best of eight of a ranking on sizes and of a formula (`recorded_baselines`).
"""

import argparse
import json
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import recorded_tables
from launch_training import fit_order
from machine import markdown
from recorded_baselines import Order, plain_ranking, roofline_log_time
from recorded_calls import Recorded
from recorded_replay import Kept, Replayed

from foretune.tune.triton.launch_order import LaunchOrder

LEARN = 60
"""Maximum number of problems of a list from which orders learn."""
BEST_OF = 8
"""Measurements of a baseline's order, besides its first choice."""
DRAWS = 50
"""Random lists whose mean is the baseline."""
PROMISE_FACTOR = 1.5
"""A promise holds if at most this many times the promised loss is lost."""


@dataclass(frozen=True)
class List:
    """Problems of one kernel and one kind of list; the first are judged, the others learned from.

    Attributes:
        name: the list's name, followed by the kernel's if they differ.
        judged: problems to judge.
        problems: all problems.
    """

    name: str
    kernel: str
    judged: Sequence[Recorded]
    problems: Sequence[Recorded]

    @property
    def family(self) -> str:
        """Kernels of a family compute the same kind of thing."""
        problem = self.problems[0]
        if not problem.is_product:
            return "rows"
        is_attention = any(launch.kept_bytes for launch in problem.launches)
        return "attention" if is_attention else "products"


@dataclass(frozen=True)
class Learned:
    """Everything learned without a kernel, or a family."""

    order: LaunchOrder
    plain: Order


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--leave", choices=("kernel", "family"), default="kernel")
    parser.add_argument("--problems", type=int, default=24, help="problems of a list to judge")
    parser.add_argument("--only", nargs="*", metavar="KERNEL", help="judge only these kernels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)

    lists = list(read_lists(options.tables, options.problems, options.seed))
    learned: dict[str, Learned] = {}
    found: dict[str, Any] = {}
    for of_kernel in lists:
        if options.only and of_kernel.kernel not in options.only:
            continue
        unit = getattr(of_kernel, options.leave)
        if unit not in learned:
            others = [other for other in lists if getattr(other, options.leave) != unit]
            learned[unit] = learn(others)
            print(f"learned without {unit}", file=sys.stderr)
        kept = judge(of_kernel, learned[unit])
        found[of_kernel.name] = {choice: k.summary() for choice, k in kept.items()}
        print(f"{of_kernel.name} is judged", file=sys.stderr)
    print(json.dumps(found) if options.json else text_of(found, options.leave))


def read_lists(paths: Sequence[Path], judged: int, seed: int) -> Iterator[List]:
    """Yield the lists of all tables."""
    for path in paths:
        for name, problems in recorded_tables.read(path, max(judged, LEARN), seed).items():
            kernel = problems[0].kernel
            title = f"{path.stem}: {name}" if name == kernel else f"{name}: {kernel}"
            yield List(title, kernel, problems[:judged], problems[:LEARN])


def learn(lists: Sequence[List]) -> Learned:
    """Learn all orders from other kernels."""
    products = [p for of_kernel in lists for p in of_kernel.problems if p.is_product]
    return Learned(fit_order([p.learned for p in products]), plain_ranking(products))


def judge(of_kernel: List, learned: Learned) -> dict[str, Kept]:
    """Return what each way of choosing keeps of a list's problems."""
    kept = defaultdict[str, Kept](Kept)
    for problem in of_kernel.judged:
        shares = np.array([problem.kept(config) for config in problem.configs])
        choices = Replayed(learned.order).choose(problem)
        for budget in ("auto", "1", "4", "8"):
            config, measured, promised = choices[budget]
            kept[f"Foretune, {budget}"].note(problem.kept(config), measured, promised)

        # Choices that need no model.
        kept["stock Triton"].note(1.0, len(shares))
        _, measured_by_auto, _ = choices["auto"]
        rng = np.random.default_rng(zlib.crc32(str(problem.call.problem).encode()))
        lists = [rng.permutation(len(shares))[:measured_by_auto] for _ in range(DRAWS)]
        drawn = [shares[tried].max() for tried in lists]
        kept["random, as many"].note(float(np.mean(drawn)), measured_by_auto)
        kept["first of the list"].note(shares[0], 0)
        frequent = most_frequent_winner(problem, of_kernel.problems)
        if frequent is not None:
            kept["most frequent winner"].note(problem.kept(frequent), 0)

        # Orders of other tools.
        if problem.is_product:
            orders: dict[str, Order] = {
                "plain ranking": learned.plain,
                "formula": roofline_log_time,
            }
            for name, order in orders.items():
                in_order = np.argsort(order(problem), kind="stable")
                kept[f"{name}, first"].note(shares[in_order[0]], 0)
                tried = in_order[:BEST_OF]
                kept[f"{name}, {BEST_OF}"].note(shares[tried].max(), len(tried))
    return kept


def most_frequent_winner(problem: Recorded, others: Sequence[Recorded]) -> Any:
    """Return the configuration that wins most of the other problems; None if it isn't listed."""
    winners = [p.configs[int(np.argmin(p.time_ms))] for p in others if p is not problem]
    wins = Counter(config for config in winners if config in problem.configs)
    return wins.most_common(1)[0][0] if wins else None


def text_of(found: dict[str, Any], left_out: str) -> str:
    """Return all summaries as one Markdown table, and what holds over all lists."""
    head = ["list", "choice", "mean", "10 %", "5 %", "worst", "measured", "promised", "lost"]
    head.append("holds")
    rows = []
    for name, by_choice in found.items():
        for choice, summary in by_choice.items():
            shares = ("kept_mean", "kept_p10", "kept_p5", "kept_worst")
            cells = [f"{summary[share]:.3f}" for share in shares]
            promised = f"{summary['promised']:.3f}" if "promised" in summary else ""
            holds = verdict(summary) if "promised" in summary else ""
            measured = f"{summary['measured']:.1f}"
            rows.append([name, choice, *cells, measured, promised, f"{summary['lost']:.3f}", holds])
    text = markdown(head, rows)

    auto = [by_choice["Foretune, auto"] for by_choice in found.values()]
    broken = sum(verdict(summary) == "no" for summary in auto)
    mean = {name: np.mean([summary[name] for summary in auto]) for name in auto[0]}
    text += (
        f"\nEach {left_out} left out, mean over {len(auto)} lists: auto keeps "
        f"{mean['kept_mean']:.3f} (worst list {min(s['kept_mean'] for s in auto):.3f}, worst "
        f"problem {min(s['kept_worst'] for s in auto):.3f}), measures {mean['measured']:.1f}, "
        f"promises {mean['promised']:.3f}, loses {mean['lost']:.3f}; {broken} promises broken.\n"
    )
    return text


def verdict(summary: dict[str, float]) -> str:
    """Whether a promise holds: "yes" or "no"."""
    return "yes" if summary["lost"] <= PROMISE_FACTOR * summary["promised"] else "no"


if __name__ == "__main__":
    main(sys.argv[1:])
