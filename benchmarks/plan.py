"""How far off planned deployments are from measured ones: prints tables, or JSON.

Run: ``python benchmarks/plan.py --train F.parquet [--test F.parquet] [--json]`` where F holds
measured deployments (AIConfigurator's sample table, Apache-2.0). Operators' times come from the
package aiconfigurator-core where it is installed, or from ``--operators DIR``; the correction is
trained on ``--train`` alone. With ``--test`` that file is scored; without, configurations, systems
and whole models of ``--train`` are held out.

With ``--aiconfigurator PYTHON``, an interpreter that has the package aiconfigurator, that is asked
about the same rows (about a second each); a Parquet file that ``plan_aiconfigurator.py`` wrote
earlier is read instead.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from plan_beside import NAMES, beside, beside_lines
from plan_choices import REFERENCES as CHOICES
from plan_choices import choices
from plan_reliability import reliability, reliability_lines, sure_limits, sure_pairs
from plan_table import SOME, Table, folds

from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.serve.deployments.correction import LatencyPredictor
from foretune.plan.serve.deployments.latency_formulas import formula_latencies

REFERENCES = {
    "configurations": ("15 / 42", "9.5 / 17"),
    "systems": ("21-27 / 40-42", "14-17 / 25-31"),
    "models": ("20-24 / 32-35", "46-48 / 42-59"),
    "models on systems": ("", ""),
}
"""Median errors (TPOT / TTFT, %) of AIConfigurator 0.12.0 and of a first boosted model, measured on
the whole of the table that the files here are halves of: other rows, given for orientation."""


@dataclass
class Scored:
    """Predictions of rows that were held out.

    Attributes:
        predicted: Columns of `LatencyPredictor.predict`, and its ``sure``.
        formulas: Latencies by the formulas, without correction.
        measured: Measured latencies.
        pairs: Result of `sure_pairs` for the rows that were held out together.
    """

    predicted: pd.DataFrame
    formulas: pd.DataFrame
    measured: pd.DataFrame
    pairs: pd.DataFrame

    def metrics(self, rows: np.ndarray | None = None) -> dict[str, dict[str, float]]:
        """Return errors and coverage per latency."""
        some = np.ones(len(self.measured), dtype=bool) if rows is None else rows
        return {
            name: {
                **_errors(self.predicted[target][some], self.measured[target][some]),
                "coverage90": float(self._inside(target)[some].mean()),
                "formulas_median_ape": _errors(
                    self.formulas[target][some], self.measured[target][some]
                )["median_ape"],
            }
            for target, name in NAMES.items()
        }

    def _inside(self, target: str) -> np.ndarray:
        low = self.predicted[f"{target}_low"]
        high = self.predicted[f"{target}_high"]
        return np.asarray((self.measured[target] >= low) & (self.measured[target] <= high))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--operators", type=Path, help="folder of measured operators")
    parser.add_argument("--aiconfigurator", type=Path, metavar="PYTHON|ANSWERS.parquet")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tables = find_tables(arguments.operators)
    clocks = StepTimerFactory(tables)
    rival = arguments.aiconfigurator
    train = Table.read(arguments.train, clocks, None if arguments.test else rival)
    _say(f"{len(train.rows)} deployments, their operators in {train.seconds:.1f} s")
    if arguments.test:
        result: dict[str, Any] = {"test": _test(train, Table.read(arguments.test, clocks, rival))}
    else:
        result = _cross_validate(train)
    if arguments.json:
        json.dump(result, sys.stdout)
        print()
    else:
        _print(result)


def _test(train: Table, test: Table) -> dict[str, Any]:
    """Return how the rows of another file come out."""
    data = train.data
    model = LatencyPredictor().fit(train.rows, data.measured, data.groups)
    scored = Scored(
        model.predict(test.rows),
        formula_latencies(test.rows),
        test.data.measured,
        sure_pairs(model, test.rows, test.data.measured),
    )
    return {
        **scored.metrics(),
        "possible": {"rows": int(test.possible.sum()), **scored.metrics(test.possible)},
        **_beside(scored, test),
        "choices": choices(test.data.deployments, test.data.measured, scored.predicted),
        "sureness": _sureness(scored),
        "answered": len(test.rows),
        "excluded": test.data.excluded,
        "unknown": test.data.unknown,
        "train_rows": len(train.rows),
    }


def _sureness(scored: Scored) -> dict[str, list[dict[str, float]]]:
    limits = sure_limits(scored.predicted, scored.measured)
    return reliability(pd.concat([scored.pairs, limits]))


def _beside(scored: Scored, table: Table) -> dict[str, object]:
    if table.rival is None:
        return {}
    return {"beside_aiconfigurator": beside(table.data, scored.predicted, table.rival)}


def _cross_validate(train: Table) -> dict[str, Any]:
    """Return how the rows come out that each split holds out."""
    data = train.data
    systems = np.array([d.system.name for d in data.deployments], dtype=str)
    splits: dict[str, Callable[[], np.ndarray]] = {
        "configurations": lambda: folds(data.groups, SOME),
        "systems": lambda: folds(systems, len(set(systems))),
        "models": lambda: folds(data.models, len(set(data.models))),
        "models on systems": lambda: folds(pairs, SOME),
    }
    pairs = np.array([f"{m} {s}" for m, s in zip(data.models, systems, strict=True)])
    together = (train.rows["apart"] == 0).to_numpy()
    result: dict[str, Any] = {"excluded": data.excluded, "unknown": data.unknown}
    for name, split in splits.items():
        scored = _held_out(train, split(), name)
        result[name] = {
            "rows": len(train.rows),
            **scored.metrics(),
            "together": {"rows": int(together.sum()), **scored.metrics(together)},
            "possible": {"rows": int(train.possible.sum()), **scored.metrics(train.possible)},
            "sureness": _sureness(scored),
            **_beside(scored, train),
        }
        if name == "configurations":
            result["choices"] = choices(data.deployments, data.measured, scored.predicted)
            result["by_engine"] = _lines([d.backend for d in data.deployments], scored)
            result["by_system"] = _lines([d.system.name for d in data.deployments], scored)
        if name == "models":
            result["by_model"] = _lines([d.model.name for d in data.deployments], scored)
    return result


def _lines(names: Sequence[str], scored: Scored) -> dict[str, object]:
    """Return the metrics of the rows of each name."""
    of = np.array(names)
    return {
        str(name): {"rows": int((of == name).sum()), **scored.metrics(of == name)}
        for name in np.unique(of)
    }


def _held_out(train: Table, fold: np.ndarray, name: str) -> Scored:
    rows = train.rows
    measured = train.data.measured
    groups = train.data.groups
    predicted = []
    formulas = []
    pairs = []
    for number in range(fold.max() + 1):
        _say(f"holding out {name}: {number + 1} of {fold.max() + 1}")
        out = fold == number
        model = LatencyPredictor().fit(rows[~out], measured[~out], groups[~out])
        predicted.append(model.predict(rows[out]))
        formulas.append(formula_latencies(rows[out]))
        pairs.append(sure_pairs(model, rows[out], measured[out]))
    return Scored(
        pd.concat(predicted).sort_index(),
        pd.concat(formulas).sort_index(),
        measured,
        pd.concat(pairs),
    )


def _errors(predicted: "pd.Series[float]", measured: "pd.Series[float]") -> dict[str, float]:
    error = np.abs(predicted / measured - 1.0)
    return {
        "median_ape": float(error.median()),
        "mape": float(error.mean()),
        "p95_ape": float(error.quantile(0.95)),
    }


def _print(result: dict[str, Any]) -> None:
    if "test" in result:
        print(json.dumps(result["test"], indent=1))
        return
    print(f"{result['excluded']} rows have no concurrency or batch and are excluded\n")
    print(
        "| held out | rows | TPOT | TTFT | formulas alone | 90 % intervals hold | "
        "AIConfigurator 0.12.0 * | first boosted model * |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, references in REFERENCES.items():
        lines = {
            name: result[name],
            f"{name}, one pool": result[name]["together"],
            f"{name}, at a possible speed": result[name]["possible"],
        }
        for label, line in lines.items():
            print(_line(label, line, references))
    print(
        "\n| choice | groups | mean regret, % | right within 3 %, % | limit missed, % | "
        "AIConfigurator / first boosted model * |"
    )
    print("|---|---|---|---|---|---|")
    for name, line in result["choices"].items():
        cells = [
            f"{100 * line[k]:.1f}" if k in line else "" for k in ("mean_regret", "right", "missed")
        ]
        print(f"| {name} | {line['groups']} | {' | '.join(cells)} | {CHOICES.get(name, '')} |")
    print("\nmedian / mean / 95th percentile of |error|, %; * see `REFERENCES`\n")
    for key, heading in (
        ("by_engine", "engine, configurations held out"),
        ("by_system", "system, configurations held out"),
        ("by_model", "model held out"),
    ):
        print(f"| {heading} | rows | TPOT | TTFT | formulas alone | 90 % intervals hold |")
        print("|---|---|---|---|---|---|")
        for name, line in result[key].items():
            print(_line(name, line, ()))
        print()
    for split in ("configurations", "models"):
        print(f"\n{split} held out, probabilities:\n")
        print("\n".join(reliability_lines(result[split]["sureness"])))
        if "beside_aiconfigurator" in result[split]:
            print(f"\n{split} held out, median |error| (%), ours / AIConfigurator's:\n")
            print("\n".join(beside_lines(result[split]["beside_aiconfigurator"])))


def _line(label: str, line: dict, references: tuple[str, ...]) -> str:
    cells = [label, str(line["rows"])]
    for name in NAMES.values():
        cells += [_percent(line[name][e] for e in ("median_ape", "mape", "p95_ape"))]
    for key in ("formulas_median_ape", "coverage90"):
        cells += [_percent(line[name][key] for name in NAMES.values())]
    return "| " + " | ".join([*cells, *references]) + " |"


def _percent(shares: Iterable[float]) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
