"""How good is a predictor of a stranger's table? Beside six simple models.

``predictors.py DATA --as-strangers`` prints one line per table and split, and summaries. With
``--out FILE`` every line is also written as JSON; ``--beside FILE`` compares with such a file, e.g.
of an earlier version.
"""

import json
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from foreign_tables import (
    CHOSEN_ON,
    QUICK_SPLITS,
    REPORTED_ON,
    SPLITS,
    ForeignTable,
    foreign_tables,
)

from foretune.models import Predictor
from foretune.models.splits import task_numbers
from foretune.models.validation.baselines import predict_baselines
from foretune.models.validation.metrics import score
from foretune.models.validation.simple_models import SIMPLE_MODELS, predict_simple

ROWS = 1000
"""Most rows to learn from."""
QUICK_ROWS = 400
MIN_TRAINING_ROWS = 20
MIN_FEW_ROWS = 8
MIN_TEST_ROWS = 10
INTERPOLATION = "grid interpolation"
SIMPLE_NAMES = (*SIMPLE_MODELS, INTERPOLATION)
TOLERANCE = 1.03
"""A simple model is ahead if our error is above this multiple of its own."""


def print_strangers(
    data: Path,
    *,
    quick: bool,
    names: Sequence[str],
    splits: Sequence[str],
    draws: int,
    out: Path | None,
    beside: Path | None,
) -> None:
    """Print the table of strangers, and its summaries."""
    earlier = _read_lines(beside)
    columns = ["table", "held out", "rows", "mean / median %", "rank", "inside; half-width"]
    columns += ["best simple", "over it", "over earlier", "fit s"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    lines = []
    for table in foreign_tables(data, names):
        for split in splits or (QUICK_SPLITS if quick else SPLITS):
            for draw in range(draws):
                line = score_line(table, split, draw, QUICK_ROWS if quick else ROWS)
                if line is None:
                    continue
                line["earlier"] = earlier.get((line["table"], split, draw))
                lines.append(line)
                print(_markdown(line), flush=True)
                if out is not None:
                    with out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
    for half in (CHOSEN_ON, REPORTED_ON):
        _print_summary(half, [line for line in lines if line["half"] == half])


def score_line(table: ForeignTable, split: str, draw: int, max_rows: int) -> dict[str, Any] | None:
    """Return the scores of one split of a table; None if it is too small."""
    rng = np.random.default_rng(draw)
    rows = SPLITS[split](table, rng, max_rows)
    if len(rows.training) < _min_rows(split) or len(rows.test) < MIN_TEST_ROWS:
        return None
    runs = table.runs()
    known = runs.iloc[rows.training].reset_index(drop=True)
    test = runs.iloc[rows.test].reset_index(drop=True)
    truth = test["time_ms"].to_numpy(dtype=float)
    groups = task_numbers(test)

    begun = time.process_time()
    with warnings.catch_warnings(action="ignore"):
        predictor = Predictor(targets=("time_ms",)).fit(known)
    seconds = time.process_time() - begun
    predicted = predictor.predict(test)
    interval = predicted["time_ms_low"].to_numpy(), predicted["time_ms_high"].to_numpy()
    ours = score(truth, predicted["time_ms"].to_numpy(), groups, interval)
    simple = {
        name: _short_score(score(truth, value, groups))
        for name, value in _simple_predictions(known, test).items()
    }
    return {
        "table": table.name,
        "half": table.half,
        "split": split,
        "draw": draw,
        "training": len(known),
        "test": len(test),
        "fit_s": seconds,
        **_short_score(ours),
        "coverage": ours["coverage90"],
        "width": ours["width90"],
        "simple": simple,
    }


def _min_rows(split: str) -> int:
    """Return the fewest rows to learn from; eight problems may be eight rows."""
    return MIN_FEW_ROWS if split.endswith("problems") and split[0].isdigit() else MIN_TRAINING_ROWS


def _simple_predictions(known: pd.DataFrame, test: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the times in ms that each simple model predicts for ``test``."""
    grid = predict_baselines("time_ms", None, known, test, (INTERPOLATION,))
    return {**predict_simple("time_ms", known, test), **grid}


def _short_score(scores: dict[str, float]) -> dict[str, float]:
    return {
        "mean": scores["mape"],
        "median": scores["median_ape"],
        "rank": scores["spearman"],
    }


def _over_simple(line: dict[str, Any]) -> float:
    return float(line["mean"] / min(line["simple"][name]["mean"] for name in SIMPLE_NAMES))


def _markdown(line: dict[str, Any]) -> str:
    best = min(SIMPLE_NAMES, key=lambda name: line["simple"][name]["mean"])
    earlier = line["earlier"]
    cells = [
        line["table"],
        line["split"],
        f"{line['training']:,} / {line['test']:,}",
        f"{100 * line['mean']:.1f} / {100 * line['median']:.1f}",
        f"{line['rank']:.2f}",
        f"{100 * line['coverage']:.0f} %; ±{100 * line['width']:.0f} %",
        f"{best} {100 * line['simple'][best]['mean']:.1f}",
        f"{_over_simple(line):.2f}",
        "" if earlier is None else f"{line['mean'] / earlier['mean']:.2f}",
        f"{line['fit_s']:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _print_summary(half: str, lines: list[dict[str, Any]]) -> None:
    """Print geometric means of ratios over the tables of one half, by split."""
    if not lines:
        return
    print(f"\n{half}: geometric means over tables")
    columns = ["held out", "lines", "over the best simple", "simple ahead", "over earlier"]
    columns += ["fit over earlier", "inside", "half-width", "rank", "best simple's rank"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for split in SPLITS:
        some = [line for line in lines if line["split"] == split]
        if not some:
            continue
        over = np.array([_over_simple(line) for line in some])
        pairs = [(line, line["earlier"]) for line in some if line["earlier"] is not None]
        over_earlier = _geometric_mean(line["mean"] / before["mean"] for line, before in pairs)
        slower = _geometric_mean(line["fit_s"] / before["fit_s"] for line, before in pairs)
        ranks = [max(line["simple"][name]["rank"] for name in SIMPLE_NAMES) for line in some]
        cells = [
            split,
            f"{len(some)}",
            f"{_geometric_mean(over):.2f}",
            f"{int((over > TOLERANCE).sum())}",
            f"{over_earlier:.2f}",
            f"{slower:.2f}",
            f"{100 * np.mean([line['coverage'] for line in some]):.0f} %",
            f"±{100 * np.median([line['width'] for line in some]):.0f} %",
            f"{np.nanmean([line['rank'] for line in some]):.2f}",
            f"{np.nanmean(ranks):.2f}",
        ]
        print("| " + " | ".join(cells) + " |")


def _geometric_mean(values: Iterable[float]) -> float:
    logs = np.log(list(values))
    return float(np.exp(logs.mean())) if len(logs) else float("nan")


def _read_lines(file: Path | None) -> dict[tuple[str, str, int], dict[str, Any]]:
    if file is None:
        return {}
    lines = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line.pop("earlier", None)
    return {(line["table"], line["split"], line["draw"]): line for line in lines}
