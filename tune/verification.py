"""The verification of a choice as a record in the store, so that it need not be repeated."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from foretune.result import plain
from foretune.space import Configuration
from foretune.tune.results import Comparison, NoiseEstimate

COMPARISON_NUMBERS = ("value", "ratio", "ratio_low", "ratio_high")
DAMAGED = (LookupError, TypeError, ValueError, AttributeError)
"""What a damaged record raises."""


@dataclass(frozen=True)
class StoredVerification:
    """The comparison of finalists with the default, as `TuneResult` has it.

    ``allowed_s`` is the number of seconds that it was allowed to take.
    """

    contenders: tuple[Comparison, ...]
    processes: int
    rounds: int
    noise: NoiseEstimate
    default_breaks: str
    allowed_s: float
    checked_on: str = ""

    @property
    def is_decided(self) -> bool:
        """Whether each candidate is better than the default or not; or one is better."""
        candidates = [c for c in self.contenders[1:] if c.config is not None]
        if any(candidate.wins for candidate in candidates):
            return True
        return all(candidate.verdict != "inconclusive" for candidate in candidates)

    @property
    def needs_quiet_machine(self) -> bool:
        """Whether a candidate won on a busy machine only: a quiet one may decide."""
        return not self.is_decided and any(c.while_busy for c in self.contenders)

    def to_record(self) -> dict[str, Any]:
        """Return plain values; None is a number that is not finite."""
        record: dict[str, Any] = plain(self, as_json=True)
        # An infinite value is a failure; None would read as unknown.
        failed = [math.isinf(comparison.value) for comparison in self.contenders]
        return record | {"failed": failed}

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Self | None:
        """Invert `to_record`; None if there is no record, or it is damaged."""
        if record is None:
            return None
        try:
            return cls._parse(record)
        except DAMAGED:
            return None

    @classmethod
    def _parse(cls, record: Mapping[str, Any]) -> Self:
        contenders = tuple(
            _comparison(described, failed)
            for described, failed in zip(record["contenders"], record["failed"], strict=True)
        )
        if not contenders or contenders[0].config is None:
            raise ValueError("the default comes first")
        noise = record["noise"]
        allowed_s = record["allowed_s"]
        return cls(
            contenders=contenders,
            processes=int(record["processes"]),
            rounds=int(record["rounds"]),
            noise=NoiseEstimate(
                again_low=_number(noise["again_low"]),
                again_high=_number(noise["again_high"]),
                disturbed=str(noise["disturbed"]),
                others=_number(noise["others"]),
                stolen=_number(noise["stolen"]),
            ),
            default_breaks=str(record["default_breaks"]),
            checked_on=str(record.get("checked_on", "")),
            allowed_s=math.inf if allowed_s is None else float(allowed_s),
        )


def _comparison(described: Mapping[str, Any], failed: bool) -> Comparison:
    config = described["config"]
    numbers = {name: _number(described[name]) for name in COMPARISON_NUMBERS}
    if failed:
        numbers["value"] = math.inf
    return Comparison(
        name=str(described["name"]),
        config=None if config is None else Configuration(config),
        failure=str(described["failure"]),
        while_busy=str(described.get("while_busy", "")),
        **numbers,
    )


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
