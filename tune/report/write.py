"""The report: one self-contained HTML file with a campaign's results and method."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.runs import read_runs, to_measurements
from foretune.device import SPECS, Device
from foretune.kernel import Kernel
from foretune.models.explanation import Importance, importance, is_explainable, parameter_importance
from foretune.models.training import Validation
from foretune.objective import Objective
from foretune.tune.campaign.observer import Campaign, CampaignObserver, CampaignStart
from foretune.tune.report.figures import (
    Rate,
    pareto_figure,
    rates,
    reproduce,
    roofline_figure,
    trace_figure,
    worth_figure,
)
from foretune.tune.report.page import counted, duration, percent, ratio, render, write_page
from foretune.tune.report.sections import (
    MAX_PARETO_CHARTS,
    METRICS,
    TARGETS,
    RatioScale,
    energy_by_problem,
    failures,
    is_predicted,
    prediction_clouds,
    strongest_features,
)
from foretune.tune.results import TuneResult

_OUTCOME_TEXT = {
    Objective.TIME: "faster than the default",
    Objective.ENERGY: "with less energy than the default",
    Objective.EDP: "better than the default in energy × time",
}


@dataclass(frozen=True)
class ReportData:
    """Content of a report.

    Attributes:
        learned: counts of ``rows`` and ``problems`` in training.
        importance: columns ``parameter``, ``factor`` and, if known, ``best``.
        started_at: ISO time.
        seconds: wall time of the campaign.
        mlflow_uri: the tracking URI; None if the campaign is not tracked.
        kernel_location: the kernel's name in commands, if it differs.
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
    rates: Sequence[Sequence[Rate]] = ()
    space_size: int | None = None
    attribution: Importance | None = None
    kernel_location: str = ""


def write_report(path: str | os.PathLike[str], data: ReportData) -> Path:
    """Write the report to ``path`` and return it; on failure an old file remains.

    Raises:
        OutputError: the file cannot be written.
    """
    results, energies = data.results, energy_by_problem(data.runs)
    rounds = sorted({r.rounds for r in results})
    text = render(
        Path(__file__).with_name("campaign.html"),
        title=f"{data.kernel} on {data.device.name}",
        headline=headline(data.results, data.runs, data.space_size),
        lead=_lead(data),
        tiles=_tiles(data),
        data=data,
        spaced=lambda named: str(named).replace(",", ", "),
        wins=RatioScale(results),
        libraries=sorted({r.library.name for r in results if r.library}),
        predicted=is_predicted(results),
        failed=any(s.status != "ok" for r in results for s in r.trace),
        trace_figure=trace_figure,
        roofline=roofline_figure([str(r.problem) for r in results], data.rates, data.device)
        if any(data.rates)
        else None,
        clouds=list(prediction_clouds(data.validation)),
        targets=TARGETS,
        metrics=METRICS,
        nan=math.nan,
        worth=data.importance.sort_values("factor", ascending=False).to_dict("records"),
        worth_figure=worth_figure,
        rests_on=list(strongest_features(data.attribution)),
        metered=None if energies is None else len(energies),
        shown=(energies or [])[:MAX_PARETO_CHARTS],
        pareto_figure=pareto_figure,
        failures=list(failures(data.runs)),
        rounds=" to ".join(f"{n:,}" for n in sorted({*rounds[:1], *rounds[-1:]})),
        specs=SPECS,
        reproduce=reproduce,
    )
    return write_page(path, text)


def headline(
    results: Sequence[TuneResult], runs: pd.DataFrame, space_size: int | None = None
) -> str:
    """Return the outcome of a campaign in one sentence; ``runs`` are all its measurements."""
    if not results:
        return "No problem was tuned."
    unseen = all(_is_unseen(r, runs) for r in results)
    wins = sum(r.verified for r in results)
    outcome = (
        f"{wins} of {counted(len(results), 'unseen problem' if unseen else 'problem')} "
        f"{_OUTCOME_TEXT[results[0].objective]}: "
    )
    if wins == 0:
        outcome += "no measurable win"
    else:
        outcome += ratio(_geometric_mean([r.winner.ratio for r in results]))
        outcome += " (geometric mean)" if len(results) > 1 else ""
    if open_ones := sum(r.verdict == "inconclusive" for r in results):
        outcome += f", {open_ones} inconclusive"
    min_count, max_count = (choose(len(r.trace) for r in results) for choose in (min, max))
    span = (f"{min_count} to " if min_count < max_count else "") + counted(max_count, "measurement")
    each = " each" if len(results) > 1 else ""
    out_of = f" out of {counted(space_size, 'configuration')}" if space_size else ""
    return f"{outcome}, after {span}{each}{out_of}"


def _lead(data: ReportData) -> str:
    lines = [weak] if (weak := data.validation.weakness) else []
    if open_ones := sum(r.verdict == "inconclusive" for r in data.results):
        lines.append(
            f"{counted(open_ones, 'problem')} inconclusive: the interval includes 1 and a gain "
            "worth having. A longer search or a quieter machine may settle that."
        )
    if 0 < sum(r.verified for r in data.results) < len(data.results):
        lines.append("Without a measurable win, the default stays and counts as 1.00×.")
    against = [r.versus_library for r in data.results if r.versus_library]
    if against:
        names = " and ".join(sorted({r.library.name for r in data.results if r.library}))
        wins, ratios = sum(c.wins for c in against), [c.ratio for c in against]
        mean = (
            f", {ratio(_geometric_mean(ratios))} in the geometric mean" if len(ratios) > 1 else ""
        )
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


def _is_unseen(result: TuneResult, runs: pd.DataFrame) -> bool:
    """Whether ``runs`` hold only this problem's own search."""
    same = np.ones(len(runs), dtype=bool)
    for name, value in result.problem.items():
        same &= (
            (runs[f"problem.{name}"] == value).to_numpy() if f"problem.{name}" in runs else False
        )
    searched = {step.config for step in result.trace}
    return all(m.config in searched for m in to_measurements(runs[same]))


def _geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


class ReportObserver(CampaignObserver):
    """Writes ``report.html`` when a campaign finishes."""

    def on_start(self, start: CampaignStart) -> None:
        """Remember what the report is about."""
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
    return ReportData(
        kernel=kernel.name,
        kernel_location=kernel.location or kernel.name,
        device=device,
        objective=results[0].objective,
        runs=runs,
        validation=campaign.training.validation,
        learned=predictor.training_,
        results=results,
        importance=parameter_importance(
            predictor, [r.problem for r in results], kernel.space, device
        ),
        environment=str(runs["environment"].iloc[-1]),
        started_at=str(runs["recorded_at"].min()),
        seconds=campaign.seconds,
        mlflow_uri=campaign.mlflow_uri,
        rates=[list(rates(kernel, r, device)) for r in results],
        space_size=max(len(kernel.space(r.problem)) for r in results),
        attribution=importance(predictor) if is_explainable(predictor) else None,
    )
