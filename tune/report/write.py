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
from foretune.device import SPECS, Device
from foretune.models.explanation.attribution import Importance
from foretune.models.validation.evaluation import Scores
from foretune.objective import Objective
from foretune.tune.report.page import (
    Html,
    count,
    duration,
    element,
    join,
    page,
    percent,
    ratio,
    row,
    section,
    table,
    write_page,
)
from foretune.tune.report.sections import (
    energy_section,
    failures_section,
    parameters_section,
    predictions_section,
    search_section,
    winners_section,
)
from foretune.tune.report.wins import library_ratio
from foretune.tune.results import TuneResult

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
        attribution: what predictions rest on; None where the model has no exact contributions.
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
    attribution: Importance | None = None


def write_report(path: str | os.PathLike[str], data: ReportData) -> Path:
    """Write the report to ``path`` in one step, all or nothing, and return it.

    Raises:
        OutputError: the file cannot be written.
    """
    return write_page(path, _document(data))


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
    least, most = (choose(len(r.trace) for r in results) for choose in (min, max))
    span = (f"{least} to " if least < most else "") + count(most, "measurement")
    each = " each" if len(results) > 1 else ""
    out_of = f" out of {count(data.space_size, 'configuration')}" if data.space_size else ""
    return f"{outcome}, after {span}{each}{out_of}"


def _document(data: ReportData) -> str:
    sections = {
        "Winners": ("winners", winners_section(data.results)),
        "Search": ("search", search_section(data.results)),
        "Predictions": ("predictions", predictions_section(data.held_out, data.scores)),
        "Parameters": ("parameters", parameters_section(data.importance, data.attribution)),
        "Energy": ("energy", energy_section(data.runs)),
        "Failures": ("failures", failures_section(data.runs)),
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
        mean = (
            f", {ratio(_geometric_mean(against))} in the geometric mean" if len(against) > 1 else ""
        )
        word = "faster" if data.objective is Objective.TIME else "better"
        lead.append(f"Against {names}: {word} on {ahead} of {len(against)}{mean}.")
    models = data.scores.get("time_ms", {}).get("grouped", {})
    error = next(iter(models.values()), {}).get("median_ape", math.nan)
    learned = data.held_out[data.held_out["target"] == "time_ms"]
    tiles = {
        "measurements in training": f"{len(learned):,}",
        "problems in training": f"{learned['problem'].nunique():,}",
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


def _method(data: ReportData) -> Html:
    rounds = sorted({r.rounds for r in data.results})
    span = " to ".join(f"{n:,}" for n in sorted({*rounds[:1], *rounds[-1:]}))
    protocol = (
        "A time is the median of repeated launches after a warm-up; they are repeated until the "
        "95 % interval of the median is within 1 % or the time box ends. Every output is checked "
        "against a reference computed in higher precision."
    )
    if span:
        protocol += (
            f" Finalists, default and library then ran in turn for {span} rounds; the ratio to the "
            "default is the median over rounds, with its distribution-free 95 % interval."
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
        "method", "How it was measured", element("p", protocol),
        _facts("This campaign", facts), element("h3", "Device"), specs,
    )  # fmt: skip


def _specs(device: Device) -> dict[str, object]:
    facts: dict[str, object] = {"Name": device.name, "Kind": device.kind}
    facts |= {
        "Architecture": device.architecture or "–",
        "Source of the numbers": device.source or "–",
    }
    for name, value in device.specs.items():
        meaning = element("small", SPECS.get(name, ""))
        facts[name] = join((f"{value:,.6g}", meaning))
    return facts


def _facts(caption: str, facts: Mapping[str, object]) -> Html:
    rows = [row([name, value]) for name, value in facts.items()]
    return table(caption, (), [rows], class_="plain")


def _link(uri: str | None) -> Html | str:
    if uri is None:
        return "not tracked"
    return element("a", uri, href=uri) if uri.startswith(("http://", "https://")) else uri


def _unseen(result: TuneResult, runs: pd.DataFrame) -> bool:
    """Whether nothing in ``runs`` is of this problem but what its own search measured."""
    same = np.ones(len(runs), dtype=bool)
    for name, value in result.problem.items():
        same &= (
            (runs[f"problem.{name}"] == value).to_numpy() if f"problem.{name}" in runs else False
        )
    own = {step.config for step in result.trace}
    return all(m.config in own for m in to_measurements(runs[same]))


def _geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
