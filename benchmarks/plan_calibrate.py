"""How much a few lines of one stack improve plans of its other deployments.

Run: ``python benchmarks/plan_calibrate.py TABLE.parquet`` with AIConfigurator's measured
deployments (Apache-2.0). A stack is a system, an engine and its version. Some rows of one model on
it calibrate; other configurations of the same model there are judged, and other models there. One
factor for each latency, the median of the rows' errors, is beside it.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.calibration import Calibration
from foretune.plan.serve.deployments.latency_formulas import formula_latencies
from foretune.plan.serve.deployments.measured_deployments import (
    MeasuredDeployments,
    read_measured_deployments,
)

LINES = (3, 5, 10)
DRAWS = 3
TARGETS = {"tpot_ms": "time per token", "ttft_ms": "to the first token"}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    arguments = parser.parse_args()
    data = read_measured_deployments(arguments.table)
    rows = analytic_times(data.deployments, StepTimerFactory(find_tables()))
    print("| lines | latency | judged on | as planned | one factor | calibrated |")
    print("|---|---|---|---|---|---|")
    for count in LINES:
        errors = _errors(data, rows, count)
        for (target, judged), part in errors.groupby(["target", "judged"], sort=False):
            shares = part[["plain", "factor", "calibrated"]].median() * 100
            print(
                f"| {count} | {TARGETS[target]} | {judged} | "
                f"{' | '.join(f'{share:.1f}' for share in shares)} |"
            )


def _errors(data: MeasuredDeployments, rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the errors of judged rows, with ``count`` lines that calibrate."""
    plain = formula_latencies(rows)
    measured = data.measured
    stack = np.array([f"{d.system.name} {d.backend} {d.version}" for d in data.deployments])
    rng = np.random.default_rng(0)
    found = []
    for name in np.unique(stack):
        here = np.flatnonzero(stack == name)
        for model in np.unique(data.models[here]):
            own = here[data.models[here] == model]
            for lines in [_draw(own, data.groups, count, rng) for _ in range(DRAWS)]:
                rest = own[~np.isin(data.groups[own], data.groups[lines])]
                if len(lines) < count or not len(rest):
                    continue
                others = here[data.models[here] != model]
                calibration = Calibration.fit(rows.iloc[lines], measured.iloc[lines], None)
                for judged, index in (("the same model", rest), ("other models", others)):
                    said = calibration.apply(rows.iloc[index], plain.iloc[index])
                    for target in TARGETS:
                        true = measured[target].to_numpy()
                        factor = np.median(true[lines] / plain[target].to_numpy()[lines])
                        guess = plain[target].to_numpy()[index]
                        found.append(
                            pd.DataFrame(
                                {
                                    "target": target,
                                    "judged": judged,
                                    "plain": np.abs(guess / true[index] - 1),
                                    "factor": np.abs(factor * guess / true[index] - 1),
                                    "calibrated": np.abs(said[target] / true[index] - 1),
                                }
                            )
                        )
    return pd.concat(found)


def _draw(own: np.ndarray, groups: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``count`` rows of as few random configurations as give them."""
    order = {group: i for i, group in enumerate(rng.permutation(np.unique(groups[own])))}
    shuffled = rng.permutation(own)
    return shuffled[np.argsort([order[group] for group in groups[shuffled]], kind="stable")][:count]


if __name__ == "__main__":
    main()
