"""What formats cost in quality: published results, and how much of the baseline they keep."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import median

from foretune.errors import RunTableError
from foretune.plan.describe.cache_formats import CACHE_FORMATS
from foretune.plan.describe.checkpoint import FORMAT_OF_SUFFIX
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import FORMATS, Formats

COLUMNS = ("format", "method", "model", "benchmark", "baseline", "quantized", "better", "source")
EQUIVALENT_FORMATS = {"fp8_static": "fp8", "fp8_block": "fp8"}
"""Format -> the one whose results stand for it: finer scales lose no more."""


@dataclass(frozen=True)
class AccuracyResult:
    """One benchmark of one model in one format.

    Attributes:
        format: of the weights, as in `FORMATS`; a cache's is written ``kv:fp8``.
        method: by which it was quantized.
        model, benchmark: what was measured.
        baseline, quantized: the scores.
        better: ``higher`` or ``lower``.
        source: where it was published.
    """

    format: str
    method: str
    model: str
    benchmark: str
    baseline: float
    quantized: float
    better: str
    source: str

    @property
    def recovery(self) -> float:
        """Share of the baseline's quality that is left; 1 is all of it."""
        share = self.quantized / self.baseline
        return share if self.better == "higher" else 1 / share


@cache
def published_accuracy() -> tuple[AccuracyResult, ...]:
    """Return the results that ship with the package."""
    text = files("foretune.plan.describe").joinpath("accuracy.csv").read_text(encoding="utf-8")
    return _parse(text, "accuracy.csv")


def read_accuracy(path: str | os.PathLike[str]) -> tuple[AccuracyResult, ...]:
    """Return a user's own results: a CSV file with the columns of the shipped one.

    Raises:
        RunTableError: it cannot be read, lacks a column, or a row is impossible.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise RunTableError(f"cannot read {path}: {e}") from e
    return _parse(text, str(path))


def recovery(
    formats: Formats,
    model: ModelDescription | None = None,
    results: Sequence[AccuracyResult] | None = None,
) -> float | None:
    """Return the share of quality that a deployment's formats keep; None where nobody published.

    The product over the formats of weights and cache of the median over results: those of this
    model where there are any, else of all. Formats that the model was published in cost nothing.

    Args:
        formats: of the deployment.
        model: what is deployed.
        results: measured ones; None takes the published ones.
    """
    known = published_accuracy() if results is None else results
    total = 1.0
    for name in _lossy_formats(formats, model):
        found = [r for r in known if EQUIVALENT_FORMATS.get(r.format, r.format) == name]
        same_model = [r for r in found if model and _base_name(r.model) == _base_name(model.name)]
        if not found:
            return None
        total *= median(r.recovery for r in same_model or found)
    return total


def _lossy_formats(formats: Formats, model: ModelDescription | None) -> list[str]:
    """Return the formats in which something is lost: the narrowest of weights, and the cache's."""
    native, cache_native = {"bf16"}, {"bf16"}
    if model:
        native |= {model.weight_format, model.moe_format}
        cache_native.add(model.kv_format)
    moe = formats.moe if model is None or model.is_moe else formats.weights
    changed = {f for f in (formats.weights, moe) if f not in native}
    names = []
    if changed:
        narrowest = min(changed, key=lambda f: FORMATS[f].bytes)
        names.append(EQUIVALENT_FORMATS.get(narrowest, narrowest))
    if formats.kv not in cache_native:
        names.append(f"kv:{formats.kv}")
    return names


def _base_name(name: str) -> str:
    """Return a model's name without its publisher and what it was stored in."""
    words = name.rpartition("/")[2].lower().split("-")
    return "-".join(w for w in words if w not in {"meta", "instruct", *FORMAT_OF_SUFFIX})


def _parse(text: str, name: str) -> tuple[AccuracyResult, ...]:
    reader = csv.DictReader(text.splitlines())
    if missing := [c for c in COLUMNS if c not in (reader.fieldnames or ())]:
        raise RunTableError(f"{name} has no column {missing[0]!r}: expected {', '.join(COLUMNS)}")
    return tuple(_row(row, f"{name}, row {i}") for i, row in enumerate(reader, 1))


def _row(row: dict[str, str], where: str) -> AccuracyResult:
    try:
        scores = float(row["baseline"]), float(row["quantized"])
    except ValueError as e:
        raise RunTableError(f"{where}: baseline and quantized must be numbers ({e})") from e
    if min(scores) <= 0:
        raise RunTableError(f"{where}: scores must be positive")
    if row["better"] not in ("higher", "lower"):
        raise RunTableError(f"{where}: better is 'higher' or 'lower', not {row['better']!r}")
    known = CACHE_FORMATS if row["format"].startswith("kv:") else FORMATS
    if row["format"].removeprefix("kv:") not in known:
        raise RunTableError(f"{where}: unknown number format {row['format']!r}")
    texts = {c: row[c] for c in ("format", "method", "model", "benchmark", "better", "source")}
    return AccuracyResult(baseline=scores[0], quantized=scores[1], **texts)
