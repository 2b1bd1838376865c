"""Published quality of number formats: the share of a model's scores that they keep."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from statistics import median

from foretune.errors import RunTableError
from foretune.plan.describe import parse_rows, shipped_text
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import CACHE_FORMATS, FORMATS, Formats, base_format, find_format
from foretune.plan.describe.names import FORMAT_OF_SUFFIX
from foretune.plan.describe.user_tables import user_rows

LOSSLESS = ("bf16", "fp32")
"""Formats at least as wide as that of published checkpoints."""
EQUIVALENT_FORMATS = {"fp8_static": "fp8", "fp8_block": "fp8"}
"""Format -> format whose quality results it shares: finer scales lose no more."""


@dataclass(frozen=True)
class AccuracyResult:
    """One benchmark of one model in one format."""

    format: str  # weight format, as in `FORMATS`; cache formats are written ``kv:fp8``
    method: str
    model: str
    benchmark: str
    baseline: float
    quantized: float
    better: str  # ``higher`` or ``lower``
    source: str

    @property
    def recovery(self) -> float:
        """Share of the baseline's quality that is kept; 1 is all."""
        share = self.quantized / self.baseline
        return share if self.better == "higher" else 1 / share


RESULT_COLUMNS = tuple(field.name for field in fields(AccuracyResult))


@cache
def published_accuracy() -> tuple[AccuracyResult, ...]:
    """Return the results shipped with the package."""
    rows = parse_rows(shipped_text("accuracy.csv"), "accuracy.csv", RESULT_COLUMNS)
    return _parse_results(rows, "accuracy.csv")


def read_accuracy(path: str | os.PathLike[str]) -> tuple[AccuracyResult, ...]:
    """Return a user's results: a CSV file with the shipped table's columns.

    Raises RunTableError if the file cannot be read, lacks a column, or has an invalid row.
    """
    return _parse_results(user_rows(path, "qualities", RESULT_COLUMNS), str(path))


def recovery(
    formats: Formats,
    model: ModelDescription | None = None,
    results: Sequence[AccuracyResult] | None = None,
) -> float | None:
    """Return the share of quality that a deployment's formats keep; None if unpublished.

    It multiplies, over weight and cache formats, the median over results: of this model if there
    are any, else of all models. Formats that the model was published in lose nothing. ``results``
    replace the published ones.
    """
    known_results = published_accuracy() if results is None else results

    # Only formats that the model was not published in lose quality; the narrowest loses most.
    lossy = []
    native = {*LOSSLESS, model.weight_format, model.moe_format} if model else {*LOSSLESS}
    changed = {name for name in (formats.weights, formats.moe) if name not in native}
    if changed:
        narrowest = base_format(min(changed, key=lambda name: find_format(name).bytes))
        lossy.append(EQUIVALENT_FORMATS.get(narrowest, narrowest))
    native_caches = {*LOSSLESS, model.kv_format if model else "bf16"}
    if formats.kv not in native_caches:
        lossy.append(f"kv:{formats.kv}")

    kept_share = 1.0
    for name in lossy:
        of_format = [
            result
            for result in known_results
            if EQUIVALENT_FORMATS.get(result.format, result.format) == name
        ]
        if not of_format:
            return None
        of_model = [
            result
            for result in of_format
            if model and _base_name(result.model) == _base_name(model.name)
        ]
        kept_share *= median(result.recovery for result in of_model or of_format)
    return kept_share


def _base_name(name: str) -> str:
    """Return a model's name without its publisher and format."""
    words = name.rpartition("/")[2].lower().split("-")
    ignored = {"meta", "instruct", *FORMAT_OF_SUFFIX}
    return "-".join(word for word in words if word not in ignored)


def _parse_results(rows: Sequence[dict[str, str]], name: str) -> tuple[AccuracyResult, ...]:
    return tuple(_parse_result(row, f"{name}, row {i}") for i, row in enumerate(rows, 1))


def _parse_result(row: dict[str, str], where: str) -> AccuracyResult:
    try:
        baseline = float(row["baseline"])
        quantized = float(row["quantized"])
    except ValueError as e:
        raise RunTableError(f"{where}: baseline and quantized must be numbers ({e})") from e
    if min(baseline, quantized) <= 0:
        raise RunTableError(f"{where}: scores must be positive")
    if row["better"] not in ("higher", "lower"):
        raise RunTableError(f"{where}: better is 'higher' or 'lower', not {row['better']!r}")
    known = CACHE_FORMATS if row["format"].startswith("kv:") else FORMATS
    if row["format"].removeprefix("kv:") not in known:
        raise RunTableError(f"{where}: unknown number format {row['format']!r}")
    texts = {name: row[name] for name in RESULT_COLUMNS if name not in ("baseline", "quantized")}
    return AccuracyResult(baseline=baseline, quantized=quantized, **texts)
