"""The report: one HTML file that says what a campaign found, how sure that is, and how it was done.

It holds everything it needs, so it opens offline and can be mailed.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets import to_measurements
from foretune.datasets.schema import columns_of
from foretune.device import SPECS, Device
from foretune.errors import OutputError
from foretune.models.evaluation import Scores
from foretune.objective import Objective
from foretune.tune.report_figures import (
    MOST_POINTS,
    pareto_figure,
    prediction_figure,
    trace_figure,
    worth_figure,
)
from foretune.tune.report_page import (
    Html,
    chart,
    count,
    duration,
    element,
    join,
    number,
    page,
    percent,
    ratio,
    row,
    section,
    table,
)
from foretune.tune.report_wins import library_ratio, wins_table
from foretune.tune.results import TuneResult

MOST_PARETO_CHARTS = 6
_TARGETS = {"time_ms": "time, ms", "power_w": "power, W", "energy_mj": "energy, mJ"}
_METRICS = {
    "mape": ("Mean error", percent),
    "median_ape": ("Median error", percent),
    "p95_ape": ("95th percentile", percent),
    "spearman": ("Rank correlation", number),
    "top1_regret": ("Top-1 regret", percent),
    "coverage90": ("In 90 % interval", percent),
}
_BETTER = {
    Objective.TIME: "faster than the default",
    Objective.ENERGY: "with less energy than the default",
    Objective.EDP: "better than the default in energy × time",
}


@dataclass(frozen=True)
class ReportData:
    """What a report is made of.

    Attributes:
        kernel: its name.
        device: what was measured on.
        objective: what was minimised.
        runs: the run table the predictor learned from.
        scores: target -> split -> model or baseline -> metric.
        held_out: predictions of rows whose whole problem was held out: columns ``target``,
            ``truth``, ``prediction``, ``low``, ``high``, ``problem``.
        results: one per tuned problem.
        importance: columns ``parameter``, ``factor`` and, if known, ``best``.
        environment: versions fingerprint.
        started_at: ISO time.
        seconds: wall time of the campaign.
        mlflow_uri: where it is tracked; None if nowhere.
        space_size: configurations a search chooses from; None if unknown.
    """

    kernel: str
    device: Device
    objective: Objective
    runs: pd.DataFrame
    scores: dict[str, Scores]
    held_out: pd.DataFrame
    results: list[TuneResult]
    importance: pd.DataFrame
    environment: str
    started_at: str
    seconds: float
    mlflow_uri: str | None
    space_size: int | None = None


def write_report(path: str | os.PathLike[str], data: ReportData) -> Path:
    """Write the report to ``path`` in one step, all or nothing, and return it.

    Raises:
        OutputError: the file cannot be written.
    """
    path = Path(path)
    text = _document(data)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as e:
        raise OutputError(f"cannot write the report {path}: {e.strerror or e}") from e
    return path


def headline(data: ReportData) -> str:
    """Return the outcome in one sentence."""
    results = data.results
    if not results:
        return "No problem was tuned."
    unseen = all(_unseen(r, data.runs) for r in results)
    wins = sum(r.verified for r in results)
    outcome = (
        f"{wins} of {count(len(results), 'unseen problem' if unseen else 'problem')} "
        f"{_BETTER[data.objective]}: "
    )
    if wins == 0:
        outcome += "no measurable win"
    else:
        outcome += ratio(_geometric_mean([r.winner.ratio for r in results]))
        outcome += " (geometric mean)" if len(results) > 1 else ""
    spent = sorted({len(r.trace) for r in results})
    span = count(spent[-1], "measurement") if len(spent) == 1 else f"{spent[0]} to {spent[-1]} measurements"
    each = " each" if len(results) > 1 else ""
    out_of = f" out of {count(data.space_size, 'configuration')}" if data.space_size else ""
    return f"{outcome}, after {span}{each}{out_of}"


def _document(data: ReportData) -> str:
    sections = {
        "Winners": ("winners", _winners(data)),
        "Search": ("search", _search(data)),
        "Predictions": ("predictions", _predictions(data)),
        "Parameters": ("parameters", _parameters(data)),
        "Energy": ("energy", _energy(data)),
        "Failures": ("failures", _failures(data)),
        "Method": ("method", _method(data)),
    }
    links = [(anchor, title) for title, (anchor, _) in sections.items()]
    title = f"{data.kernel} on {data.device.name}"
    return page(f"{title} – Foretune", _top(title, data), [s for _, s in sections.values()], links)


def _top(title: str, data: ReportData) -> Html:
    lead = []
    if 0 < sum(r.verified for r in data.results) < len(data.results):
        lead.append("Where there is no measurable win the default stays and counts as 1.00×.")
    against = [v for v in map(library_ratio, data.results) if math.isfinite(v)]
    if against:
        names = " and ".join(sorted({r.library.name for r in data.results if r.library}))
        ahead = sum(v > 1 for v in against)
        mean = f", {ratio(_geometric_mean(against))} in the geometric mean" if len(against) > 1 else ""
        word = "faster" if data.objective is Objective.TIME else "better"
        lead.append(f"Against {names}: {word} on {ahead} of {len(against)}{mean}.")
    median = data.scores.get("time_ms", {}).get("grouped", {})
    error = next(iter(median.values()), {}).get("median_ape", math.nan)
    tiles = {
        "measurements in training": f"{len(data.runs):,}",
        "problems in training": f"{len(_problems(data.runs)):,}",
        "median error of predicted time, whole problems held out": percent(error),
        "from start to report": duration(data.seconds),
    }
    return join(
        [
            element("h1", title),
            element("p", headline(data), class_="headline"),
            element("p", " ".join(lead), class_="lead") if lead else "",
            element(
                "dl",
                *(
                    element("div", element("dt", name), element("dd", value))
                    for name, value in tiles.items()
                ),
                class_="tiles",
            ),
        ]
    )


def _winners(data: ReportData) -> Html:
    if not data.results:
        return section("winners", "What tuning brought", element("p", "No problem was tuned."))
    strip = "In each strip the upright line is the default, the bar the 95 % interval"
    strip += " and the diamond the library." if any(r.library for r in data.results) else "."
    note = (
        "A winner counts only if the interval of its ratio to the default, measured interleaved "
        f"with it, excludes 1. {strip} Dark parameters differ from the default."
    )
    parts = wins_table(data.results), element("p", note, class_="note")
    return section("winners", "What tuning brought", *parts)


def _search(data: ReportData) -> Html:
    charts = []
    for result in data.results:
        problem = str(result.problem).replace(",", ", ")
        summary = (
            f"Search trace of {problem}: {count(len(result.trace), 'measurement')}, default "
            f"{number(result.baseline.value)} {data.objective.unit}, kept "
            f"{number(result.winner.value)} {data.objective.unit}. The table below has the numbers."
        )
        charts.append(chart(problem, trace_figure(result), summary, _trace_table(result)))
    least = "26rem" if len(charts) <= 4 else "19rem"
    grid = element("div", *charts, class_="charts", style=f"--least:{least}")
    text = "Every configuration that was measured, in order. What the predictor expected was known "
    text += "before; a measurement should fall into its interval nine times out of ten."
    return section("search", "How the search went", element("p", text), _legend(data), grid)


def _legend(data: ReportData) -> Html:
    entries = [
        ('<circle cx="12" cy="7" r="4.5" fill="var(--measured)"/>', "measured"),
        ('<path d="M1 3h11v8h12" fill="none" stroke="var(--measured)" stroke-width="2"/>',
         "best so far"),
        ('<path d="M1 7h22" stroke="var(--text)" stroke-width="1.5" stroke-dasharray="5 3"/>',
         "default"),
    ]  # fmt: skip
    if data.objective is Objective.TIME:
        mark = '<path d="M12 0v14" stroke="var(--interval)" stroke-width="9"/>'
        mark += '<path d="M8 7h8" stroke="var(--predicted)" stroke-width="2"/>'
        entries.insert(2, (mark, "predicted, 90 % interval"))
    if names := sorted({r.library.name for r in data.results if r.library}):
        mark = '<path d="M1 7h22" stroke="var(--library)" stroke-width="2" stroke-dasharray="2 2"/>'
        entries.append((mark, ", ".join(names)))
    if any(s.status != "ok" for r in data.results for s in r.trace):
        mark = '<path d="M7 2l10 10M17 2l-10 10" stroke="var(--outside)" stroke-width="2.5"/>'
        entries.append((mark, "failed"))
    items = (
        element("li", Html(f'<svg viewBox="0 0 24 14" aria-hidden="true">{mark}</svg>'), name)
        for mark, name in entries
    )
    return element("ul", *items, class_="legend")


def _trace_table(result: TuneResult) -> Html:
    headings = ["", "Status", "Time, ms", "Predicted, ms", "Interval, ms", "Power, W", "Configuration"]
    rows = [
        row([
            i, step.status, number(step.time_ms), number(step.predicted_ms),
            f"{number(step.low_ms)} – {number(step.high_ms)}", number(step.power_w),
            element("code", str(step.config).replace(",", ", ")),
        ])
        for i, step in enumerate(result.trace, start=1)
    ]  # fmt: skip
    measured = table(f"Measurements of {result.problem}", headings, [rows])
    return element("details", element("summary", "As a table"), measured)


def _predictions(data: ReportData) -> Html:
    charts = []
    for target, rows in data.held_out.groupby("target", sort=False):
        coverage = float(rows["truth"].between(rows["low"], rows["high"]).mean())
        covered = f"{percent(coverage)} of {count(len(rows), 'measurement')} in the 90 % interval"
        what = _TARGETS.get(str(target), str(target))
        name = what.partition(",")[0].capitalize()
        some = f" ({MOST_POINTS:,} drawn)" if len(rows) > MOST_POINTS else ""
        title = f"{name}: {covered}{some}"
        charts.append(chart(title, prediction_figure(rows, what), f"Predicted over measured. {title}"))
    text = (
        "Each point is a measurement, predicted by a model that had seen no run of its problem. "
        "On the line the prediction is right; orange diamonds lie outside their interval."
    )
    split = join(
        [
            element("b", "random"), " holds out single measurements, so other configurations of the "
            "same problem are in training: comparable with the literature, but flattering. ",
            element("b", "grouped"), " holds out whole problems: what a new problem will see.",
        ]
    )  # fmt: skip
    tables = [
        part
        for target, splits in data.scores.items()
        for part in (element("h3", f"Scores for {_TARGETS.get(target, target)}"), _scores(splits))
    ]
    return section(
        "predictions", "Predicted against measured", element("p", text),
        element("div", *charts, class_="charts"), *tables, element("p", split, class_="note"),
    )  # fmt: skip


def _scores(splits: Scores) -> Html:
    groups = []
    for split, models in splits.items():
        wide = element("th", split, scope="rowgroup", colspan=len(_METRICS) + 1)
        rows = [element("tr", wide, class_="group")]
        for i, (model, metrics) in enumerate(models.items()):
            cells = [show(metrics.get(m, math.nan)) for m, (_, show) in _METRICS.items()]
            line = row([model, *cells])
            rows.append(Html(line.replace("<tr>", '<tr class="own">', 1)) if i == 0 else line)
        groups.append(rows)
    headings = ["Model", *(title for title, _ in _METRICS.values())]
    return table("Scores by split and model", headings, groups, class_="scores")


def _parameters(data: ReportData) -> Html:
    title = "What each parameter is worth"
    if data.importance.empty:
        return section("parameters", title, element("p", "There are no tunable parameters."))
    text = (
        "Each parameter alone is set to every value it may have while the others stay: the bar is "
        "the slowest value's mean predicted time over the fastest value's."
    )
    top = data.importance.sort_values("factor", ascending=False).iloc[0]
    summary = f"Bar chart. {top['parameter']} matters most: {ratio(float(top['factor']))}."
    return section(
        "parameters", title, element("p", text), chart("", worth_figure(data.importance), summary)
    )


def _energy(data: ReportData) -> Html:
    title = "Time against energy"
    runs = data.runs[data.runs["status"] == "ok"]
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
    some = f" The {len(chosen)} problems with most runs are shown." if len(chosen) < len(groups) else ""
    text = "Each point is a configuration; none beats those on the blue line in time and energy both."
    grid = element("div", *charts, class_="charts", style="--least:19rem")
    return section("energy", title, element("p", text + some), grid)


def _failures(data: ReportData) -> Html:
    runs = data.runs
    failed = runs[runs["status"] != "ok"]
    if failed.empty:
        text = f"None: {count(len(runs), 'run')}, every one of them fine."
        return section("failures", "Failures", element("p", text))
    rows = []
    for status, group in failed.groupby("status", sort=False):
        errors = group["error"].dropna() if "error" in group else pd.Series(dtype=object)
        first = next((str(e) for e in errors if str(e).strip()), "–")
        rows.append(row([status, f"{len(group):,}", percent(len(group) / len(runs)), first]))
    text = "Kept on purpose: they are what the predictor learns validity from."
    headings = ["Status", "Runs", "Share", "First message"]
    return section(
        "failures", "Failures", element("p", text), table("Failed runs by status", headings, [rows])
    )


def _method(data: ReportData) -> Html:
    rounds = sorted({r.rounds for r in data.results})
    span = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}" if rounds else ""
    flush = ", the last-level cache flushed between launches" if data.device.kind == "gpu" else ""
    protocol = [
        f"A time is the median of repeated launches after a warm-up{flush}, repeated until the 95 % "
        "interval of the median is within 1 % or the time box ends.",
        "Every output is checked against a reference computed in higher precision.",
    ]
    if span:
        protocol.append(
            f"Finalists, default and library then ran in turn for {span} rounds; the speedup is "
            "the median ratio within a round, with its distribution-free 95 % interval."
        )
    searchers = ", ".join(sorted({r.searcher for r in data.results})) or "none"
    facts: dict[str, object] = {
        "Kernel": data.kernel,
        "Objective": f"{data.objective.value}, {data.objective.unit}",
        "Searcher": searchers,
        "Started": data.started_at,
        "Took": duration(data.seconds),
        "Environment": data.environment,
        "MLflow": _link(data.mlflow_uri),
    }
    specs = _facts("What the predictor knows of the device", _specs(data.device))
    return section(
        "method", "How it was measured", element("p", " ".join(protocol)),
        _facts("This campaign", facts), element("h3", "Device"), specs,
    )  # fmt: skip


def _specs(device: Device) -> dict[str, object]:
    facts: dict[str, object] = {"Name": device.name, "Kind": device.kind}
    facts |= {"Architecture": device.architecture or "–", "Source of the numbers": device.source or "–"}
    for name, value in device.specs.items():
        meaning = element("small", SPECS.get(name, ""))
        facts[name] = join((f"{value:,.6g}", meaning))
    return facts


def _facts(caption: str, facts: Mapping[str, object]) -> Html:
    rows = [row([name, value]) for name, value in facts.items()]
    return table(caption, ["", ""], [rows], class_="plain")


def _link(uri: str | None) -> Html | str:
    if uri is None:
        return "not tracked"
    return element("a", uri, href=uri) if uri.startswith(("http://", "https://")) else uri


def _problems(runs: pd.DataFrame) -> pd.DataFrame:
    return runs[columns_of(runs, "problem")].drop_duplicates()


def _by_problem(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of each problem, under the problem as people write it."""
    columns = columns_of(runs, "problem")
    names = [c.removeprefix("problem.") for c in columns]
    return {
        ", ".join(f"{n}={v}" for n, v in zip(names, key, strict=True)): rows
        for key, rows in runs.groupby(columns, sort=False, observed=True)
    }


def _unseen(result: TuneResult, runs: pd.DataFrame) -> bool:
    """Whether nothing in ``runs`` is of this problem but what its own search measured."""
    same = np.ones(len(runs), dtype=bool)
    for name, value in result.problem.items():
        same &= (runs[f"problem.{name}"] == value).to_numpy() if f"problem.{name}" in runs else False
    own = {step.config for step in result.trace}
    return all(m.config in own for m in to_measurements(runs[same]))


def _geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
