"""Trains the predictors that come with Foretune on the tables that do, and says how good they are.

    PYTHONPATH=src python benchmarks/shipped.py

For every shipped table and every kernel of it: the errors on problems held out (five folds, whole
problems), how much of the best configuration's speed is kept by choosing with them, what the
library's call takes; then a predictor of all rows goes to ``models/shipped``, with its errors on
its card. Prints the tables, and puts them into ``datasets/README.md`` between its two marks.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from machine import markdown

sys.path.append(str(Path(__file__).resolve().parent / "gpu"))  # stage.py

from stage import labels

from foretune.datasets import DatasetCard, card, load, shipped
from foretune.datasets.runs import problems_of
from foretune.errors import ForetuneError
from foretune.models import Predictor
from foretune.models.saved.pretrained import PRETRAINED_CARD, SHIPPED, Pretrained
from foretune.models.targets import usable_rows
from foretune.models.validation.baselines import predict_baselines
from foretune.models.validation.metrics import score
from foretune.models.validation.splits import fold_of_rows, task_numbers
from foretune.registry import load as load_registered
from foretune.registry import registered

README = Path(__file__).resolve().parents[1] / "datasets" / "README.md"
BEGIN, END = "<!-- printed by benchmarks/shipped.py -->", "<!-- until here -->"
BESIDE = ("calibrated roofline", "nearest neighbor")
BUDGETS = (0, 4, 8)
DRAWS = 200


@dataclass(frozen=True)
class Judged:
    """What one kernel's rows of a table are good for.

    Attributes:
        kernel: its name.
        runs: its rows.
        held_out: rows that ran, with what a predictor says that never saw their problem
            (``predicted``), its interval (``width``, log), baselines, and the fold.
        seconds: to train a predictor on all rows.
    """

    kernel: str
    runs: pd.DataFrame
    held_out: pd.DataFrame
    seconds: float

    def scores(self, column: str = "predicted") -> dict[str, float]:
        """Return the metrics of a column of ``held_out``."""
        rows = self.held_out
        truth, value = rows["time_ms"].to_numpy(), rows[column].to_numpy()
        ends = (rows["low"].to_numpy(), rows["high"].to_numpy()) if column == "predicted" else None
        return score(truth, value, task_numbers(rows), ends)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="*", help="default: all that are shipped")
    parser.add_argument("--out", type=Path, default=SHIPPED, metavar="FOLDER")
    parser.add_argument("--readme", type=Path, default=README)
    options = parser.parse_args(argv)
    text = "\n".join(ship(name, options.out) for name in options.tables or shipped())
    print(text)
    before, begin, rest = options.readme.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{options.readme} has no marks {BEGIN} and {END}")
    options.readme.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def ship(name: str, out: Path) -> str:
    """Train and save the predictors of a table; return its part of the text."""
    of_table, runs = card(name), load(name)
    judged = []
    for kernel in of_table.kernels:
        check_code(kernel, of_table)
        mine = runs[runs["kernel"] == kernel].dropna(axis=1, how="all").reset_index(drop=True)
        predictor, seconds = train(mine)
        each = Judged(kernel, mine, hold_out(mine), seconds)
        judged.append(each)
        shipping = Pretrained(
            kernel, of_table.kernels[kernel], of_table.device, of_table.architecture,
            of_table.specs, name, of_table.provisional,
            {metric: float(f"{v:.4g}") for metric, v in each.scores().items() if v == v},
        )  # fmt: skip
        shipping.folder(out).parent.mkdir(parents=True, exist_ok=True)
        predictor.save(shipping.folder(out))
        text = json.dumps(asdict(shipping), indent=1) + "\n"
        (shipping.folder(out) / PRETRAINED_CARD).write_text(text, encoding="utf-8")
    return text_of(of_table, judged, out)


def check_code(kernel: str, of_table: DatasetCard) -> None:
    """Do nothing if the kernel is what was measured, or none of ours.

    Raises:
        ForetuneError: its code has changed.
    """
    if kernel not in registered("kernels"):
        return
    if load_registered("kernels", kernel)().source_hash != of_table.kernels[kernel]:
        raise ForetuneError(
            f"the code of {kernel} is not what {of_table.name} measured: measure it again with "
            f"'{of_table.command}'"
        )


def train(runs: pd.DataFrame) -> tuple[Predictor, float]:
    """Return a predictor of ``runs``, and the seconds it took."""
    start = time.perf_counter()
    predictor = Predictor().fit(to_learn_from(runs))
    return predictor, time.perf_counter() - start


def to_learn_from(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that are learned from: finalists ran among others, with other caches."""
    rows = runs[runs["role"] != "finalist"].drop(columns="time_ms_samples", errors="ignore")
    return rows.drop(columns=["library", "counter.library_ms"], errors="ignore").reset_index(
        drop=True
    )


def hold_out(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that ran with what predictors say that did not see their problem."""
    rows = to_learn_from(runs)
    folds = fold_of_rows(rows, "grouped")
    if folds is None:
        raise ForetuneError("one problem only: nothing can be held out")
    parts = []
    for fold in np.unique(folds):
        known, test = rows[folds != fold].reset_index(drop=True), rows[folds == fold]
        test = test[(test["status"] == "ok") & (test["counter.repeat"] == 0)]
        predictor = Predictor(targets=("time_ms",)).fit(known)
        predicted = predictor.predict(test)
        usable = usable_rows("time_ms", known)
        family = predictor.features_.family
        parts.append(
            test.assign(
                predicted=predicted["time_ms"],
                low=predicted["time_ms_low"],
                high=predicted["time_ms_high"],
                **predict_baselines("time_ms", family, usable, test, BESIDE),
            )
        )
    return pd.concat(parts, ignore_index=True)


def text_of(of_table: DatasetCard, judged: list[Judged], out: Path) -> str:
    """Return what is to be said of a table, as Markdown."""
    machine = f"{of_table.device} ({of_table.architecture}), {of_table.specs['cores']:g} cores"
    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file()) / 1e6
    about_it = f"{of_table.system}; {of_table.began[:10]}; {of_table.rows:,} rows"
    warning = f"**Provisional: {of_table.provisional}.**\n" if of_table.provisional else ""
    parts = [
        f"### {of_table.name}\n",
        f"{machine}; {about_it}; shipped predictors: {size:.1f} MB in all.\n",
        warning,
        section(
            "What there is, and how far a measurement is from itself: between a default and its "
            "repeats some minutes later, median / 95th percentile.",
            ("kernel", "rows", "failed", "problems", "configurations", "repeats, %"),
            [about(j) for j in judged],
        ),
        section(
            "Errors on problems that were not trained on, mean / median / 95th percentile in %; "
            "the 90 % interval; seconds to train on all rows.",
            ("kernel", "Foretune", "interval holds; width", *BESIDE, "train, s"),
            [errors(j) for j in judged],
        ),
        section(
            "Share of the speed of the fastest configuration measured that is kept on problems not "
            "trained on, in %, mean over problems: by the default, by the best of those predicted "
            "fastest when so many are measured (0: the first is taken), by the best of as many "
            f"drawn ({DRAWS} draws).",
            ("kernel", "default", *(f"predicted, {b}" for b in BUDGETS),
             *(f"drawn, {b}" for b in BUDGETS if b)),
            [choices(j) for j in judged],
        ),
        section(
            "The fastest measured and the default beside the library's call, in turn: the "
            "library's time over theirs, median over problems; on how many the fastest is slower "
            "than the library, and where it is worst.",
            ("kernel", "library", "problems", "fastest", "default", "slower on", "worst"),
            [row for j in judged if (row := against_library(j))],
        ),
    ]  # fmt: skip
    return "\n".join(filter(None, parts))


def section(text: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a sentence and its table; nothing without rows."""
    return f"{text}\n\n{markdown(columns, rows)}" if rows else ""


def about(judged: Judged) -> list[str]:
    """Return a row: how much there is."""
    runs = judged.runs.assign(key=labels(judged.runs, "problem", "config"))
    runs = runs[runs["role"] != "finalist"]
    ok = runs[runs["status"] == "ok"]
    first = ok[ok["counter.repeat"] == 0].set_index("key")["time_ms"]
    again = ok[ok["role"] == "repeat"].set_index("key")["time_ms"]
    off = (again / first.reindex(again.index) - 1).abs().dropna()
    noise = f"{100 * off.median():.1f} / {100 * off.quantile(0.95):.0f}" if len(off) else "–"
    problems, configs = labels(runs, "problem").nunique(), labels(runs, "config").nunique()
    failed = int((runs["status"] != "ok").sum())
    return [judged.kernel, str(len(judged.runs)), str(failed), str(problems), str(configs), noise]


def errors(judged: Judged) -> list[str]:
    """Return a row: errors of Foretune and of baselines."""
    own = judged.scores()
    holds = f"{100 * own['coverage90']:.0f} %; ±{100 * own['width90']:.0f} %"
    beside = [_errors(judged.scores(name)) for name in BESIDE]
    return [judged.kernel, _errors(own), holds, *beside, f"{judged.seconds:.0f}"]


def choices(judged: Judged) -> list[str]:
    """Return a row: what choosing keeps."""
    rng = np.random.default_rng(0)
    kept: dict[str, list[float]] = {}
    for _, rows in judged.held_out.groupby(task_numbers(judged.held_out)):
        times = rows["time_ms"].to_numpy()
        order = np.argsort(rows["predicted"].to_numpy(), kind="stable")
        share = times.min() / times
        default = share[(rows["role"] == "default").to_numpy()]
        kept.setdefault("default", []).extend(default)
        for budget in BUDGETS:
            kept.setdefault(f"p{budget}", []).append(share[order[: max(budget, 1)]].max())
            if budget:
                drawn = [share[rng.permutation(len(share))[:budget]].max() for _ in range(DRAWS)]
                kept.setdefault(f"d{budget}", []).append(float(np.mean(drawn)))
    return [judged.kernel, *(f"{100 * np.mean(values):.0f}" for values in _ordered(kept))]


def against_library(judged: Judged) -> list[str]:
    """Return a row: finalists beside the library; empty where there is none."""
    runs = judged.runs
    if "counter.library_ms" not in runs:
        return []
    runs = runs.assign(
        ratio=runs["counter.library_ms"] / runs["time_ms"],
        problem=labels(runs, "problem"),
        key=labels(runs, "problem", "config"),
    )
    final = runs[runs["role"] == "finalist"].dropna(subset="ratio")
    if final.empty:
        return []
    fastest = final.groupby("problem")["ratio"].max()
    default = final["ratio"][final["key"].isin(set(runs["key"][runs["role"] == "default"]))]
    worst = final[final["problem"] == fastest.idxmin()].iloc[0]
    (problem,) = map(str, problems_of(worst.to_frame().T))
    return [
        judged.kernel, str(final["library"].iloc[0]), str(len(fastest)),
        f"{fastest.median():.2f}×", f"{default.median():.2f}×", str(int((fastest < 1).sum())),
        f"{fastest.min():.2f}× ({problem})",
    ]  # fmt: skip


def _errors(s: dict[str, float]) -> str:
    return f"{100 * s['mape']:.1f} / {100 * s['median_ape']:.1f} / {100 * s['p95_ape']:.0f}"


def _ordered(kept: dict[str, list[float]]) -> list[list[float]]:
    names = ["default", *(f"p{b}" for b in BUDGETS), *(f"d{b}" for b in BUDGETS if b)]
    return [kept[name] for name in names]


if __name__ == "__main__":
    main(sys.argv[1:])
