"""Measurements as records of JSON, without what their row says anyway."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from foretune.errors import RunTableError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store.subject import Subject

MAX_SAMPLES = 25
"""Times stored per measurement; longer lists are reduced to evenly spaced quantiles."""
NUMBERS = ("time_ms", "power_w", "energy_mj", "compile_s", "relative_error")
TEXTS = ("error", "source", "recorded_at", "environment")
FIELDS = {"config", "status", "time_ms_samples", "static", *NUMBERS, *TEXTS}
OK_RECORD = '%}, "status": "ok"%'
"""SQL pattern of the records of successful measurements. A configuration has no nested values, so
only its end is a brace that is followed by the status."""


def measurement_to_record(m: Measurement) -> dict[str, Any]:
    """Return a measurement without subject, problem and unknown values, or raise RunTableError."""
    _check(m)
    # The status follows the configuration: `OK_RECORD` finds it there.
    record: dict[str, Any] = {"config": dict(m.config), "status": m.status.value}

    for name in NUMBERS:
        number = float(getattr(m, name))
        if not math.isnan(number):
            record[name] = number
    if m.time_ms_samples:
        record["time_ms_samples"] = _thin_samples(m.time_ms_samples)
    static = {name: float(value) for name, value in m.static.items() if not math.isnan(value)}
    if static:
        record["static"] = static

    for name in TEXTS:
        text = getattr(m, name)
        if text:
            record[name] = text
    return record


def measurement_from_record(
    record: Mapping[str, Any], subject: Subject, problem: Problem
) -> Measurement:
    """Invert `measurement_to_record`; damaged records raise ValueError, KeyError or TypeError."""
    unknown = {*record} - FIELDS
    if unknown:
        raise ValueError(f"{min(unknown)!r} is unknown")
    numbers: dict[str, Any] = {name: float(record.get(name, math.nan)) for name in NUMBERS}
    texts: dict[str, Any] = {name: str(record.get(name, "")) for name in TEXTS}
    measurement = Measurement(
        kernel=subject.kernel,
        problem=problem,
        config=Configuration(record["config"]),
        device=subject.device,
        status=Status(record["status"]),
        time_ms_samples=tuple(map(float, record.get("time_ms_samples", ()))),
        static={n: float(v) for n, v in record.get("static", {}).items()},
        **numbers,
        **texts,
    )
    _check(measurement)
    return measurement


def _thin_samples(samples: Sequence[float]) -> list[float]:
    """Return the samples, or `MAX_SAMPLES` quantiles of them, to keep reading fast."""
    if len(samples) <= MAX_SAMPLES:
        return [float(t) for t in samples]
    ordered = sorted(samples)
    last = len(ordered) - 1
    return [float(ordered[round(i * last / (MAX_SAMPLES - 1))]) for i in range(MAX_SAMPLES)]


def _check(m: Measurement) -> None:
    if m.ok and math.isnan(m.time_ms):  # a run table may have a row with power only
        raise RunTableError(f"{m.kernel} {m.config}: status is ok but time_ms is {m.time_ms}")
    m.check()
