"""The correction of a table of measured deployments, fitted once and kept in the cache folder."""

import hashlib
import importlib.resources
import json
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import foretune.features
import foretune.models
import foretune.plan.cost
import foretune.plan.describe
import foretune.plan.serve.deployments
from foretune.collect.devices import cache_directory
from foretune.errors import MissingExtra, OutputError, PredictorError
from foretune.plan.cost.operator_predictor import TrainedPredictorCache
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.correction import LatencyPredictor
from foretune.plan.serve.deployments.measured_deployments import read_measured_deployments
from foretune.support.code_hash import packages_hash
from foretune.support.operator_package import package_folder
from foretune.version import __version__

PUBLISHED = "published"
"""Name of the deployments that come with aiconfigurator-core."""
PACKAGES = ("aiconfigurator-core", "aisimulate", "xgboost", "xgboost-cpu")
"""Packages that influence a correction: measured operators and boosted trees."""
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
    "describe/layer_patterns.json",
    "describe/model_aliases.csv",
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
    path = _table_path(name)
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


def package_versions() -> dict[str, str]:
    """Return the versions of Foretune and of the installed `PACKAGES`."""
    versions = {"foretune": __version__}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _table_path(name: str) -> Path:
    """Return the path of a table, which is a file or `PUBLISHED`."""
    if name != PUBLISHED:
        return Path(name)
    folder = package_folder()
    if folder is None:
        raise MissingExtra("aiconfigurator-core", "llm", "--measured published")
    return folder / "systems" / "silicon_sample.csv"


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
