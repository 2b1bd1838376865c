"""The report of a campaign: one self-contained HTML page."""

import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from foretune.datasets.runs import read_runs
from foretune.datasets.schema import columns_of
from foretune.device import SPECS, Device
from foretune.models import explanation
from foretune.models.validation.cross_validation import Validation
from foretune.objective import Objective
from foretune.tune.campaign.observer import Campaign, CampaignObserver, CampaignStart
from foretune.tune.outcome import outcome
from foretune.tune.report import figures
from foretune.tune.report.page import duration, percent, ratio, render, write_page
from foretune.tune.report.validation_page import METRICS, TARGETS, prediction_clouds
from foretune.tune.results import TuneResult
from foretune.values import counted

MAX_PARETO_CHARTS = 6
MAX_FEATURES_PER_GROUP = 4
"""Features that are named per group."""
MIN_PARETO_RUNS = 3
"""Problems with fewer runs get no Pareto chart."""
STRIP = (5.0, 155.0)
"""Ends of a strip of ratios, in pixels."""


@dataclass(frozen=True)
class ReportData:
    """Content of a report.

    Attributes:
        learned: counts the ``rows`` and ``problems`` of training.
        importance: columns ``parameter``, ``factor`` and, if known, ``best``.
        started_at: ISO time of the campaign's start.
        seconds: what the campaign took.
        mlflow_uri: None if the campaign is not tracked.
        kernel_location: the kernel's name in commands, if it differs.
        store: path or URL of the choices' store; empty for the user's own, None if there is none.
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
    store: str | None = ""


def write_report(path: str | os.PathLike[str], data: ReportData) -> Path:
    """Write the report to ``path`` and return it; on failure (OutputError) an old file remains."""
    results = data.results
    problems = [str(result.problem) for result in results]
    roofline = None
    if any(data.rates):
        roofline = figures.roofline_figure(problems, data.rates, data.device)
    energies = energy_by_problem(data.runs)
    worth = data.importance.sort_values("factor", ascending=False)
    steps = [step for result in results for step in result.trace]
    page = render(
        Path(__file__).with_name("campaign.html"),
        title=f"{data.kernel} on {data.device.name}",
        headline=headline(results, data.space_size),
        lead=_lead(data),
        tiles=_tiles(data),
        data=data,
        place=ratio_positions(results),
        libraries=_library_names(results),
        predicted=is_predicted(results),
        failed=any(step.status != "ok" for step in steps),
        figures=figures,
        roofline=roofline,
        clouds=list(prediction_clouds(data.validation)),
        targets=TARGETS,
        metrics=METRICS,
        worth=worth.to_dict("records"),
        rests_on=list(strongest_features(data.attribution)),
        metered=None if energies is None else len(energies),
        shown=(energies or [])[:MAX_PARETO_CHARTS],
        failures=list(failures(data.runs)),
        rounds=_range([result.rounds for result in results], "{:,}"),
        specs=SPECS,
        store_option=f" --store {shlex.quote(data.store)}" if data.store else "",
    )
    return write_page(path, page)


def headline(results: Sequence[TuneResult], space_size: int) -> str:
    """Return a campaign's outcome in one sentence; none of its problems was profiled."""
    counts = [len(result.trace) for result in results]
    measurements = counted(max(counts), "measurement")
    if min(counts) < max(counts):
        measurements = f"{min(counts)} to {measurements}"
    if len(results) > 1:
        measurements += " each"
    configurations = counted(space_size, "configuration")
    return f"{outcome(results, 'unseen problem')}, after {measurements} out of {configurations}"


def _range(numbers: Sequence[int], form: str) -> str:
    """Return the smallest and the largest number; only one if all are equal."""
    ends = sorted({min(numbers), max(numbers)}) if numbers else []
    return " to ".join(form.format(number) for number in ends)


def _library_names(results: Sequence[TuneResult]) -> list[str]:
    return sorted({result.library.name for result in results if result.library})


def _lead(data: ReportData) -> str:
    """Return what a reader has to know beside the headline: weak models, open verdicts, load."""
    results = data.results
    sentences = [data.validation.weakness]

    n_open = sum(result.verdict == "inconclusive" for result in results)
    if n_open:
        sentences.append(
            f"{counted(n_open, 'problem')} inconclusive: the interval includes 1 and a relevant "
            "gain. A longer search or a quieter machine may settle that."
        )
    n_busy_wins = sum(result.busy_win is not None for result in results)
    if n_busy_wins:
        sentences.append(
            f"{n_busy_wins} of these won on this busy machine only: winner and default use the "
            "cores differently. A quiet machine decides."
        )
    disturbed = [result.noise for result in results if result.noise.disturbed]
    if disturbed:
        most = max(disturbed, key=lambda noise: noise.others)
        sentences.append(
            f"{counted(len(disturbed), 'verification')} ran beside other load; the most: "
            f"{most.disturbed}."
        )
    if 0 < sum(result.verified for result in results) < len(results):
        sentences.append("Without a measurable win, the default stays and counts as 1.00×.")
    sentences.append(_against_library(data))
    return " ".join(filter(None, sentences))


def _against_library(data: ReportData) -> str:
    """Return how the winners compare with library calls; empty if there are none."""
    compared = [result.versus_library for result in data.results]
    comparisons = [comparison for comparison in compared if comparison is not None]
    if not comparisons:
        return ""
    names = " and ".join(_library_names(data.results))
    better = "faster" if data.objective is Objective.TIME else "better"
    n_wins = sum(comparison.wins for comparison in comparisons)
    mean = ""
    if len(comparisons) > 1:
        mean_ratio = geometric_mean([comparison.ratio for comparison in comparisons])
        mean = f", {ratio(mean_ratio)} in the geometric mean"
    return f"Against {names}: {better} on {n_wins} of {len(comparisons)}{mean}."


def _tiles(data: ReportData) -> dict[str, str]:
    """Return the figures on top of the page."""
    scores_of_models = data.validation.scores.get("time_ms", {}).get("grouped", {})
    own_scores = next(iter(scores_of_models.values()), {})  # the model's own come first
    return {
        "measurements in training": f"{data.learned['rows']:,}",
        "problems in training": f"{data.learned['problems']:,}",
        "median error of predicted time, whole problems held out": percent(
            own_scores.get("median_ape", math.nan)
        ),
        "from start to report": duration(data.seconds),
    }


class ReportObserver(CampaignObserver):
    """Writes ``report.html`` when a campaign finishes."""

    def on_start(self, start: CampaignStart) -> None:
        """Store the subject of the report."""
        self._start = start

    def on_finish(self, campaign: Campaign) -> None:
        """Write the report."""
        runs = read_runs(self._start.folder.runs)
        data = _report_data(self._start, campaign, runs)
        write_report(campaign.report, data)


def _report_data(start: CampaignStart, campaign: Campaign, runs: pd.DataFrame) -> ReportData:
    kernel = start.kernel
    device = start.device
    predictor = campaign.training.predictor
    results = list(campaign.results)
    problems = [result.problem for result in results]
    importance = explanation.parameter_importance(predictor, problems, kernel.space, device)
    attribution = None
    if explanation.is_explainable(predictor):
        attribution = explanation.importance(predictor)
    return ReportData(
        kernel=kernel.name,
        kernel_location=kernel.location or kernel.name,
        device=device,
        objective=results[0].objective,
        runs=runs,
        validation=campaign.training.validation,
        learned=predictor.training_,
        results=results,
        importance=importance,
        environment=str(runs["environment"].iloc[-1]),
        started_at=str(runs["recorded_at"].min()),
        seconds=campaign.seconds,
        mlflow_uri=campaign.mlflow_uri,
        rates=[list(figures.rates(kernel, result, device)) for result in results],
        space_size=max(len(kernel.space(problem)) for problem in problems),
        attribution=attribution,
        store=start.folder.state.get("store", ""),
    )


def is_predicted(results: Sequence[TuneResult]) -> bool:
    """Whether the searches minimized time and had predictions of it."""
    for result in results:
        has_predictions = any(math.isfinite(step.predicted_ms) for step in result.trace)
        if result.objective is Objective.TIME and has_predictions:
            return True
    return False


class FeatureGroup(NamedTuple):
    """A group of features: its typical effect, and its strongest features as records."""

    name: str
    factor: float
    features: list[dict[str, Any]]


def strongest_features(attribution: explanation.Importance | None) -> Iterator[FeatureGroup]:
    """Yield each group of features with those of its features that matter most."""
    if attribution is None:
        return
    effective = attribution.features[attribution.features["mean"] > 0]
    for group in attribution.groups.to_dict("records"):
        strongest = effective[effective["group"] == group["group"]].head(MAX_FEATURES_PER_GROUP)
        yield FeatureGroup(
            name=explanation.FEATURE_GROUPS.get(group["group"], group["group"]),
            factor=group["factor"],
            features=strongest.to_dict("records"),
        )


class ProblemEnergies(NamedTuple):
    """The runs of one problem: arrays of times and of energies per launch."""

    problem: str
    time_ms: np.ndarray
    energy_mj: np.ndarray


def energy_by_problem(runs: pd.DataFrame) -> list[ProblemEnergies] | None:
    """Return the energies of every problem, most runs first; None without a meter."""
    succeeded = runs[runs["status"] == "ok"]
    if "power_w" not in succeeded or succeeded["power_w"].isna().all():
        return None
    energy_mj = succeeded["power_w"] * succeeded["time_ms"]
    metered = succeeded.assign(energy_mj=energy_mj).dropna(subset="energy_mj")

    columns = columns_of(runs, "problem")
    names = [column.removeprefix("problem.") for column in columns]
    energies = []
    for sizes, rows in metered.groupby(columns, sort=False, observed=True, dropna=False):
        if len(rows) < MIN_PARETO_RUNS:
            continue
        energies.append(
            ProblemEnergies(
                problem=", ".join(f"{n}={size}" for n, size in zip(names, sizes, strict=True)),
                time_ms=rows["time_ms"].to_numpy(float),
                energy_mj=rows["energy_mj"].to_numpy(float),
            )
        )
    return sorted(energies, key=lambda problem: len(problem.time_ms), reverse=True)


def failures(runs: pd.DataFrame) -> Iterator[tuple[str, int, str]]:
    """Yield each failure status with its count and the first error message."""
    failed = runs[runs["status"] != "ok"]
    for status, rows in failed.groupby("status", sort=False, observed=True):
        errors = rows["error"].dropna().astype(str) if "error" in rows else ()
        first_error = next((error for error in errors if error.strip()), "–")
        yield str(status), len(rows), first_error


def ratio_positions(results: Sequence[TuneResult]) -> Callable[[float], float]:
    """Return a function from a ratio to the default to its place in a strip of pixels.

    The strip is logarithmic, and holds the ratios of all results.
    """
    ratios = [0.95, 1.05]
    for result in results:
        shown = result.winner if result.verified else result.leader
        ratios += [shown.ratio_low, shown.ratio, shown.ratio_high]
        if result.library:
            ratios.append(result.baseline.value / result.library.value)
    logs = [math.log(ratio) for ratio in ratios if math.isfinite(ratio) and ratio > 0]
    ends = [min(logs), max(logs)]

    def place(ratio: float) -> float:
        log = math.log(ratio) if ratio > 0 else -math.inf
        return round(float(np.interp(log, ends, STRIP)), 1)

    return place
