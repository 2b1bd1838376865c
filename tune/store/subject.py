"""Subject, Choice, MergeReport."""

import datetime
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, Self, get_args

from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.values import FrozenParameters

ChoiceMethod = Literal["measured", "predicted", "all", "verified"]
CHOICE_METHODS: tuple[ChoiceMethod, ...] = get_args(ChoiceMethod)
"""Chosen among a few measured ones, without measuring, after measuring every one, or by `tune`,
which compared the best with the default once more."""
CANDIDATES_TAG = "candidates"
"""What a choice's problem may hold beside the measured one's: a hash of what was to choose from."""
OBJECTIVE_TAG = "tuned_for"
"""Likewise: what was minimised, within which limits, where that is not just time."""


CONFLICT_RATIO = 1.25
"""Two times of the same contradict each other where one is longer than the other by this factor."""


@dataclass(frozen=True, order=True)
class Subject:
    """What is tuned, and where: results of different subjects never mix.

    Attributes:
        kernel: the kernel's name.
        source: hash of the kernel's code.
        device: the device's full name, as its driver gives it.
        versions: of what compiles it, e.g. ``foretune 0.1.0, triton 3.9.0``.
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
class Choice:
    """The configuration a problem is to run with.

    Attributes:
        config: the configuration.
        measured: how many configurations were measured before it was chosen.
        regret: how much slower than the best it is expected to be, relative; NaN if unknown.
        how: what the choice rests on.
        chosen_at: ISO time; of two choices that rest on as much, a merge takes the later one.
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


@dataclass(frozen=True)
class Summary:
    """How much a store knows about one subject.

    Attributes:
        subject: the subject.
        problems: problems with a measurement or a choice.
        measurements: configurations measured, failures included, over all problems.
        failed: how many of them failed.
        choices: problems with a choice.
    """

    subject: Subject
    problems: int
    measurements: int
    failed: int
    choices: int


@dataclass(frozen=True, order=True)
class Conflict:
    """Two measurements of the same that contradict each other; the newer one stayed.

    Attributes:
        what: kernel, device, problem and configuration.
        kept: what the one that stayed says.
        dropped: what the other says.
    """

    what: str
    kept: str
    dropped: str

    @classmethod
    def between(cls, existing: Measurement, incoming: Measurement, taken: bool) -> Self | None:
        """Return the conflict of a measurement with one that is merged; None if they agree."""
        times = sorted((existing.time_ms, incoming.time_ms))
        if existing.ok == incoming.ok and not times[1] > CONFLICT_RATIO * times[0]:
            return None
        m = incoming
        what = f"{m.kernel} on {m.device}, {m.problem}: {m.config}"
        kept, dropped = (incoming, existing) if taken else (existing, incoming)
        return cls(what, _outcome(kept), _outcome(dropped))

    def __str__(self) -> str:
        return f"{self.what}: {self.kept} kept, {self.dropped} dropped"


def _outcome(m: Measurement) -> str:
    return f"{m.time_ms:.4g} ms" if m.ok else m.status.value.replace("_", " ")


@dataclass(frozen=True)
class MergeReport:
    """What a merge brought.

    Attributes:
        subjects: subjects that were not there before.
        measurements: measurements that were not there, or newer than those there.
        choices: choices that were not there, or better than those there.
        unchanged: measurements and choices that were there already, or are older or worse.
        conflicts: measurements that were there and say something else.
    """

    subjects: int = 0
    measurements: int = 0
    choices: int = 0
    unchanged: int = 0
    conflicts: tuple[Conflict, ...] = ()

    def __add__(self, more: "MergeReport") -> "MergeReport":
        return MergeReport(*(getattr(self, f.name) + getattr(more, f.name) for f in fields(self)))


def group_by_problem(measurements: Iterable[Measurement]) -> dict[Problem, list[Measurement]]:
    """Return measurements by what they computed."""
    found: dict[Problem, list[Measurement]] = {}
    for m in measurements:
        found.setdefault(m.problem, []).append(m)
    return found


def without_tags(problem: Problem) -> Problem:
    """Return the problem that was measured, of one that something was chosen for."""
    return without_names(problem, CANDIDATES_TAG, OBJECTIVE_TAG)


def source_label(kernel: str, problem: Problem) -> str:
    """Return what the source column says of runs that are written down under a second name.

    Args:
        kernel: the first name.
        problem: what that calls the problem.
    """
    return f"foretune {kernel} {problem.id}"


def without_names(problem: Problem, *names: str) -> Problem:
    """Return a problem without the values of some names."""
    return Problem({name: value for name, value in problem.items() if name not in names})


def sort_key(values: FrozenParameters) -> list[tuple[str, bool, Any]]:
    """Return a key that sorts by size, numbers before texts, for people to read."""
    return [(name, isinstance(v, str), v) for name, v in sorted(values.items())]


def matches(problem: Problem, wanted: Problem | None) -> bool:
    """Return whether a problem has all values of ``wanted``, whatever else it has."""
    return wanted is None or all(n in problem and problem[n] == v for n, v in wanted.items())
