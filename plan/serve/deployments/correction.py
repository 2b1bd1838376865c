"""Corrects analytic latencies with measured deployments: a table's, or a few of one's own stack.

A grouped Gaussian process predicts log(measured / formula). The interval's width comes from
held-out models for unknown models, and from held-out configurations for known ones. The lines of a
user's own stack are results of ``vllm bench serve --save-result`` or ``sglang.bench_serving``.
Their errors condition another such process, which determines how far each candidate shares them.
"""

import hashlib
import importlib.resources
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd

import foretune.features
import foretune.models
import foretune.plan.cost
import foretune.plan.describe
import foretune.plan.serve.deployments
from foretune.collect.devices import cache_directory
from foretune.errors import MissingExtra, OutputError, PredictorError, RunTableError, UsageError
from foretune.plan.cost.operator_predictor import TrainedPredictorCache
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.describe.catalog import System
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, checkpoint_formats
from foretune.plan.describe.layout import Layout, Workload, illegal_because
from foretune.plan.serve.deployments.analytic import StepTimers, analytic_times, formula_latencies
from foretune.plan.serve.deployments.deployment import Deployment, read_measured_deployments
from foretune.plan.serve.deployments.group_process import (
    COMPONENTS,
    NOISE,
    GroupedGaussianProcess,
    deployment_points,
)
from foretune.support.code_hash import packages_hash
from foretune.support.files import atomic_write, read_bytes, read_json, translate_read_errors
from foretune.support.operator_package import package_folder
from foretune.version import __version__

TARGETS = ("tpot_ms", "ttft_ms")
Metric = Literal["tokens_per_s", "tpot_ms", "ttft_ms"]
MIN_VARIANCE = 1e-12
COVERAGE = 0.9
INNER_FOLDS = 5
MIN_PROBABILITY = 0.85
"""Minimum probability of meeting the latency limits. The fastest deployment that is predicted to
meet a limit is likely predicted too well; with this, one choice in twenty misses a limit."""
DEGREES_OF_FREEDOM = 3.0
"""Degrees of freedom of the errors' Student's t; most errors are small, some are very large.

Half of them are within 0.31 of half a 90 % interval. This distribution gives 0.33, a normal one
0.41.
"""
T_QUANTILE_95 = 2.353363
"""Half a 90 % interval, in scales of that distribution."""
PACKAGES = ("aiconfigurator-core", "aisimulate", "xgboost", "xgboost-cpu")
"""Packages that influence a correction: measured operators and boosted trees."""


def package_versions() -> dict[str, str]:
    """Return the versions of Foretune and of the installed `PACKAGES`."""
    versions = {"foretune": __version__}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


@dataclass
class LatencyPredictor:
    """Latencies of deployments: closed formulas, a learned correction, and intervals.

    Attributes:
        widths: half width of the interval in standard deviations, per target: of unknown and of
            known models.
    """

    processes: dict[str, GroupedGaussianProcess] = field(default_factory=dict)
    widths: dict[str, list[float]] = field(default_factory=dict)
    known_models: frozenset[str] = frozenset()

    def fit(self, rows: pd.DataFrame, measured: pd.DataFrame, groups: np.ndarray) -> Self:
        """Fit to measured deployments; ``rows`` are from `analytic_times`.

        ``measured`` has ``tpot_ms`` and ``ttft_ms``. ``groups`` labels each row's configuration,
        whose loads are held out together.
        """
        rows, measured = rows.reset_index(drop=True), measured.reset_index(drop=True)
        self.fit_processes(rows, measured)
        for seen, split in ((False, rows["model"].to_numpy(dtype=str)), (True, groups)):
            fold = _folds(np.asarray(split))
            if fold.max() > 0:
                self._fit_widths(rows, measured, fold, seen)
        return self

    def fit_processes(self, rows: pd.DataFrame, measured: pd.DataFrame) -> Self:
        """Fit the processes, with their own intervals."""
        self.known_models = frozenset(rows["model"])
        self.processes = _fit_processes(rows, measured, formula_latencies(rows), TARGETS)
        self.widths = {target: [T_QUANTILE_95, T_QUANTILE_95] for target in TARGETS}
        return self

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``tpot_ms`` and ``ttft_ms``, each with ``_low`` and ``_high`` (90 %)."""
        mean, spread = self.predict_mean(rows)
        columns: dict[str, pd.Series] = {}
        for target in TARGETS:
            factor = np.exp(self._row_widths(rows, target) * spread[target])
            columns |= {
                target: mean[target],
                f"{target}_low": mean[target] / factor,
                f"{target}_high": mean[target] * factor,
            }
        return pd.DataFrame(columns, index=rows.index)

    def covariances(self, rows: pd.DataFrame) -> dict[str, np.ndarray]:
        """Return the covariance of the rows' log errors, per target (rows, rows).

        Layouts of one model on one system share most of their error. Square roots of the diagonal
        are scales of Student's t, with the 90 % interval of `predict`.
        """
        points, scaled = deployment_points(rows), {}
        for target, process in self.processes.items():
            widths = self._row_widths(rows, target) / T_QUANTILE_95
            scaled[target] = process.covariance(points) * np.outer(widths, widths)
        return scaled

    def predict_mean(self, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the latencies, and the standard deviations of their logarithms."""
        mean, spread = formula_latencies(rows), pd.DataFrame(index=rows.index)
        points = deployment_points(rows)
        for target, process in self.processes.items():
            error, spread[target] = process.predict(points)
            mean[target] *= np.exp(error)
        return mean, spread

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the correction as one JSON file."""
        content = {
            "known": sorted(self.known_models),
            "widths": self.widths,
            "processes": {target: one.to_json() for target, one in self.processes.items()},
        }
        text = json.dumps(content)
        with atomic_write(path, what="the correction ") as new:
            new.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file from `save`; raises PredictorError if it is not a correction."""
        says = "is not a latency correction, or is damaged ({}): train it again"
        with translate_read_errors(path, PredictorError, says):
            data = read_json(path)
            return cls(
                processes={
                    t: GroupedGaussianProcess.from_json(p) for t, p in data["processes"].items()
                },
                widths={target: list(map(float, data["widths"][target])) for target in TARGETS},
                known_models=frozenset(data["known"]),
            )

    def _fit_widths(
        self, rows: pd.DataFrame, measured: pd.DataFrame, fold: np.ndarray, seen: bool
    ) -> None:
        """Fit the intervals' widths to rows held out in folds."""
        predicted, spread = (
            pd.DataFrame(0.0, index=rows.index, columns=list(TARGETS)) for _ in range(2)
        )
        for number in np.unique(fold):
            out = fold == number
            held_out = type(self)().fit_processes(rows[~out], measured[~out])
            predicted[out], spread[out] = held_out.predict_mean(rows[out])
        level = min(COVERAGE * (1.0 + 1.0 / len(rows)), 1.0)
        for target in TARGETS:
            scores = np.abs(_log_ratio(measured[target], predicted[target])) / spread[target]
            self.widths[target][seen] = float(np.quantile(scores, level))

    def _row_widths(self, rows: pd.DataFrame, target: str) -> np.ndarray:
        seen = rows["model"].isin(self.known_models).to_numpy()
        return np.array(self.widths[target])[seen.astype(int)]


def _fit_processes(
    rows: pd.DataFrame, measured: pd.DataFrame, predicted: pd.DataFrame, targets: Iterable[str]
) -> dict[str, GroupedGaussianProcess]:
    """Return the process of each target's log(measured / predicted)."""
    points = deployment_points(rows)
    return {
        target: GroupedGaussianProcess(COMPONENTS[target], NOISE[target]).fit(
            points, _log_ratio(measured[target], predicted[target])
        )
        for target in targets
    }


def _log_ratio(measured: "pd.Series[float]", analytic: "pd.Series[float]") -> np.ndarray:
    return np.log(measured.to_numpy(dtype=float) / analytic.to_numpy(dtype=float))


def _folds(groups: np.ndarray) -> np.ndarray:
    """Return a fold per row: groups stay together, folds are of similar size."""
    names, sizes = np.unique(groups, return_counts=True)
    fold_of, filled = {}, np.zeros(min(INNER_FOLDS, len(names)))
    for i in np.argsort(-sizes, kind="stable"):
        fold_of[names[i]] = smallest = int(np.argmin(filled))
        filled[smallest] += sizes[i]
    return np.array([fold_of[group] for group in groups])


def probability_within(latencies: pd.DataFrame, target: str, limit_ms: float) -> np.ndarray:
    """Return the probability that deployments meet a limit when measured.

    ``latencies`` has ``target`` and ``<target>_high``, as from `LatencyPredictor.predict`.
    """
    value = latencies[target].to_numpy(dtype=float)
    spread = np.log(latencies[f"{target}_high"].to_numpy(dtype=float) / value) / T_QUANTILE_95
    if np.isinf(limit_ms):
        return np.ones(len(value))
    return probability_below(np.log(limit_ms / value) / np.maximum(spread, 1e-9))


def probability_below(values: np.ndarray) -> np.ndarray:
    """Return the probability that an error is below ``values``, in scales of its distribution."""
    from scipy.special import stdtr

    return stdtr(DEGREES_OF_FREEDOM, values)


def pairwise_better(value: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the probability that each value (rows) exceeds each other (columns) when measured.

    Value and covariance are from `log_metric`. It is 0.5 on the diagonal.
    """
    marginal = np.diag(covariance)
    variance = np.maximum(marginal[:, None] + marginal[None, :] - 2.0 * covariance, MIN_VARIANCE)
    return probability_below((value[:, None] - value[None, :]) / np.sqrt(variance))


def log_metric(
    correction: LatencyPredictor, rows: pd.DataFrame, metric: Metric
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log of a metric, more being better, and the covariance of its errors.

    The throughput's error combines those of TTFT and TPOT, weighted by their shares of a request
    and taken as independent.
    """
    mean, _ = correction.predict_mean(rows)
    tokens = np.maximum(rows["osl"].to_numpy(dtype=float) - 1.0, 0.0)
    components = {
        "ttft_ms": mean["ttft_ms"].to_numpy(),
        "tpot_ms": mean["tpot_ms"].to_numpy() * tokens,
    }
    request_ms = components["ttft_ms"] + components["tpot_ms"]
    if metric == "tokens_per_s":
        per_gpu = rows["concurrency"] * rows["osl"] / rows["gpus"]
        value = np.log(per_gpu.to_numpy(dtype=float) / request_ms)
        weights = {target: part / request_ms for target, part in components.items()}
    else:
        value = -np.log(mean[metric].to_numpy())
        weights = {target: np.full(len(rows), float(target == metric)) for target in components}
    errors = correction.covariances(rows)
    return value, sum(
        (errors[target] * np.outer(weights[target], weights[target]) for target in components),
        np.zeros((len(rows), len(rows))),
    )


PUBLISHED = "published"
"""Name of the deployments that come with aiconfigurator-core."""
CODE_PACKAGES = (
    foretune.features,
    foretune.models,
    foretune.plan.cost,
    foretune.plan.describe,
    foretune.plan.serve.deployments,
)
"""Packages whose code determines the correction."""
DATA_FILES = (
    "cost/kinds.csv",
    "describe/checkpoint_formats.json",
    "describe/config_fields.json",
    "describe/engines.json",
    "describe/families.json",
    "describe/formats.csv",
    "describe/models.csv",
    "serve/deployments/ttft.csv",
    "serve/deployments/variances.csv",
)
"""Shipped tables that determine it."""


def fit_or_load_correction(
    name: str,
    progress: Callable[[str], None] = lambda text: None,
    predictors: TrainedPredictorCache | None = None,
) -> LatencyPredictor:
    """Return the latency correction of a table of measured deployments.

    Fitting takes minutes, and a few more for each system without operator predictors. The result is
    cached by the table's content and the versions that it depends on.

    Args:
        name: a table of measured deployments, or ``published``.
        progress: receives a message before a long fit.
        predictors: cache of operator predictors; None takes the user's, without progress.

    Raises:
        MissingExtra: ``published`` without aiconfigurator-core.
        WrongFile: the file is not a table of measured deployments.
    """
    path, home = Path(name), package_folder()
    if name == PUBLISHED:
        if home is None:
            raise MissingExtra("aiconfigurator-core", "llm", "--measured published")
        path = home / "systems" / "silicon_sample.csv"
    table = read_measured_deployments(path)
    cached_path = cache_directory() / f"deployments-{_fingerprint(path)}.json"
    with suppress(PredictorError):
        return LatencyPredictor.load(cached_path)
    progress(f"fitting to {len(table.deployments)} measured deployments (once, takes minutes)")
    rows = analytic_times(table.deployments, StepTimerFactory(find_tables(), predictors))
    correction = LatencyPredictor().fit(rows, table.measured, table.groups)
    with suppress(OutputError):  # without a writable cache, only the next plan is slower
        correction.save(cached_path)
    return correction


def _fingerprint(path: Path) -> str:
    """Return a hash of the training data, versions and code."""
    digest = hashlib.sha256(path.read_bytes())
    for name in DATA_FILES:
        digest.update((importlib.resources.files("foretune.plan") / name).read_bytes())
    tables = find_tables()
    inputs = {
        "versions": package_versions(),
        "code": packages_hash(*CODE_PACKAGES),
        "tables": [str(folder) for folder in tables.folders] if tables else [],
    }
    digest.update(json.dumps(inputs, sort_keys=True).encode())
    return digest.hexdigest()[:16]


MIN_LINES = {"tpot_ms": 1, "ttft_ms": 8}
"""Minimum lines for correcting a latency; with fewer, times to the first token do not improve."""
TOKENS = ("input", "output")


@dataclass
class Calibration:
    """Corrections from a stack's lines: processes of log(measured / predicted), by latency."""

    processes: dict[str, GroupedGaussianProcess]

    @classmethod
    def fit(
        cls, rows: pd.DataFrame, measured: pd.DataFrame, correction: LatencyPredictor | None
    ) -> Self:
        """Condition on deployments; ``rows`` are from `analytic_times`."""
        predicted = correction.predict(rows) if correction else formula_latencies(rows)
        targets = [target for target, count in MIN_LINES.items() if len(rows) >= count]
        return cls(_fit_processes(rows, measured, predicted, targets))

    def apply(self, rows: pd.DataFrame, latencies: pd.DataFrame) -> pd.DataFrame:
        """Return shifted latencies, with their intervals; ``rows`` are from `analytic_times`."""
        points = deployment_points(rows)
        for target, process in self.processes.items():
            factor = np.exp(process.predict(points)[0])
            columns = [name for name in latencies if name.startswith(target)]
            latencies = latencies.assign(**{name: latencies[name] * factor for name in columns})
        return latencies


def read_calibration(
    path: Path,
    model: ModelDescription,
    system: System,
    backend: str,
    timers: StepTimers,
    correction: LatencyPredictor | None = None,
) -> Calibration:
    """Return a file's calibration; raises RunTableError, or UsageError for other models."""
    lines = _read_lines(path)
    deployments = [_deployment(line, model, system, backend, path) for line in lines]
    targets = {"tpot_ms": "median_tpot_ms", "ttft_ms": "median_ttft_ms"}
    measured = pd.DataFrame(
        {target: [_number(line, name, path) for line in lines] for target, name in targets.items()}
    )
    return Calibration.fit(analytic_times(deployments, timers), measured, correction)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object, a list of them, or one per line."""
    with translate_read_errors(path, RunTableError, "is not a result of a serving benchmark: {}"):
        text, decoder = read_bytes(path).decode("utf-8").strip(), json.JSONDecoder()
        found: list[dict[str, Any]] = []
        while text:
            value, end = decoder.raw_decode(text)
            found += value if isinstance(value, list) else [value]
            text = text[end:].lstrip()
        if not found or not all(isinstance(line, dict) for line in found):
            raise ValueError("no JSON objects")
    return found


def _deployment(
    line: Mapping[str, Any], model: ModelDescription, system: System, backend: str, path: Path
) -> Deployment:
    """Return a line's deployment: vLLM's ``--metadata``, or SGLang's reported arguments."""
    server = line.get("server_info")
    server = server if isinstance(server, dict) else {}
    name = str(line.get("model_id") or server.get("model_path") or model.name)
    if name.rpartition("/")[2].lower() != model.name.rpartition("/")[2].lower():
        raise UsageError(f"--calibrate {path} is of {name}: give lines of {model.name}")
    try:
        groups = int(server.get("dp_size") or 1) if server.get("enable_dp_attention") else 1
        tp = int(line.get("tp") or server.get("tp_size", groups)) // groups
        dp = int(line.get("dp") or groups)
        pp, ep = (int(line.get(key) or server.get(f"{key}_size") or 1) for key in ("pp", "ep"))
        layout = Layout.from_labels(model, tp, pp, dp, max(tp * dp // ep, 1), ep)
    except (TypeError, ValueError, ZeroDivisionError) as e:
        raise RunTableError(f"{path}: tp, pp, dp and ep are not all numbers ({e})") from e
    published = checkpoint_formats(model)
    formats = Formats(
        str(line.get("weights", published.weights)),
        kv=str(line.get("kv", published.kv)),
        moe=str(line.get("moe", line.get("weights", published.moe))),
    )
    if reason := illegal_because(model, layout, formats):
        raise UsageError(f"--calibrate {path}: {model.name} cannot be served on {layout}: {reason}")
    requests = _number(line, "completed", path)
    isl, osl = (_number(line, f"total_{kind}_tokens", path) / requests for kind in TOKENS)
    return Deployment(
        model,
        system,
        backend,
        layout,
        formats,
        Workload(max(round(isl), 1), max(round(osl), 1)),
        _number(line, "max_concurrency", path),
    )


def _number(line: Mapping[str, Any], name: str, path: Path) -> float:
    value = line.get(name)
    if not isinstance(value, (int, float)) or not 0 < value < np.inf:
        raise RunTableError(f"{path}: {name} is {value}, not a positive number")
    return float(value)
