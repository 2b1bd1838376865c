"""The report's sections, from what tuning brought to what failed."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.models.explanation.attribution import GROUPS, Importance
from foretune.models.validation.evaluation import Scores
from foretune.objective import Objective
from foretune.tune.report.figures import (
    MOST_POINTS,
    pareto_figure,
    prediction_figure,
    trace_figure,
    worth_figure,
)
from foretune.tune.report.page import (
    Html,
    chart,
    count,
    element,
    join,
    number,
    percent,
    ratio,
    row,
    section,
    table,
)
from foretune.tune.report.wins import wins_table
from foretune.tune.results import TuneResult

MOST_PARETO_CHARTS = 6
MOST_FEATURES = 4
"""Named of each group of features."""
_TARGETS = {"time_ms": "time, ms", "power_w": "power, W", "energy_mj": "energy, mJ"}
_METRICS = {
    "mape": ("Mean error", percent),
    "median_ape": ("Median error", percent),
    "p95_ape": ("95th percentile", percent),
    "spearman": ("Rank correlation", lambda r: f"{r:.2f}" if math.isfinite(r) else "–"),
    "top1_regret": ("Top-1 regret", percent),
    "coverage90": ("In 90 % interval", percent),
}


def winners_section(results: Sequence[TuneResult]) -> Html:
    """Return what tuning each problem brought."""
    if not results:
        return section("winners", "What tuning brought", element("p", "No problem was tuned."))
    strip = "In each strip the upright line is the default, the bar the 95 % interval"
    strip += " and the diamond the library." if any(r.library for r in results) else "."
    note = (
        "A winner counts only if the interval of its ratio to the default, measured interleaved "
        f"with it, excludes 1. {strip} Parameters in bold differ from the default."
    )
    parts = wins_table(results), element("p", note, class_="note")
    return section("winners", "What tuning brought", *parts)


def search_section(results: Sequence[TuneResult]) -> Html:
    """Return the trace of every search."""
    if not results:
        return section("search", "How the search went", element("p", "Nothing was searched."))
    charts = []
    for result in results:
        problem = str(result.problem).replace(",", ", ")
        unit = result.objective.unit
        summary = (
            f"Search trace of {problem}: {count(len(result.trace), 'measurement')}, default "
            f"{number(result.baseline.value, unit)}, kept {number(result.winner.value, unit)}. "
            "The table below has the numbers."
        )
        charts.append(chart(problem, trace_figure(result), summary, _trace_table(result)))
    least = "26rem" if len(charts) <= 4 else "19rem"
    grid = element("div", *charts, class_="charts", style=f"--least:{least}")
    text = "Every configuration that was measured, in order."
    if known := sum(s.known for r in results for s in r.trace):
        text += f" {count(known, 'measurement')} came from the store, and first."
    if _predicted(results):
        text += " The interval was predicted beforehand; nine of ten measurements should lie in it."
    return section("search", "How the search went", element("p", text), _legend(results), grid)


def _predicted(results: Sequence[TuneResult]) -> bool:
    """Whether there are predictions to draw: of times, where times are drawn."""
    return any(
        r.objective is Objective.TIME and math.isfinite(s.predicted_ms)
        for r in results
        for s in r.trace
    )


def _legend(results: Sequence[TuneResult]) -> Html:
    entries = [
        ('<circle cx="12" cy="7" r="4.5" fill="var(--measured)"/>', "measured"),
        ('<path d="M1 3h11v8h12" fill="none" stroke="var(--measured)" stroke-width="2"/>',
         "best so far"),
        ('<path d="M1 7h22" stroke="var(--text)" stroke-width="1.5" stroke-dasharray="5 3"/>',
         "default"),
    ]  # fmt: skip
    if _predicted(results):
        mark = '<path d="M12 0v14" stroke="var(--interval)" stroke-width="9"/>'
        mark += '<path d="M8 7h8" stroke="var(--predicted)" stroke-width="2"/>'
        entries.insert(2, (mark, "predicted, 90 % interval"))
    if names := sorted({r.library.name for r in results if r.library}):
        mark = '<path d="M1 7h22" stroke="var(--library)" stroke-width="2" stroke-dasharray="2 2"/>'
        entries.append((mark, ", ".join(names)))
    if any(s.status != "ok" for r in results for s in r.trace):
        mark = '<path d="M7 2l10 10M17 2l-10 10" stroke="var(--outside)" stroke-width="2.5"/>'
        entries.append((mark, "failed"))
    items = (
        element("li", Html(f'<svg viewBox="0 0 24 14" aria-hidden="true">{mark}</svg>'), name)
        for mark, name in entries
    )
    return element("ul", *items, class_="legend")


def _trace_table(result: TuneResult) -> Html:
    headings = [
        "", "Status", "Time, ms", "Predicted, ms", "Interval, ms", "Power, W", "Configuration",
    ]  # fmt: skip
    rows = [
        row([
            i, f"{step.status}, from the store" if step.known else step.status,
            number(step.time_ms), number(step.predicted_ms),
            f"{number(step.low_ms)} – {number(step.high_ms)}", number(step.power_w),
            element("code", str(step.config).replace(",", ", ")),
        ])
        for i, step in enumerate(result.trace, start=1)
    ]  # fmt: skip
    measured = table(f"Measurements of {result.problem}", headings, [rows])
    return element("details", element("summary", "As a table"), measured)


def predictions_section(held_out: pd.DataFrame, scores: Mapping[str, Scores]) -> Html:
    """Return how good the predictor is, on whole problems held out and by the score tables."""
    charts = []
    for target, rows in held_out.groupby("target", sort=False):
        coverage = float(rows["truth"].between(rows["low"], rows["high"]).mean())
        covered = f"{percent(coverage)} of {count(len(rows), 'measurement')} in the 90 % interval"
        what = _TARGETS.get(str(target), str(target))
        name = what.partition(",")[0].capitalize()
        some = f" ({MOST_POINTS:,} drawn)" if len(rows) > MOST_POINTS else ""
        title = f"{name}: {covered}{some}"
        summary = f"Predicted over measured. {title}"
        charts.append(chart(title, prediction_figure(rows, what), summary, class_="square"))
    text = (
        "Each point is a measurement, predicted by a model that had seen no run of its problem. "
        "On the line the prediction is right; orange diamonds lie outside their interval."
        if charts
        else "There were too few problems to hold whole ones out."
    )
    random = (
        " holds out single measurements, so other configurations of the same problem are in "
        "training: comparable with the literature, but flattering. "
    )
    grouped = " holds out whole problems: what a new problem will see."
    splits_note = join([element("b", "random"), random, element("b", "grouped"), grouped])
    tables = [
        part
        for target, splits in scores.items()
        for part in (element("h3", f"Scores for {_TARGETS.get(target, target)}"), _scores(splits))
    ]
    return section(
        "predictions", "Predicted against measured", element("p", text),
        element("div", *charts, class_="charts"), *tables,
        element("p", splits_note, class_="note") if tables else "",
    )  # fmt: skip


def _scores(splits: Scores) -> Html:
    groups = []
    for split, models in splits.items():
        wide = element("th", split, scope="rowgroup", colspan=len(_METRICS) + 1)
        rows = [element("tr", wide, class_="group")]
        for i, (model, metrics) in enumerate(models.items()):
            cells = [show(metrics.get(m, math.nan)) for m, (_, show) in _METRICS.items()]
            rows.append(row([model, *cells], class_="own" if i == 0 else None))
        groups.append(rows)
    headings = ["Model", *(title for title, _ in _METRICS.values())]
    return table("Scores by split and model", headings, groups, class_="scores")


def parameters_section(importance: pd.DataFrame, attribution: Importance | None = None) -> Html:
    """Return what each tunable parameter is worth, and what predictions rest on if that is known.

    Args:
        importance: what `foretune.models.explanation.explain.parameter_worth` returned.
        attribution: of the predictor's features.
    """
    title = "What each parameter is worth"
    if importance.empty:
        none = element("p", "There are no tunable parameters.")
        return section("parameters", title, none, _rests_on(attribution))
    text = (
        "Each parameter alone is set to every value it may have while the others stay: the bar is "
        "the slowest value's mean predicted time over the fastest value's."
    )
    worth = importance.sort_values("factor", ascending=False)
    top = worth.iloc[0]
    summary = f"Bar chart. {top['parameter']} matters most: {ratio(float(top['factor']))}."
    headings = ["Parameter", "Worth", *(["Best value"] if "best" in worth else [])]
    rows = [
        row([w["parameter"], ratio(w["factor"]), *([w["best"]] if "best" in worth else [])])
        for w in worth.to_dict("records")
    ]
    numbers = element("details", element("summary", "As a table"), table(title, headings, [rows]))
    drawn = chart("", worth_figure(worth), summary, numbers)
    return section("parameters", title, element("p", text), drawn, _rests_on(attribution))


def _rests_on(attribution: Importance | None) -> Html:
    """Return a table of feature groups with the strongest features of each."""
    if attribution is None or attribution.groups.empty:
        return Html("")
    title = "What predictions rest on"
    text = (
        "By how much a feature makes a run slower or faster than the average run, in the mean over "
        f"{count(attribution.rows, 'run')} of training. These are the trees' exact contributions "
        "(TreeSHAP) to time over calibrated roofline: what the roofline says is not in them."
    )
    rows = []
    for group in attribution.groups.to_dict("records"):
        features = attribution.features
        own = features[(features["group"] == group["group"]) & (features["mean"] > 0)]
        items = (
            element("li", element("code", f["feature"]), f" {ratio(f['factor'])}")
            for f in own.head(MOST_FEATURES).to_dict("records")
        )
        strongest = element("ul", *items, class_="chips")
        name = GROUPS.get(group["group"], group["group"]).capitalize()
        rows.append(row([name, ratio(group["factor"]), strongest]))
    headings = ["Features", "Typical effect", "Strongest of them"]
    return join(
        [element("h3", title), element("p", text), table(title, headings, [rows], class_="plain")]
    )


def energy_section(runs: pd.DataFrame) -> Html:
    """Return time against energy, or that no meter was there."""
    title = "Time against energy"
    runs = runs[runs["status"] == "ok"]
    if "power_w" not in runs or runs["power_w"].isna().all():
        text = "No power meter was there, so power and energy are unknown."
        return section("energy", title, element("p", text))
    runs = runs.assign(energy_mj=runs["power_w"] * runs["time_ms"]).dropna(subset="energy_mj")
    groups = {p: rows for p, rows in _by_problem(runs).items() if len(rows) > 2}
    chosen = sorted(groups, key=lambda p: len(groups[p]), reverse=True)[:MOST_PARETO_CHARTS]
    charts = []
    for problem in chosen:
        time_ms, energy_mj = (groups[problem][c].to_numpy(float) for c in ("time_ms", "energy_mj"))
        summary = (
            f"Scatter of {problem}: least time {number(time_ms.min())} ms, least energy "
            f"{number(energy_mj.min())} mJ."
        )
        charts.append(chart(problem, pareto_figure(time_ms, energy_mj), summary))
    some = (
        f" The {len(chosen)} problems with most runs are shown."
        if len(chosen) < len(groups)
        else ""
    )
    text = "Each point is a configuration; no other beats those in blue in both time and energy."
    grid = element("div", *charts, class_="charts", style="--least:19rem")
    return section("energy", title, element("p", text + some), grid)


def failures_section(runs: pd.DataFrame) -> Html:
    """Return what did not run, and why."""
    failed = runs[runs["status"] != "ok"]
    if failed.empty:
        text = f"None: {count(len(runs), 'run')}, every one of them fine."
        return section("failures", "Failures", element("p", text))
    rows = []
    for status, group in failed.groupby("status", sort=False, observed=True):
        errors = group["error"].dropna() if "error" in group else pd.Series(dtype=object)
        first = next((str(e) for e in errors if str(e).strip()), "–")
        rows.append(row([status, f"{len(group):,}", percent(len(group) / len(runs)), first]))
    text = "Kept on purpose: they are what the predictor learns validity from."
    headings = ["Status", "Runs", "Share", "First message"]
    return section(
        "failures", "Failures", element("p", text), table("Failed runs by status", headings, [rows])
    )


def _by_problem(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of each problem, under the problem as people write it."""
    columns = columns_of(runs, "problem")
    names = [c.removeprefix("problem.") for c in columns]
    return {
        ", ".join(f"{n}={v}" for n, v in zip(names, key, strict=True)): rows
        for key, rows in runs.groupby(columns, sort=False, observed=True, dropna=False)
    }
