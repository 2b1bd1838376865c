"""Measurements and choices for tests of the store."""

import json
from dataclasses import replace

from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Choice, Subject
from foretune.tune.store.measurement_record import measurement_to_record

SUBJECT = Subject("softmax", "9f3a", "Toy GPU", "foretune 0.1.0, triton 3.9.0")
OTHER = replace(SUBJECT, versions="foretune 0.1.0, triton 3.6.0")
SMALL = Problem(n=64, dtype="fp16")
LARGE = Problem(n=4096, dtype="fp16")


def measured(problem=SMALL, time_ms=1.0, at="2026-01-01T00:00:00+00:00", subject=SUBJECT, **config):
    status = Status.OK if time_ms == time_ms else Status.COMPILE_ERROR
    return Measurement(
        subject.kernel,
        problem,
        Configuration(config),
        subject.device,
        status,
        time_ms,
        error="" if status is Status.OK else "out of registers",
        recorded_at=at,
    )


def choice(x=1, at="2026-01-01T00:00:00.000+00:00", regret=0.02, measured=3):
    return Choice(Configuration(x=x), measured, regret, "measured" if measured else "predicted", at)


def known(tuned, subject=SUBJECT):
    """All measurements as comparable text: NaN does not equal NaN."""
    return {
        (m.problem.id, json.dumps(measurement_to_record(m), sort_keys=True))
        for m in tuned.measurements(subject)
    }
