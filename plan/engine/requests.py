"""Requests that an engine is sent: when each arrives, and how long it is."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.errors import RunTableError

COLUMNS = ("at_s", "isl", "osl")
"""Of a trace: seconds of arrival, tokens of the prompt and of the answer."""
CACHED = "cached"
"""Optional column: tokens of the prompt that the cache holds already."""


@dataclass(frozen=True)
class Requests:
    """What is sent, in the order of arrival.

    Attributes:
        arrival_ms: when each arrives.
        isl, osl: tokens of its prompt and of its answer.
        cached: tokens of its prompt whose keys and values are in the cache already.
        in_flight: requests at a time, the next arriving when one ends; 0 where they arrive at
            ``arrival_ms`` whatever happens.
    """

    arrival_ms: np.ndarray
    isl: np.ndarray
    osl: np.ndarray
    cached: np.ndarray
    in_flight: int = 0

    def __len__(self) -> int:
        return len(self.arrival_ms)

    @classmethod
    def uniform(
        cls, arrival_ms: np.ndarray, isl: int, osl: int, cached: int = 0, in_flight: int = 0
    ) -> "Requests":
        """Return equal requests that arrive at given times."""
        isls, osls, cached_ = (np.full(len(arrival_ms), n) for n in (isl, osl, cached))
        return cls(np.asarray(arrival_ms, dtype=float), isls, osls, cached_, in_flight)

    @classmethod
    def poisson(
        cls, per_s: float, count: int, isl: int, osl: int, cached: int = 0, seed: int = 0
    ) -> "Requests":
        """Return equal requests that arrive at random (Poisson), ``per_s`` a second."""
        gaps = np.random.default_rng(seed).exponential(1e3 / per_s, count)
        return cls.uniform(np.cumsum(gaps), isl, osl, cached)

    def shard(self, part: int, parts: int) -> "Requests":
        """Return every ``parts``-th request, from ``part`` on: what one of equal servers gets."""
        selected = slice(part, None, parts)
        return Requests(
            self.arrival_ms[selected],
            self.isl[selected],
            self.osl[selected],
            self.cached[selected],
            -(-self.in_flight // parts),
        )


def read_trace(path: str | os.PathLike[str]) -> Requests:
    """Return the requests of a CSV or Parquet file with columns ``at_s, isl, osl``, or ``cached``.

    Raises:
        RunTableError: it cannot be read, lacks a column, or a row means nothing.
    """
    source = Path(path)
    try:
        table = pd.read_parquet(source) if source.suffix == ".parquet" else pd.read_csv(source)
    except (OSError, ValueError) as e:  # the parsers' errors are ValueErrors
        raise RunTableError(f"cannot read a trace from {path}: {e}") from e
    missing = [name for name in COLUMNS if name not in table]
    if missing or table.empty:
        lack = f"no column {missing[0]!r}" if missing else "no rows"
        raise RunTableError(f"{path} has {lack}: it needs {', '.join(COLUMNS)}, a row per request")
    columns = [*COLUMNS, *([CACHED] if CACHED in table else [])]
    numbers = table[columns].apply(pd.to_numeric, errors="coerce")
    numbers[CACHED] = numbers.get(CACHED, 0)
    integral = (numbers[["isl", "osl", CACHED]] % 1 == 0).all(axis=1)
    valid = integral & (numbers["at_s"] >= 0) & (numbers["at_s"] < np.inf) & (numbers["isl"] >= 1)
    valid &= (numbers["osl"] >= 1) & (numbers[CACHED] >= 0) & (numbers[CACHED] < numbers["isl"])
    if not valid.all():
        row = int(np.flatnonzero(~valid.to_numpy())[0]) + 1
        raise RunTableError(
            f"{path}, row {row}: at_s must be seconds from 0 on, isl and osl whole numbers of "
            "tokens from 1 on, cached fewer than isl"
        )
    sorted_ = numbers.sort_values("at_s", kind="stable")
    isl, osl, cached = (sorted_[name].to_numpy(dtype=int) for name in ("isl", "osl", CACHED))
    return Requests(1e3 * sorted_["at_s"].to_numpy(dtype=float), isl, osl, cached)
