"""Intervals from few problems: a t law beside the largest miss, on the same fits.

Run: ``python benchmarks/few_intervals.py DATA [--half "chosen on"] [--draws 2]`` where DATA is that
of `predictors`. Tables are those of strangers (`foreign_tables`). Every line has 8, 16 or 32
problems to learn from. The rule before was conformal over problems: the largest miss of few
problems, extrapolated by a power law.
"""

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from foreign_tables import REPORTED_ON, SPLITS, ForeignTable, foreign_tables
from machine import heading

from foretune.collect import local_device
from foretune.models import Predictor
from foretune.models.conformal import conformal_quantile_by_problem
from foretune.models.interval import RuleInterval

FEW = ("8 problems", "16 problems", "32 problems")
ROWS = 300
"""Most rows to learn from."""
MIN_ROWS = 8


@dataclass
class Recorder:
    """Keeps what the last interval was fitted to, and the factor that the earlier rule gives."""

    earlier_factor: float = np.nan

    def fit(
        self, disagreement: np.ndarray, errors: np.ndarray, *, problems: np.ndarray, widest: float
    ) -> RuleInterval:
        """Fit as the predictor does."""
        interval = FIT(disagreement, errors, problems=problems, widest=widest)
        sizes = interval.median_error + disagreement
        self.earlier_factor = conformal_quantile_by_problem(np.abs(errors), problems, sizes)
        return interval


FIT = RuleInterval.fit


def main() -> None:
    """Print coverage and width of both rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--half", default=REPORTED_ON)
    parser.add_argument("--draws", type=int, default=2)
    arguments = parser.parse_args()
    print(heading("Intervals from few problems", local_device("cpu")))
    print("| problems | lines | rule | inside; worst | half-width, factor: mean, largest |")
    print("|---|---|---|---|---|")
    tables = [table for table in foreign_tables(arguments.data) if table.half == arguments.half]
    for split in FEW:
        lines = list(_lines(tables, split, arguments.draws))
        for rule in ("largest miss", "t law"):
            covered = np.array([line[rule][0] for line in lines])
            log_width = np.array([line[rule][1] for line in lines])
            cells = [
                split,
                f"{len(lines)}",
                rule,
                f"{100 * covered.mean():.0f} %; {100 * covered.min():.0f} %",
                f"{np.exp(log_width.mean()):.2f}, {np.exp(log_width.max()):.1f}",
            ]
            print("| " + " | ".join(cells) + " |", flush=True)


def _lines(tables: list[ForeignTable], split: str, draws: int) -> Iterator[dict[str, Any]]:
    """Yield coverage and median log half-width of each rule, by table and draw."""
    recorder = Recorder()
    RuleInterval.fit = recorder.fit  # type: ignore[assignment, method-assign]
    for table in tables:
        runs = table.runs()
        for draw in range(draws):
            rows = SPLITS[split](table, np.random.default_rng(draw), ROWS)
            if len(rows.training) < MIN_ROWS:
                continue
            with warnings.catch_warnings(action="ignore"):
                known = runs.iloc[rows.training].reset_index(drop=True)
                predictor = Predictor(targets=("time_ms",)).fit(known)
            interval = predictor.targets_["time_ms"].interval
            if not isinstance(interval, RuleInterval):
                continue

            test = runs.iloc[rows.test]
            predicted = predictor.predict(test)
            errors = np.abs(np.log(test["time_ms"] / predicted["time_ms"])).to_numpy()
            t_width = np.log(predicted["time_ms_high"] / predicted["time_ms"]).to_numpy()
            # Where no interval was capped, the rules differ by their factor alone.
            earlier_width = t_width * recorder.earlier_factor / interval.factor
            yield {
                "t law": (np.mean(errors <= t_width), np.median(t_width)),
                "largest miss": (np.mean(errors <= earlier_width), np.median(earlier_width)),
            }


if __name__ == "__main__":
    main()
