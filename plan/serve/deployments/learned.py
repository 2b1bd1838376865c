"""Fits the latency correction, or loads it from the cache."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import foretune.features
import foretune.models
import foretune.plan.cost
import foretune.plan.describe
import foretune.plan.serve.deployments
from foretune.code_hash import packages_hash
from foretune.collect.devices import cache_directory
from foretune.errors import MissingExtra, OutputError, PredictorError
from foretune.operator_package import package_folder
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.cost.trained_cache import TrainedPredictorCache
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.correction import LatencyPredictor, package_versions
from foretune.plan.serve.deployments.measured import read_measured_deployments

PUBLISHED = "published"
"""Names the deployments that come with aiconfigurator-core."""
CODE_PACKAGES = (
    foretune.features,
    foretune.models,
    foretune.plan.cost,
    foretune.plan.describe,
    foretune.plan.serve.deployments,
)
"""Packages whose code determines the correction."""


def fit_or_load_correction(
    name: str,
    progress: Callable[[str], None] = lambda text: None,
    predictors: TrainedPredictorCache | None = None,
) -> LatencyPredictor:
    """Return the latency correction of a table of measured deployments.

    Fitting takes minutes, plus some for each system without operator predictors. The result is
    cached under the table's content and the versions it depends on.

    Args:
        name: a table of measured deployments, a file from `LatencyPredictor.save`, or
            ``published``.
        progress: receives a message before a long fit.
        predictors: cache of operator predictors; None takes the user's, without progress.

    Raises:
        MissingExtra: ``published`` without aiconfigurator-core.
        PredictorError: the file is not a correction.
        WrongFile: the file is not a table of measured deployments.
    """
    path = _published_table() if name == PUBLISHED else Path(name)
    if path.suffix == ".json":
        return LatencyPredictor.load(path)
    table = read_measured_deployments(path)
    cached_path = cache_directory() / f"deployments-{_fingerprint(path)}.json"
    with suppress(PredictorError):
        return LatencyPredictor.load(cached_path)
    progress(f"fitting to {len(table.deployments)} measured deployments (once, takes minutes)")
    rows = analytic_times(table.deployments, StepTimerFactory(find_tables(), predictors))
    correction = LatencyPredictor().fit(rows, table.measured, table.groups, path.name)
    with suppress(OutputError):  # without a writable cache, only the next plan is slower
        correction.save(cached_path)
    return correction


def _published_table() -> Path:
    home = package_folder()
    if home is None:
        raise MissingExtra("aiconfigurator-core", "llm", "--measured published")
    return home / "systems" / "silicon_sample.csv"


def _fingerprint(path: Path) -> str:
    """Return a hash of the training data, versions and code."""
    digest = hashlib.sha256(path.read_bytes())
    tables = find_tables()
    inputs = {
        "versions": package_versions(),
        "code": packages_hash(*CODE_PACKAGES),
        "tables": [str(folder) for folder in tables.folders] if tables else [],
    }
    digest.update(json.dumps(inputs, sort_keys=True).encode())
    return digest.hexdigest()[:16]
