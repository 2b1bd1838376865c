"""Subjects and choices: the names under which a store keeps results, and what was chosen."""

import datetime
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, get_args

from foretune.errors import UsageError
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.unknown_numbers import equal_fields
from foretune.values import FrozenParameters

ChoiceMethod = Literal["measured", "predicted", "all", "verified"]
CHOICE_METHODS: tuple[ChoiceMethod, ...] = get_args(ChoiceMethod)
"""How a configuration was chosen: among a few measured ones, without measuring, after measuring
all, or by `tune`, which verified it against the default."""
CANDIDATES_TAG = "candidates"
"""Tag in a choice's problem: a hash of the candidates, if they are not the whole space."""
OBJECTIVE_TAG = "tuned_for"
"""Tag in a choice's problem: objective and limits, if they are not just time."""


@dataclass(frozen=True, order=True)
class Subject:
    """A kernel's code on a device with a toolchain; results of different subjects never mix.

    ``source`` is a hash of the code, ``device`` the driver's full name of the device, and
    ``versions`` the toolchain, e.g. ``foretune 0.1.0, triton 3.9.0``.
    """

    kernel: str
    source: str
    device: str
    versions: str

    @cached_property
    def id(self) -> str:
        """Thirty-two hexadecimal digits, the same on every machine."""
        text = json.dumps([self.kernel, self.source, self.device, self.versions])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Allowance:
    """What a search was allowed to spend; None is no limit.

    It ended at the first limit: measurements, seconds, or an accepted expected regret.
    """

    measurements: int | None = None
    seconds: float | None = None
    regret: float | None = None

    def covers(self, wanted: "Allowance") -> bool:
        """Return whether a search with ``wanted`` would have ended no later than this one."""
        return (
            _is_as_large(self.measurements, wanted.measurements)
            and _is_as_large(self.seconds, wanted.seconds)
            and _is_as_strict(self.regret, wanted.regret)
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Invert `dataclasses.asdict`; damaged records raise ValueError or TypeError."""
        measurements = record.get("measurements")
        seconds = record.get("seconds")
        regret = record.get("regret")
        return cls(
            measurements=None if measurements is None else int(measurements),
            seconds=None if seconds is None else float(seconds),
            regret=None if regret is None else float(regret),
        )


@dataclass(frozen=True)
class Choice:
    """The configuration chosen for a problem after ``measured`` configurations had been measured.

    ``regret`` is the expected loss against the best, relative, and NaN if unknown. ``chosen_at``,
    an ISO time, breaks ties when stores are merged. ``allowed`` is None for a choice that is not
    from a search, or from an earlier version. ``verification`` has the values of the comparison
    with the default (`foretune.tune.verification`), if there was one.
    """

    config: Configuration
    measured: int
    regret: float
    how: ChoiceMethod
    chosen_at: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(
            timespec="milliseconds"
        ),
        compare=False,
    )
    allowed: Allowance | None = field(default=None, compare=False, kw_only=True)
    verification: Mapping[str, Any] | None = field(default=None, compare=False, kw_only=True)

    __eq__ = equal_fields

    def to_record(self) -> dict[str, Any]:
        """Return the choice without an unknown regret; UsageError for an unknown method."""
        if self.how not in CHOICE_METHODS:
            raise UsageError(f"a choice is {' or '.join(CHOICE_METHODS)}, not {self.how!r}")
        record: dict[str, Any] = {"config": dict(self.config), "measured": self.measured}
        if not math.isnan(self.regret):
            record["regret"] = self.regret
        record |= {"how": self.how, "chosen_at": self.chosen_at}
        if self.allowed is not None:
            record["allowed"] = asdict(self.allowed)
        if self.verification is not None:
            record["verification"] = dict(self.verification)
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Invert `to_record`; damaged records raise ValueError, KeyError or TypeError."""
        if record["how"] not in CHOICE_METHODS:
            raise ValueError(f"a choice is {' or '.join(CHOICE_METHODS)}, not {record['how']!r}")
        allowed = record.get("allowed")
        verification = record.get("verification")
        return cls(
            config=Configuration(record["config"]),
            measured=int(record["measured"]),
            regret=float(record.get("regret", math.nan)),
            how=record["how"],
            chosen_at=str(record.get("chosen_at", "")),
            allowed=None if allowed is None else Allowance.from_record(allowed),
            verification=None if verification is None else dict(verification),
        )


@dataclass(frozen=True)
class Summary:
    """Counts of one subject; ``measurements`` include the failed ones."""

    subject: Subject
    problems: int
    measurements: int
    failed: int
    choices: int


@dataclass(frozen=True)
class MergeReport:
    """Counts of a merge: new subjects, newer measurements, better choices, and known rows."""

    subjects: int = 0
    measurements: int = 0
    choices: int = 0
    unchanged: int = 0

    def __add__(self, other: "MergeReport") -> "MergeReport":
        return MergeReport(
            subjects=self.subjects + other.subjects,
            measurements=self.measurements + other.measurements,
            choices=self.choices + other.choices,
            unchanged=self.unchanged + other.unchanged,
        )


def _is_as_large(limit: float | None, wanted: float | None) -> bool:
    if limit is None:
        return True
    return wanted is not None and limit >= wanted


def _is_as_strict(regret: float | None, wanted: float | None) -> bool:
    if regret is None:  # the search did not end early
        return True
    return wanted is not None and regret <= wanted


def group_by_problem(measurements: Iterable[Measurement]) -> dict[Problem, list[Measurement]]:
    """Group measurements by problem."""
    found: dict[Problem, list[Measurement]] = {}
    for m in measurements:
        found.setdefault(m.problem, []).append(m)
    return found


def without_tags(problem: Problem) -> Problem:
    """Return the measured problem of a choice's problem."""
    return without_names(problem, CANDIDATES_TAG, OBJECTIVE_TAG)


def without_names(problem: Problem, *names: str) -> Problem:
    """Return a problem without the values of some names."""
    return Problem({name: value for name, value in problem.items() if name not in names})


def sort_key(values: FrozenParameters) -> list[tuple[str, bool, Any]]:
    """Return a sort key: numbers by value, before texts."""
    return [(name, isinstance(v, str), v) for name, v in sorted(values.items())]


def matches(problem: Problem, wanted: Problem | None) -> bool:
    """Return whether a problem has at least the values of ``wanted``."""
    return wanted is None or all(n in problem and problem[n] == v for n, v in wanted.items())


def timestamp(iso: str) -> float:
    """Return an ISO time as seconds since 1970; 0 if it is invalid. The default zone is UTC."""
    try:
        when = datetime.datetime.fromisoformat(iso)
    except ValueError:
        return 0.0
    return (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp()
