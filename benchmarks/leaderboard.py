"""Which searcher finds fast configurations soonest? One page, written anew by a schedule.

    python benchmarks/leaderboard.py SPACES [--out docs/benchmarks/leaderboard.md]

SPACES holds run tables of whole spaces, of which ``--only`` selects some; "" selects all, which
takes an hour. Searchers of other projects run by their own code (`peers`): Kernel Tuner's
strategies, Optuna's samplers and SMAC, with their own defaults. All see a
time only by spending an evaluation, and failures count. Each searches every space with the same
seeds. Packages that are not installed are left out, and the page says so.

The rank is by the mean of (optimum / best found) over the first 10, 20, 50 and 100 evaluations. Its
standard error is over spaces, because a space is what another user brings. Two searchers whose
means differ by less than two standard errors of their paired difference share a rank.
"""

import argparse
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from machine import heading, markdown, search_packages
from peers import find_searcher
from spaces import complete_spaces

from foretune.collect import local_device
from foretune.errors import MissingExtra
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.replay.replay import replay
from foretune.support.console import progress_bar
from foretune.support.files import atomic_write

SEARCHERS = (
    "surrogate,tpe,cmaes,smac,kt_adaptive_tabu_greywolf,kt_hybrid_vndx,kt_dual_annealing,kt_pso,"
    "kt_genetic_algorithm,kt_simulated_annealing,kt_diff_evo,kt_bayes_opt,random"
)
"""Not ``gp``: a run of ten minutes would be half of it."""
DEFAULT_SPACES = (
    "convolution__RTX_3090,dedispersion_milo__A100,gemm__RTX_2080_Ti,hls_gemm,llvm_flags,"
    "pnpoly__RTX_3060"
)
"""A space of each kind: four GPU kernels, hardware synthesis, a compiler's flags."""
POINTS = (10, 20, 50, 100)
"""Evaluations after which the best is compared with the optimum."""
BUDGET = max(POINTS)
OURS = "surrogate"
TIED = 2.0
"""Standard errors by which two means must differ."""
WIDTH = 100
INTRODUCTION = """# Leaderboard of searchers

Which searcher finds fast configurations soonest? Each runs by its own project's code on recorded
spaces of real devices, and sees a time only by spending an evaluation. `kt_…` are strategies of
Kernel Tuner, `tpe` and `cmaes` samplers of Optuna. The figures are the optimum divided by the best
found: 1 is the optimum, 0 that nothing ran.
"""
EXPLANATION = """The mean is over the four columns after it, ± its standard error over spaces.
Searchers share a rank if their difference to its first one is below two standard errors. Foretune's
searcher runs without a predictor here, and was developed on some of these spaces. To add a
searcher, write a `Searcher` in `benchmarks/peers`.
"""


@dataclass(frozen=True)
class Entry:
    """One searcher.

    Attributes:
        searcher: its name.
        shares: mean of (optimum / best found), one row per space and one column per point.
        proposal_ms: median milliseconds per proposal, over spaces.
    """

    searcher: str
    shares: npt.NDArray[np.float64]
    proposal_ms: float

    @property
    def of_space(self) -> npt.NDArray[np.float64]:
        """The mean over all points, per space."""
        return self.shares.mean(axis=1)

    @property
    def mean(self) -> float:
        """The figure that ranks."""
        return float(self.of_space.mean())

    def is_tied_with(self, better: "Entry") -> bool:
        """Whether the difference to a better one may be chance."""
        differences = better.of_space - self.of_space
        return float(differences.mean()) <= TIED * standard_error(differences)


def main() -> None:
    """Search all spaces, and write the page."""
    options = arguments()
    start = time.monotonic()
    spaces = complete_spaces(options.spaces, options.only)
    entries, missing = search_all(spaces, options.searchers.split(","), options.repeats)
    entries.sort(key=lambda entry: -entry.mean)
    text = page(entries, spaces, missing, options, time.monotonic() - start)
    print(text)
    if options.out is not None:
        with atomic_write(options.out) as new:
            new.write_text(text, encoding="utf-8")


def search_all(
    spaces: list[RecordedSpace], names: list[str], repeats: int
) -> tuple[list[Entry], list[str]]:
    """Return an entry per searcher, and the names of those whose package is not installed."""
    entries = []
    missing = []
    with progress_bar() as progress:
        progress.start("searching", len(spaces) * len(names))
        for name in names:
            try:
                searcher = find_searcher(name)
                shares = []
                overheads = []
                for space in spaces:
                    result = replay(space, searcher, BUDGET, repeats, seed=0)
                    # A space may be smaller than the budget.
                    last = result.curves.shape[1]
                    points = [min(point, last) - 1 for point in POINTS]
                    shares.append(result.curves[:, points].mean(axis=0))
                    overheads.append(float(np.median(result.overhead_ms)))
                    progress.advance(f"{name}: {space.name}")
            except (ImportError, MissingExtra):
                missing.append(name)
                continue
            entries.append(Entry(name, np.array(shares), float(np.median(overheads))))
    return entries, missing


def page(
    entries: list[Entry],
    spaces: list[RecordedSpace],
    missing: list[str],
    options: argparse.Namespace,
    seconds: float,
) -> str:
    """Return the page in Markdown."""
    rows = []
    rank = 0
    best_of_rank = entries[0]
    for number, entry in enumerate(entries, 1):
        if number == 1 or not entry.is_tied_with(best_of_rank):
            rank = number
            best_of_rank = entry
        at_points = [f"{share:.3f}" for share in entry.shares.mean(axis=0)]
        name = f"**{entry.searcher}** (Foretune)" if entry.searcher == OURS else entry.searcher
        error = f"{entry.mean:.3f} ± {standard_error(entry.of_space):.3f}"
        rows.append([str(rank), name, error, *at_points, f"{entry.proposal_ms:.2g}"])

    columns = ["rank", "searcher", "mean", *(f"after {n}" for n in POINTS), "ms per proposal"]
    per_space = [[s.name, s.device.name, f"{len(s):,}", f"{s.count_within():,}"] for s in spaces]
    command = f"python benchmarks/leaderboard.py SPACES --repeats {options.repeats}"
    made = (
        f"`{command}` took {seconds / 60:.1f} minutes: {options.repeats} repeats of {BUDGET} "
        f"evaluations. {search_packages()}."
    )
    if missing:
        made += f" Not installed: {', '.join(missing)}."
    sections = [
        INTRODUCTION,
        markdown(columns, rows),
        EXPLANATION,
        f"## The {len(spaces)} spaces\n",
        markdown(["space", "device", "configurations", "within 5 % of the best"], per_space),
        "## How it was made\n",
        textwrap.fill(made, WIDTH, break_long_words=False) + "\n",
        heading("Machine", local_device()),
    ]
    return "\n".join(sections)


def standard_error(values: npt.NDArray[np.float64]) -> float:
    """Return the standard error of a mean; infinite for one value."""
    if len(values) < 2:
        return float("inf")
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("spaces", type=Path, help="folder of run tables")
    parser.add_argument("--searchers", default=SEARCHERS, help="separated by commas")
    parser.add_argument("--only", default=DEFAULT_SPACES, help="parts of tables' names")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="the page to write")
    return parser.parse_args()


if __name__ == "__main__":
    main()
