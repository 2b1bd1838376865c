"""What measured deployments taught: read, or learned once and kept for the next plan."""

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
from foretune.plan.cost.clocks import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.cost.trained_cache import TrainedPredictorCache
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.correction import LatencyPredictor
from foretune.plan.serve.deployments.measured import read_measured_deployments
from foretune.plan.serve.deployments.origin import Origin

PUBLISHED = "published"
"""Stands for the deployments that come with aiconfigurator-core."""
CODE_PACKAGES = (
    foretune.features,
    foretune.models,
    foretune.plan.cost,
    foretune.plan.describe,
    foretune.plan.serve.deployments,
)
"""Packages whose code decides what is learned."""


def fit_or_load_correction(
    name: str,
    progress: Callable[[str], None] = lambda text: None,
    predictors: TrainedPredictorCache | None = None,
) -> LatencyPredictor:
    """Return what measured deployments say about the errors of the physics.

    Learning takes minutes, and some more per system whose operators have no predictors yet, once:
    what was learned is kept in the user's cache directory, by the table's content and the versions
    that it depends on.

    Args:
        name: a table of measured deployments, a file that `LatencyPredictor.save` wrote, or
            ``published``.
        progress: told what takes long.
        predictors: what measured operators taught; None takes the user's cache, and says nothing.

    Raises:
        MissingExtra: ``published``, without the package.
        PredictorError: the file holds no correction.
        WrongFile: it is no table of measured deployments.
    """
    path = _published_table() if name == PUBLISHED else Path(name)
    if path.suffix == ".json":
        return LatencyPredictor.load(path)
    table = read_measured_deployments(path)
    cached_path = cache_directory() / f"deployments-{_fingerprint(path)}.json"
    with suppress(PredictorError):
        return LatencyPredictor.load(cached_path)
    progress(f"learning from {len(table.deployments)} measured deployments, once: it takes minutes")
    rows = analytic_times(table.deployments, StepTimerFactory(find_tables(), predictors))
    correction = LatencyPredictor().fit(rows, table.measured, table.groups, path.name)
    with suppress(OutputError):  # a plan is worth more than that the next one is quick
        correction.save(cached_path)
    return correction


def _published_table() -> Path:
    home = package_folder()
    if home is None:
        raise MissingExtra("aiconfigurator-core", "llm", "--measured published")
    return home / "systems" / "silicon_sample.csv"


def _fingerprint(path: Path) -> str:
    """Return what was learned from, and with what, as a name."""
    digest = hashlib.sha256(path.read_bytes())
    tables = find_tables()
    inputs = {
        **Origin.current("", 0).to_json(),
        "code": packages_hash(*CODE_PACKAGES),
        "tables": [str(folder) for folder in tables.folders] if tables else [],
    }
    digest.update(json.dumps(inputs, sort_keys=True).encode())
    return digest.hexdigest()[:16]
