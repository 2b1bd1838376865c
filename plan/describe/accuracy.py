"""Quality of number formats: published results relative to the unquantized baseline."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import median

from foretune.errors import RunTableError
from foretune.files import read_bytes, translate_read_errors
from foretune.plan.describe.checkpoint import FORMAT_OF_SUFFIX
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import CACHE_FORMATS, FORMATS, Formats

COLUMNS = ("format", "method", "model", "benchmark", "baseline", "quantized", "better", "source")
EQUIVALENT_FORMATS = {"fp8_static": "fp8", "fp8_block": "fp8"}
"""Format -> format whose results it shares: finer scales lose no more."""


@dataclass(frozen=True)
class AccuracyResult:
    """One benchmark of one model in one format.

    Attributes:
        format: weight format, as in `FORMATS`; cache formats are written ``kv:fp8``.
        method: the quantization method.
        model, benchmark: the measured model and benchmark.
        baseline, quantized: the scores.
        better: ``higher`` or ``lower``.
        source: the publication.
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
        """Share of the baseline's quality that is kept; 1 is all."""
        share = self.quantized / self.baseline
        return share if self.better == "higher" else 1 / share


@cache
def published_accuracy() -> tuple[AccuracyResult, ...]:
    """Return the results shipped with the package."""
    text = files("foretune.plan.describe").joinpath("accuracy.csv").read_text(encoding="utf-8")
    return _parse(text, "accuracy.csv")


def read_accuracy(path: str | os.PathLike[str]) -> tuple[AccuracyResult, ...]:
    """Return a user's results: a CSV file with the shipped table's columns.

    Raises RunTableError if the file cannot be read, lacks a column, or has an invalid row.
    """
    with translate_read_errors(path, RunTableError, "is no readable table of accuracies: {}"):
        return _parse(read_bytes(path).decode("utf-8-sig"), str(path))


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
    """Return the lossy formats: the narrowest of weights, and that of the cache."""
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
    """Return a model's name without its publisher and format."""
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
