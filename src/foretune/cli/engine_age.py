"""``foretune plan serve --engine-version``: is the engine older than the measured operators?

Engines get faster. A plan from operators of a newer version promises an older engine too much, by a
factor that no table has. It is refused, unless ``--calibrate`` fits the factor to measured lines.
"""

import re
from typing import TYPE_CHECKING

from foretune.errors import UsageError

if TYPE_CHECKING:
    from foretune.plan import PlanRequest
    from foretune.plan.cost.steps import StepTimerFactory

_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)([.-]?(a|b|rc|post|dev|alpha|beta)\.?\d*)?(\+.*)?")
"""A version: its numbers, and what marks a candidate or a build."""


def engine_age(
    request: "PlanRequest", timers: "StepTimerFactory", version: str, *, is_calibrated: bool
) -> list[str]:
    """Return notes on an engine's ``version``; none if it is empty.

    Raises UsageError for a version that is none, and for one older than the newest operators of a
    system, unless the plan is calibrated.
    """
    if not version:
        return []
    from foretune.plan.describe.engines import ENGINES

    title = ENGINES[request.engine]["name"]
    numbers = _numbers(version)
    if numbers is None:
        raise UsageError(f"--engine-version {version}: write numbers and dots, like 0.18.0")

    notes = []
    for system in request.systems:
        measured = timers.measured_versions(system.name, request.engine)
        if not measured:
            notes.append(
                f"no operators of {title} were measured on {system.name}: whether {version} is as "
                "fast as planned is not known"
            )
            continue
        newest = measured[-1]
        newest_numbers = _numbers(newest)
        if newest_numbers is None or not _is_older(numbers, newest_numbers):
            continue
        what = f"operators of {system.name} were measured with {title} {newest}"
        if not is_calibrated:
            raise UsageError(
                f"{what}; {version} is older, and may be slower by a factor that is not known: "
                "measure 3 to 10 lines with it and add --calibrate FILE, or leave --engine-version "
                "out"
            )
        notes.append(f"{what}, newer than {version}: the factor between them is --calibrate's")
    return notes


def _numbers(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a version; None if it has none."""
    match = _VERSION.fullmatch(version.strip().lower())
    return tuple(int(part) for part in match[1].split(".")) if match else None


def _is_older(version: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether a version is older, as far as it says: 0.24 is not older than 0.24.1."""
    return version < other[: len(version)]
