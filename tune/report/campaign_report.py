"""Self-contained HTML pages: a campaign's report, a tuned problem, a predictor's validation."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.runs import read_runs
from foretune.datasets.schema import columns_of
from foretune.device import SPECS, Device
from foretune.kernel import Kernel
from foretune.models import explanation
from foretune.models.validation.cross_validation import Validation
from foretune.objective import Objective
from foretune.tune.campaign.observer import Campaign, CampaignObserver, CampaignStart
from foretune.tune.outcome import outcome
from foretune.tune.report import figures
from foretune.tune.report.chart import Chart
from foretune.tune.report.page import duration, percent, ratio, render, spaced, write_page
from foretune.tune.results import TuneResult
from foretune.values import counted


@dataclass(frozen=True)
class ReportData:
    """Content of a report: a campaign started at an ISO time that took ``seconds``.

    ``learned`` counts the ``rows`` and ``problems`` of training. ``importance`` has the columns
    ``parameter``, ``factor`` and, if known, ``best``. ``mlflow_uri`` is None if the campaign is not
    tracked; ``kernel_location`` is the kernel's name in commands, if it differs.
    """

    kernel: str
    device: Device
    objective: Objective
    runs: pd.DataFrame
    validation: Validation
    learned: Mapping[str, Any]
    results: list[TuneResult]
    importance: pd.DataFrame
    environment: str
    started_at: str
    seconds: float
    mlflow_uri: str | None
    space_size: int
    rates: Sequence[Sequence[figures.Rate]] = ()
    attribution: explanation.Importance | None = None
    kernel_location: str = ""


def write_report(path: str | os.PathLike[str], data: ReportData) -> Path:
    """Write the report to ``path`` and return it; on failure (OutputError) an old file remains."""
    results, energies = data.results, energy_by_problem(data.runs)
    rounds = sorted({r.rounds for r in results})
    text = render(
        Path(__file__).with_name("campaign.html"),
        title=f"{data.kernel} on {data.device.name}",
        headline=headline(results, data.space_size),
        lead=_lead(data),
        tiles=_tiles(data),
        data=data,
        place=ratio_positions(results),
        libraries=sorted({r.library.name for r in results if r.library}),
        predicted=is_predicted(results),
        failed=any(s.status != "ok" for r in results for s in r.trace),
        figures=figures,
        roofline=figures.roofline_figure([str(r.problem) for r in results], data.rates, data.device)
        if any(data.rates)
        else None,
        clouds=list(prediction_clouds(data.validation)),
        targets=TARGETS,
        metrics=METRICS,
        worth=data.importance.sort_values("factor", ascending=False).to_dict("records"),
        rests_on=list(strongest_features(data.attribution)),
        metered=None if energies is None else len(energies),
        shown=(energies or [])[:MAX_PARETO_CHARTS],
        failures=list(failures(data.runs)),
        rounds=" to ".join(f"{n:,}" for n in sorted({*rounds[:1], *rounds[-1:]})),
        specs=SPECS,
    )
    return write_page(path, text)


def headline(results: Sequence[TuneResult], space_size: int) -> str:
    """Return a campaign's outcome in one sentence; none of its problems was profiled."""
    found = outcome(results, "unseen problem")
    min_count, max_count = (choose(len(r.trace) for r in results) for choose in (min, max))
    span = (f"{min_count} to " if min_count < max_count else "") + counted(max_count, "measurement")
    each = " each" if len(results) > 1 else ""
    return f"{found}, after {span}{each} out of {counted(space_size, 'configuration')}"


def _lead(data: ReportData) -> str:
    lines = [weak] if (weak := data.validation.weakness) else []
    if open_ones := sum(r.verdict == "inconclusive" for r in data.results):
        lines.append(
            f"{counted(open_ones, 'problem')} inconclusive: the interval includes 1 and a relevant "
            "gain. A longer search or a quieter machine may settle that."
        )
    if busy_wins := sum(r.busy_win is not None for r in data.results):
        lines.append(
            f"{busy_wins} of these won on this busy machine only: winner and default use the cores "
            "differently. A quiet machine decides."
        )
    if disturbed := [r.noise for r in data.results if r.noise.disturbed]:
        most = max(disturbed, key=lambda noise: noise.others)
        lines.append(
            f"{counted(len(disturbed), 'verification')} ran beside other load; the most: "
            f"{most.disturbed}."
        )
    if 0 < sum(r.verified for r in data.results) < len(data.results):
        lines.append("Without a measurable win, the default stays and counts as 1.00×.")
    against = [r.versus_library for r in data.results if r.versus_library]
    if against:
        names = " and ".join(sorted({r.library.name for r in data.results if r.library}))
        wins, ratios = sum(c.wins for c in against), [c.ratio for c in against]
        mean = f", {ratio(geometric_mean(ratios))} in the geometric mean" if len(ratios) > 1 else ""
        word = "faster" if data.objective is Objective.TIME else "better"
        lines.append(f"Against {names}: {word} on {wins} of {len(against)}{mean}.")
    return " ".join(lines)


def _tiles(data: ReportData) -> dict[str, str]:
    models = data.validation.scores.get("time_ms", {}).get("grouped", {})
    error = next(iter(models.values()), {}).get("median_ape", math.nan)
    return {
        "measurements in training": f"{data.learned['rows']:,}",
        "problems in training": f"{data.learned['problems']:,}",
        "median error of predicted time, whole problems held out": percent(error),
        "from start to report": duration(data.seconds),
    }


class ReportObserver(CampaignObserver):
    """Writes ``report.html`` when a campaign finishes."""

    def on_start(self, start: CampaignStart) -> None:
        """Store the subject of the report."""
        self._start = start

    def on_finish(self, campaign: Campaign) -> None:
        """Write the report."""
        kernel, device = self._start.kernel, self._start.device
        runs = read_runs(self._start.folder.runs)
        write_report(campaign.report, _report_data(kernel, device, campaign, runs))


def _report_data(
    kernel: Kernel, device: Device, campaign: Campaign, runs: pd.DataFrame
) -> ReportData:
    predictor, results = campaign.training.predictor, list(campaign.results)
    importances = explanation.parameter_importance(
        predictor, [r.problem for r in results], kernel.space, device
    )
    return ReportData(
        kernel=kernel.name,
        kernel_location=kernel.location or kernel.name,
        device=device,
        objective=results[0].objective,
        runs=runs,
        validation=campaign.training.validation,
        learned=predictor.training_,
        results=results,
        importance=importances,
        environment=str(runs["environment"].iloc[-1]),
        started_at=str(runs["recorded_at"].min()),
        seconds=campaign.seconds,
        mlflow_uri=campaign.mlflow_uri,
        rates=[list(figures.rates(kernel, r, device)) for r in results],
        space_size=max(len(kernel.space(r.problem)) for r in results),
        attribution=explanation.importance(predictor)
        if explanation.is_explainable(predictor)
        else None,
    )


MAX_PARETO_CHARTS = 6
MAX_FEATURES_PER_GROUP = 4  # features named per group
TARGETS = {"time_ms": "time, ms", "power_w": "power, W", "energy_mj": "energy, mJ"}
METRICS = {
    "mape": ("Mean error", percent),
    "median_ape": ("Median error", percent),
    "p95_ape": ("95th percentile", percent),
    "spearman": ("Rank correlation", lambda r: f"{r:.2f}" if math.isfinite(r) else "–"),
    "top1_regret": ("Top-1 regret", percent),
    "coverage90": ("In 90 % interval", percent),
}


def is_predicted(results: Sequence[TuneResult]) -> bool:
    """Whether the searches minimized time and had predictions of it."""
    return any(
        r.objective is Objective.TIME and math.isfinite(s.predicted_ms)
        for r in results
        for s in r.trace
    )


def prediction_clouds(validation: Validation) -> Iterator[tuple[str, Chart]]:
    """Yield the title and the chart of each target's held-out rows."""
    for target, rows in validation.held_out.items():
        coverage = float(rows["truth"].between(rows["low"], rows["high"]).mean())
        what = TARGETS.get(target, target)
        sample_note = f" ({figures.MAX_POINTS:,} drawn)" if len(rows) > figures.MAX_POINTS else ""
        title = (
            f"{what.partition(',')[0].capitalize()}: {percent(coverage)} of "
            f"{counted(len(rows), 'measurement')} in the 90 % interval{sample_note}"
        )
        yield title, figures.prediction_figure(rows, what)


def strongest_features(
    attribution: explanation.Importance | None,
) -> Iterator[tuple[str, float, list[dict[str, Any]]]]:
    """Yield name, typical effect and strongest features of each feature group."""
    if attribution is None:
        return
    features = attribution.features[attribution.features["mean"] > 0]
    for group in attribution.groups.to_dict("records"):
        group_features = features[features["group"] == group["group"]].head(MAX_FEATURES_PER_GROUP)
        name = explanation.FEATURE_GROUPS.get(group["group"], group["group"])
        yield name, group["factor"], group_features.to_dict("records")


def energy_by_problem(runs: pd.DataFrame) -> list[tuple[str, np.ndarray, np.ndarray]] | None:
    """Return problems with times (ms) and energies (mJ), most runs first; None without a meter."""
    runs = runs[runs["status"] == "ok"]
    if "power_w" not in runs or runs["power_w"].isna().all():
        return None
    runs = runs.assign(energy_mj=runs["power_w"] * runs["time_ms"]).dropna(subset="energy_mj")
    columns = columns_of(runs, "problem")
    names = [c.removeprefix("problem.") for c in columns]
    groups = [
        (
            ", ".join(f"{n}={v}" for n, v in zip(names, key, strict=True)),
            rows["time_ms"].to_numpy(float),
            rows["energy_mj"].to_numpy(float),
        )
        for key, rows in runs.groupby(columns, sort=False, observed=True, dropna=False)
        if len(rows) > 2
    ]
    return sorted(groups, key=lambda group: len(group[1]), reverse=True)


def failures(runs: pd.DataFrame) -> Iterator[tuple[str, int, str]]:
    """Yield each failure status with its count and the first error message."""
    failed = runs[runs["status"] != "ok"]
    for status, group in failed.groupby("status", sort=False, observed=True):
        errors = group["error"].dropna().astype(str) if "error" in group else ()
        yield str(status), len(group), next((e for e in errors if e.strip()), "–")


def ratio_positions(results: Sequence[TuneResult]) -> Callable[[float], float]:
    """Return a function from a ratio to the default to its place in a strip, from 5 to 155."""
    ratios = [0.95, 1.05]
    for result in results:
        shown = result.winner if result.verified else result.leader
        ratios += [shown.ratio_low, shown.ratio, shown.ratio_high]
        ratios += [result.baseline.value / result.library.value] if result.library else []
    logs = [math.log(r) for r in ratios if math.isfinite(r) and r > 0]

    def place(ratio: float) -> float:
        log = math.log(ratio) if ratio > 0 else -math.inf
        return round(float(np.interp(log, [min(logs), max(logs)], [5.0, 155.0])), 1)

    return place


def write_tuned(path: str | os.PathLike[str], result: TuneResult) -> Path:
    """Write the report of ``result`` to ``path`` and return it, or raise OutputError."""
    winner = result.winner
    faster = f"{winner.ratio:.2f}× the default's speed"
    text = render(
        Path(__file__).with_name("tuned.html"),
        title=f"{result.kernel} on {result.device}",
        headline=f"{result.kernel}: {faster if result.verified else result.explanation}",
        lead=f"Best: {spaced(winner.config or 'the default')}. "
        f"Problem: {spaced(result.problem.shown)}.",
        result=result,
        figures=figures,
    )
    return write_page(path, text)


def notebook_view(result: TuneResult) -> str:
    """Return the notebook view of a result: the verdict, a table and the trace's chart."""
    template = Path(__file__).with_name("notebook.html")
    return render(
        template,
        title="",
        headline=result.headline,
        best=result.winner.config or {},
        default=result.baseline.config or {},
        drawn=figures.trace_figure(result),
    )


def validation_page(title: str, validation: Validation) -> str:
    """Return the page with predicted and measured values of held-out rows, and all scores."""
    return render(
        Path(__file__).with_name("validation.html"),
        title=title,
        heading="Foretune",
        headline=title,
        clouds=list(prediction_clouds(validation)),
        validation=validation,
        targets=TARGETS,
        metrics=METRICS,
    )
