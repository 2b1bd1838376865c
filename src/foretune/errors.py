"""Errors and warnings."""

import difflib
import warnings
from collections.abc import Iterable
from typing import Any

from foretune.redaction import redact

MAX_CHARACTERS = 300
"""Characters of an error's message that are kept."""
MAX_LISTED = 40
"""With more known names than this, a message lists only the nearest."""
N_NEAREST = 5
"""Number of nearest names that it lists then."""
NEAREST_CUTOFF = 0.3
"""Smallest similarity of such a name, from 0 to 1 (`difflib`)."""


class ForetuneError(Exception):
    """Base of all deliberate errors; the message is one line that says what to do."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(redact(message))

    def __reduce__(self) -> tuple[Any, ...]:
        return restore_error, (type(self), str(self))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, in text that UTF-8 can encode; never raises."""
    # A kernel may raise anything, also an error whose message cannot be read.
    try:
        lines = str(error).strip().splitlines()
    except Exception as e:
        lines = [f"its message cannot be read: {type(e).__name__}"]
    if not lines:
        return ""
    return lines[0][:MAX_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def describe_error(error: BaseException) -> str:
    """Return class and `first_line` of an error."""
    return f"{type(error).__name__}: {first_line(error)}"


class ForetuneWarning(UserWarning):
    """A request cannot be fulfilled; Foretune continues without it."""

    def __init__(self, message: str = "") -> None:
        super().__init__(redact(message))


def warn(text: str, stacklevel: int = 2) -> None:
    """Warn (`ForetuneWarning`); ``stacklevel`` 1 is the line that calls this."""
    warnings.warn(text, ForetuneWarning, stacklevel=stacklevel + 1)


class DataWarning(ForetuneWarning):
    """Runs are implausible; the message names the rows and what happens to them."""


def restore_error(kind: type[ForetuneError], message: str) -> ForetuneError:
    """Rebuild an error from another process without its constructor, whose arguments vary."""
    error = kind.__new__(kind)
    error.args = (message,)
    return error


class UsageError(ForetuneError, ValueError):
    """The request is wrong; the message says what to type instead."""

    exit_code = 2


class UnknownName(UsageError):
    """A kernel, searcher, model or parameter of that name does not exist."""

    def __init__(self, what: str, name: str, known: Iterable[str], suffix: str = "") -> None:
        choices = sorted(known)
        by_lower = {choice.lower(): choice for choice in choices}
        similar = difflib.get_close_matches(name.lower(), by_lower, n=1)
        hint = f"did you mean {by_lower[similar[0]]!r}? " if similar else ""
        listed = _listed(name, choices, by_lower)
        if suffix:
            listed = f"{listed}; {suffix}"
        super().__init__(f"unknown {what} {name!r}: {hint}known: {listed}")


def _listed(name: str, choices: list[str], by_lower: dict[str, str]) -> str:
    """Return the known names as text; of many, only the nearest to ``name`` and a number."""
    if not choices:
        return "none"
    if len(choices) <= MAX_LISTED:
        return ", ".join(choices)
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=N_NEAREST, cutoff=NEAREST_CUTOFF)
    if not nearest:
        return f"{len(choices)}, none like it"
    names = [by_lower[lower] for lower in nearest]
    return ", ".join([*names, f"{len(choices) - len(nearest)} others"])


def require_known(what: str, names: str | Iterable[str], known: Iterable[str]) -> None:
    """Raise UnknownName for a name, or the first of several, that is not ``known``."""
    choices = list(known)
    for name in [names] if isinstance(names, str) else names:
        if name not in choices:
            raise UnknownName(what, name, choices)


class ProblemError(UsageError):
    """A problem lacks a parameter, or has an illegal value."""


class SpaceError(UsageError):
    """A search space is malformed, empty, or too large to enumerate."""


class RunTableError(ForetuneError, ValueError):
    """A run table breaks the schema; the message names the file, the row and the reason."""


class PredictorError(ForetuneError):
    """A predictor cannot be trained, loaded or used for this request."""


class MeterUnavailable(ForetuneError):
    """No power meter works on this machine, and the objective needs one."""


class MeasurementError(ForetuneError):
    """Measuring cannot continue. The failure of one configuration is a row, not an error."""


class TrackingError(ForetuneError):
    """The MLflow server cannot be reached, or rejected a request."""


class StoreError(ForetuneError):
    """The store, or a file to merge into it, cannot be read or written."""


class OutputError(ForetuneError, OSError):
    """Results cannot be written: read-only or full directory."""


class MissingExtra(ForetuneError, ImportError):
    """An optional dependency is not installed, or cannot be imported."""

    def __init__(
        self, module: str, extra: str, purpose: str, why: str = "is not installed"
    ) -> None:
        remedy = f"in Foretune's checkout, pip install '.[{extra}]'"
        super().__init__(f"{purpose} needs {module}, which {why}: {remedy}")
