"""What a tuning store speaks of: subjects, choices, and what it says about itself."""

import datetime
import hashlib
import json
from dataclasses import dataclass, field, fields
from typing import Literal, Self, get_args

from foretune.measurement import Measurement
from foretune.space import Configuration

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

    @property
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
