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
from foretune.collect.probe import cache_directory
from foretune.errors import MissingExtra, OutputError, PredictorError
from foretune.operator_package import package_home
from foretune.plan.cost.clocks import OperatorClocks
from foretune.plan.cost.kept_predictors import KeptPredictors
from foretune.plan.cost.tables import find_tables
from foretune.plan.serve.deployments.correction import ServingCorrection
from foretune.plan.serve.deployments.measured import read_measured_deployments
from foretune.plan.serve.deployments.origin import Origin
from foretune.plan.serve.deployments.physics import physics
from foretune.source import packages_hash

PUBLISHED = "published"
"""Stands for the deployments that come with aiconfigurator-core."""
LEARNING = (
    foretune.features,
    foretune.models,
    foretune.plan.cost,
    foretune.plan.describe,
    foretune.plan.serve.deployments,
)
"""Packages whose code decides what is learned."""


def learned_from(
    name: str,
    say: Callable[[str], None] = lambda text: None,
    predictors: KeptPredictors | None = None,
) -> ServingCorrection:
    """Return what measured deployments say about the errors of the physics.

    Learning takes minutes, and some more per system whose operators have no predictors yet, once:
    what was learned is kept in the user's cache directory, by the table's content and the versions
    that it depends on.

    Args:
        name: a table of measured deployments, a file that `ServingCorrection.save` wrote, or
            ``published``.
        say: told what takes long.
        predictors: what measured operators taught; None takes the user's cache, and says nothing.

    Raises:
        MissingExtra: ``published``, without the package.
        PredictorError: the file holds no correction.
        WrongFile: it is no table of measured deployments.
    """
    path = _published() if name == PUBLISHED else Path(name)
    if path.suffix == ".json":
        return ServingCorrection.load(path)
    read = read_measured_deployments(path)
    kept = cache_directory() / f"deployments-{_fingerprint(path)}.json"
    with suppress(PredictorError):
        return ServingCorrection.load(kept)
    say(f"learning from {len(read.deployments)} measured deployments, once: it takes minutes")
    rows = physics(read.deployments, OperatorClocks(find_tables(), predictors))
    correction = ServingCorrection().fit(rows, read.measured, read.groups, path.name)
    with suppress(OutputError):  # a plan is worth more than that the next one is quick
        correction.save(kept)
    return correction


def _published() -> Path:
    home = package_home()
    if home is None:
        raise MissingExtra("aiconfigurator-core", "llm", "--measured published")
    return home / "systems" / "silicon_sample.csv"


def _fingerprint(path: Path) -> str:
    """Return what was learned from, and with what, as a name."""
    digest = hashlib.sha256(path.read_bytes())
    tables = find_tables()
    known = {
        **Origin.now("", 0).to_json(),
        "code": packages_hash(*LEARNING),
        "tables": [str(folder) for folder in tables.folders] if tables else [],
    }
    digest.update(json.dumps(known, sort_keys=True).encode())
    return digest.hexdigest()[:16]
