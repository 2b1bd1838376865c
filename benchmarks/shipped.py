"""Trains the predictors that come with Foretune on the tables that do, and says how good they are.

    PYTHONPATH=src python benchmarks/shipped.py                     # all tables
    PYTHONPATH=src python benchmarks/shipped.py nvidia-h100-80gb    # one of them

For every shipped table and every kernel of the package in it: the errors on problems held out (five
folds, whole problems), how much of the best configuration's speed is kept by choosing with them,
what the library's call takes. A predictor of all rows goes to ``models/shipped``, with its errors
on its card, if it beats every simple method on problems held out, and choosing with it keeps more
than the default does; it predicts power as well if that has less than 4 % error. Prints the tables,
and puts them into ``datasets/README.md`` between its two marks. ``--from``, ``--out`` and
``--readme`` try it on tables that do not ship.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from machine import markdown
from shipped_power import (
    FORETUNE,
    METHODS,
    WORST_ERROR,
    boosted,
    families,
    hold_out_power,
    is_metered,
    power_errors,
    power_noise,
)

sys.path.append(str(Path(__file__).resolve().parent / "gpu"))  # stage.py

from stage import labels

from foretune.datasets import DatasetCard, card, load, shipped
from foretune.datasets.catalog import SHIPPED as TABLES
from foretune.datasets.runs import problems_of
from foretune.errors import ForetuneError
from foretune.models import Predictor
from foretune.models.saved.pretrained import PRETRAINED_CARD, SHIPPED, Pretrained
from foretune.models.splits import fold_of_rows, task_numbers
from foretune.models.target_names import TARGETS, Target
from foretune.models.targets import present_targets, usable_rows
from foretune.models.validation.baselines import predict_baselines
from foretune.models.validation.metrics import score
from foretune.registry import load as load_registered
from foretune.registry import registered

README = Path(__file__).resolve().parents[1] / "datasets" / "README.md"
BEGIN = "<!-- printed by benchmarks/shipped.py -->"
END = "<!-- until here -->"
OF_LIBRARY = ("calibrated roofline", "nearest neighbor")
TREES = "boosted trees"
"""They know the columns of problem and configuration only."""
BESIDE = (*OF_LIBRARY, TREES)
NOT_LEARNED = ("finalist", "reference")
"""Roles of rows that are not learned from: finalists ran among others, with other caches."""
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
        truth = rows["time_ms"].to_numpy()
        value = rows[column].to_numpy()
        ends = (rows["low"].to_numpy(), rows["high"].to_numpy()) if column == "predicted" else None
        return score(truth, value, task_numbers(rows), ends)

    def kept(self) -> dict[str, float]:
        """Return the share of the best speed that each way to choose keeps, mean over problems."""
        rng = np.random.default_rng(0)
        kept: dict[str, list[float]] = {}
        for _, rows in self.held_out.groupby(task_numbers(self.held_out)):
            times = rows["time_ms"].to_numpy()
            order = np.argsort(rows["predicted"].to_numpy(), kind="stable")
            share = times.min() / times
            default = share[(rows["role"] == "default").to_numpy()]
            kept.setdefault("default", []).extend(default)
            for budget in BUDGETS:
                kept.setdefault(f"p{budget}", []).append(share[order[: max(budget, 1)]].max())
                if budget:
                    drawn = [
                        share[rng.permutation(len(share))[:budget]].max() for _ in range(DRAWS)
                    ]
                    kept.setdefault(f"d{budget}", []).append(float(np.mean(drawn)))
        return {name: float(np.mean(values)) for name, values in kept.items()}

    def stated(self) -> dict[str, float]:
        """Return the figures for the predictor's card: its scores, and errors of simple methods."""
        found = {metric: value for metric, value in self.scores().items() if value == value}
        for name in BESIDE:
            found |= {f"{m} of {name}": self.scores(name)[m] for m in ("mape", "median_ape")}
        return {metric: float(f"{value:.4g}") for metric, value in found.items()}

    def reasons_against(self) -> list[str]:
        """Return why a predictor must not be shipped; empty if it may."""
        own = self.scores()
        kept = self.kept()
        reasons = [
            f"{name} errs less on problems held out ({_errors(self.scores(name))} against "
            f"{_errors(own)} %)"
            for name in BESIDE
            if any(not own[m] < self.scores(name)[m] for m in ("mape", "median_ape"))
        ]
        if not kept["p0"] > kept["default"]:
            reasons.append(
                f"its choice keeps {100 * kept['p0']:.0f} %, the default "
                f"{100 * kept['default']:.0f} %"
            )
        return reasons


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="*", help="default: all that are shipped")
    parser.add_argument("--from", type=Path, default=TABLES, metavar="FOLDER", dest="tables_folder")
    parser.add_argument("--out", type=Path, default=SHIPPED, metavar="FOLDER")
    parser.add_argument("--readme", type=Path, default=README)
    options = parser.parse_args(argv)
    known = shipped(options.tables_folder)
    texts = {
        name: ship(name, options.tables_folder, options.out) for name in options.tables or known
    }
    print("\n".join(texts.values()))
    before, begin, rest = options.readme.read_text(encoding="utf-8").partition(BEGIN)
    there, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{options.readme} has no marks {BEGIN} and {END}")
    texts = {name: text for name, text in sections(there).items() if name in known} | texts
    text = "\n".join(texts[name] for name in sorted(texts))
    options.readme.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """Return the parts of the text by the name of their table."""
    _, *parts = f"\n{text.strip()}\n".split("\n### ")
    return {part.partition("\n")[0]: f"### {part.rstrip()}\n" for part in parts}


def ship(name: str, tables_folder: Path, out: Path) -> str:
    """Train, judge and save the predictors of a table; return its part of the text."""
    of_table = card(name, tables_folder)
    runs = load(name, tables_folder)
    metered = is_metered(runs)
    power = None
    if metered.any():
        power = hold_out_power(runs[metered], families())
    judged = []
    for kernel in of_table.kernels:
        if kernel not in registered("kernels"):
            continue
        check_code(kernel, of_table)
        mine = runs[runs["kernel"] == kernel].dropna(axis=1, how="all").reset_index(drop=True)
        predictor, seconds = train(mine, targets_of(kernel, mine, power))
        each = Judged(kernel, mine, hold_out(mine), seconds)
        judged.append(each)
        shipping = Pretrained(
            kernel,
            of_table.kernels[kernel],
            of_table.device,
            of_table.architecture,
            of_table.specs,
            name,
            of_table.provisional,
            each.stated(),
        )
        folder = shipping.folder(out)
        shutil.rmtree(folder, ignore_errors=True)
        if each.reasons_against():
            continue
        folder.parent.mkdir(parents=True, exist_ok=True)
        predictor.save(folder)
        text = json.dumps(asdict(shipping), indent=1) + "\n"
        (folder / PRETRAINED_CARD).write_text(text, encoding="utf-8")
    return text_of(of_table, runs, judged, power, out)


def targets_of(kernel: str, runs: pd.DataFrame, power: pd.DataFrame | None) -> tuple[Target, ...]:
    """Return what a kernel's predictor is to learn: power only if that is known to be good."""
    if power is None:
        return tuple(present_targets(runs))
    errors = power_errors(power[power["kernel"] == kernel]).loc["all"]
    others = errors.drop(FORETUNE).min()
    return TARGETS if errors[FORETUNE] < min(others, WORST_ERROR) else TARGETS[:1]


def check_code(kernel: str, of_table: DatasetCard) -> None:
    """Check that the code of a kernel of ours is unchanged since it was measured.

    Raises:
        ForetuneError: Its code has changed.
    """
    if kernel not in registered("kernels"):
        return
    if load_registered("kernels", kernel)().source_hash != of_table.kernels[kernel]:
        raise ForetuneError(
            f"the code of {kernel} is not what {of_table.name} measured: measure it again with "
            f"'{of_table.command}'"
        )


def train(runs: pd.DataFrame, targets: tuple[Target, ...]) -> tuple[Predictor, float]:
    """Return a predictor of ``runs``, and the seconds it took."""
    start = time.perf_counter()
    predictor = Predictor(targets=targets).fit(to_learn_from(runs, "power_w" in targets))
    return predictor, time.perf_counter() - start


def to_learn_from(runs: pd.DataFrame, power: bool = False) -> pd.DataFrame:
    """Return the rows that are learned from; windows of power only for ``power``."""
    rows = runs[~runs["role"].isin(NOT_LEARNED) & (power | ~is_metered(runs))]
    unused = ["time_ms_samples", "library", "counter.library_ms", "stage", "case"]
    rows = rows.drop(columns=unused, errors="ignore")
    return rows.dropna(axis=1, how="all").reset_index(drop=True)


def hold_out(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that ran with what predictors say that did not see their problem."""
    rows = to_learn_from(runs)
    folds = fold_of_rows(rows, "grouped")
    if folds is None:
        raise ForetuneError("one problem only: nothing can be held out")
    parts = []
    for fold in np.unique(folds):
        known = rows[folds != fold].reset_index(drop=True)
        test = rows[folds == fold]
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
                **predict_baselines("time_ms", family, usable, test, OF_LIBRARY),
                **{TREES: boosted(usable, test, "time_ms")},
            )
        )
    return pd.concat(parts, ignore_index=True)


def text_of(
    of_table: DatasetCard,
    runs: pd.DataFrame,
    judged: list[Judged],
    power: pd.DataFrame | None,
    out: Path,
) -> str:
    """Return the report of a table, as Markdown."""
    machine = f"{of_table.device} ({of_table.architecture}), {of_table.specs['cores']:g} cores"
    files = (p for p in out.glob(f"*/{of_table.name}/**/*") if p.is_file())
    size = sum(p.stat().st_size for p in files) / 1e6
    about_it = f"{of_table.system}; {of_table.began[:10]}; {of_table.rows:,} rows"
    warning = f"**Provisional: {of_table.provisional}.**\n" if of_table.provisional else ""
    times = runs[~is_metered(runs)]
    parts = [
        f"### {of_table.name}\n",
        f"{machine}; {about_it}; its predictors: {size:.1f} MB in all.\n",
        warning,
        section(
            "What there is, and how far a measurement is from itself: between a default and its "
            "later repeats, median / 95th percentile.",
            (
                "kernel",
                "rows",
                "failed",
                "problems",
                "configurations",
                "of a problem",
                "repeats, %",
            ),
            [about(kernel, times[times["kernel"] == kernel]) for kernel in of_table.kernels],
        ),
        not_shipped(of_table, judged),
        section(
            "Errors on problems that were not trained on, mean / median / 95th percentile in %; "
            "the 90 % interval; seconds to train on all rows. Boosted trees know the columns of "
            "problem and configuration only.",
            ("kernel", "Foretune", "interval holds; width", *BESIDE, "train, s"),
            [errors(j) for j in judged],
        ),
        section(
            "Share of the speed of the fastest configuration measured that is kept on problems not "
            "trained on, in %, mean over problems: by the default, by the best of those predicted "
            "fastest when so many are measured (0: the first is taken), by the best of as many "
            f"drawn ({DRAWS} draws).",
            (
                "kernel",
                "default",
                *(f"predicted, {b}" for b in BUDGETS),
                *(f"drawn, {b}" for b in BUDGETS if b),
            ),
            [choices(j) for j in judged],
        ),
        section(
            "The fastest measured and the default beside the library's call, in turn: the "
            "library's time over theirs, median over problems; on how many the fastest is slower "
            "than the library, and where it is worst.",
            ("kernel", "library", "problems", "fastest", "default", "slower on", "worst"),
            [row for j in judged if (row := against_library(j))],
        ),
        "" if power is None else power_text(runs[is_metered(runs)], power),
    ]
    return "\n".join(filter(None, parts))


def not_shipped(of_table: DatasetCard, judged: list[Judged]) -> str:
    """Return which kernels have no predictor, and why; empty if all have one."""
    lines = [
        f"No predictor of {j.kernel} is shipped: {'; '.join(reasons)}.\n"
        for j in judged
        if (reasons := j.reasons_against())
    ]
    if others := [k for k in of_table.kernels if k not in registered("kernels")]:
        lines.append(
            f"No predictors of {', '.join(others)} are shipped: these kernels are files in "
            "`examples/` or `benchmarks/gpu/`, and a shipped predictor is found by the name of a "
            "kernel of the package. "
            "Train on their rows: `foretune train`.\n"
        )
    return "".join(lines)


def power_text(runs: pd.DataFrame, power: pd.DataFrame) -> str:
    """Return how well power is predicted, as Markdown."""
    table = power_errors(power)
    noise = power_noise(runs)
    configs = len(power)
    problems = power["problem"].nunique()
    rows = []
    for kernel, of_kernel in [*power.groupby("kernel"), ("all", power)]:
        some = [f"{100 * e:.1f}" if e == e else "–" for e in table.loc[str(kernel)]]
        rows.append([str(kernel), str(len(of_kernel)), str(of_kernel["problem"].nunique()), *some])
    learned = int(power[FORETUNE].notna().sum())
    worst = 100 * WORST_ERROR
    shipped_for = [k for k in table.index.drop("all") if "power_w" in targets_of(k, runs, power)]
    verdict = (
        f"Predictors of {', '.join(shipped_for)} predict it."
        if shipped_for
        else "No shipped predictor predicts it, so tuning for energy starts without one."
    )
    return section(
        f"Power of {configs} configurations of {problems} problems, learned from the other "
        f"problems: mean error in %. Foretune learns one kernel at a time, and nothing from fewer "
        f"than five rows: it predicts {learned} of the {configs}. Busy shares are told the time "
        "and learn from all kernels, as boosted trees do. A window is "
        f"{100 * noise.mean():.1f} % from the first of the same configuration (mean of "
        f"{len(noise)}). The bar for shipping is {worst:.0f} %. {verdict}",
        ("kernel", "configurations", "problems", *METHODS),
        rows,
    )


def section(text: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a sentence and its table; nothing without rows."""
    return f"{text}\n\n{markdown(columns, rows)}" if rows else ""


def about(kernel: str, runs: pd.DataFrame) -> list[str]:
    """Return a row: how much there is."""
    number = len(runs)
    runs = runs.assign(key=labels(runs, "problem", "config"))
    runs = runs[runs["role"] != "finalist"]
    ok = runs[runs["status"] == "ok"]
    first = ok[ok["counter.repeat"] == 0].set_index("key")["time_ms"]
    again = ok[ok["role"] == "repeat"].set_index("key")["time_ms"]
    off = (again / first.reindex(again.index) - 1).abs().dropna()
    noise = f"{100 * off.median():.1f} / {100 * off.quantile(0.95):.0f}" if len(off) else "–"
    of_problem = runs[runs["counter.repeat"] == 0].groupby(labels(runs, "problem")).size()
    configs = labels(runs, "config").nunique()
    failed = int((runs["status"] != "ok").sum())
    return [
        kernel,
        str(number),
        str(failed),
        str(len(of_problem)),
        str(configs),
        f"{of_problem.median():.0f}",
        noise,
    ]


def errors(judged: Judged) -> list[str]:
    """Return a row: errors of Foretune and of baselines."""
    own = judged.scores()
    holds = f"{100 * own['coverage90']:.0f} %; ±{100 * own['width90']:.0f} %"
    beside = [_errors(judged.scores(name)) for name in BESIDE]
    return [judged.kernel, _errors(own), holds, *beside, f"{judged.seconds:.0f}"]


def choices(judged: Judged) -> list[str]:
    """Return a row: what choosing keeps."""
    kept = judged.kept()
    names = ["default", *(f"p{b}" for b in BUDGETS), *(f"d{b}" for b in BUDGETS if b)]
    return [judged.kernel, *(f"{100 * kept[name]:.0f}" for name in names)]


def against_library(judged: Judged) -> list[str]:
    """Return a row: finalists beside the library; empty if there is no library."""
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
        judged.kernel,
        str(final["library"].iloc[0]),
        str(len(fastest)),
        f"{fastest.median():.2f}×",
        f"{default.median():.2f}×",
        str(int((fastest < 1).sum())),
        f"{fastest.min():.2f}× ({problem})",
    ]


def _errors(s: dict[str, float]) -> str:
    return f"{100 * s['mape']:.1f} / {100 * s['median_ape']:.1f} / {100 * s['p95_ape']:.0f}"


if __name__ == "__main__":
    main(sys.argv[1:])
