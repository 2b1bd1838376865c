"""Requests sent to an engine: arrival times and lengths."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers.files import read_table, require
from foretune.errors import RunTableError
from foretune.files import translate_read_errors

COLUMNS = ("at_s", "isl", "osl")
"""Columns of a trace: arrival in seconds, tokens of the prompt and of the answer."""
CACHED = "cached"
"""Optional column: cached tokens of the prompt."""
MAX_TOKENS = 2**31
"""Bound of the tokens of a request."""


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival.

    Attributes:
        arrival_ms: arrival times.
        isl, osl: tokens of prompts and answers.
        cached: cached tokens of the prompts.
        in_flight: requests in flight; the next arrives when one ends. With 0, they arrive at
            ``arrival_ms``.
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
        """Return equal requests with given arrival times."""
        isls, osls, cached_ = (np.full(len(arrival_ms), n) for n in (isl, osl, cached))
        return cls(np.asarray(arrival_ms, dtype=float), isls, osls, cached_, in_flight)

    @classmethod
    def poisson(
        cls, per_s: float, count: int, isl: int, osl: int, cached: int = 0, seed: int = 0
    ) -> "Requests":
        """Return equal requests with Poisson arrivals, ``per_s`` per second."""
        gaps = np.random.default_rng(seed).exponential(1e3 / per_s, count)
        return cls.uniform(np.cumsum(gaps), isl, osl, cached)

    def shard(self, part: int, parts: int) -> "Requests":
        """Return every ``parts``-th request from ``part`` on: the share of one server."""
        selected = slice(part, None, parts)
        return Requests(
            self.arrival_ms[selected],
            self.isl[selected],
            self.osl[selected],
            self.cached[selected],
            -(-self.in_flight // parts),
        )


def read_trace(path: str | os.PathLike[str]) -> Requests:
    """Return the requests of a CSV or Parquet file.

    Columns are ``at_s``, ``isl``, ``osl`` and optionally ``cached``. Raises RunTableError if the
    file cannot be read, lacks a column, or has an invalid row.
    """
    table = read_table(Path(path), COLUMNS)
    require(table, COLUMNS, Path(path), "a trace of requests")
    if table.empty:
        raise RunTableError(f"{path} has no rows: it needs one per request")
    columns = [*COLUMNS, *([CACHED] if CACHED in table else [])]
    with translate_read_errors(path, RunTableError, "is damaged: {}"):
        numbers = table[columns].apply(pd.to_numeric, errors="coerce")
    numbers[CACHED] = numbers.get(CACHED, 0)
    integral = (numbers[["isl", "osl", CACHED]] % 1 == 0).all(axis=1)
    valid = integral & (numbers["at_s"] >= 0) & (numbers["at_s"] < np.inf) & (numbers["isl"] >= 1)
    valid &= (numbers[["isl", "osl"]] < MAX_TOKENS).all(axis=1)
    valid &= (numbers["osl"] >= 1) & (numbers[CACHED] >= 0) & (numbers[CACHED] < numbers["isl"])
    if not valid.all():
        row = int(np.flatnonzero(~valid.to_numpy())[0]) + 1
        raise RunTableError(
            f"{path}, row {row}: at_s must be 0 or more seconds, isl and osl whole numbers of "
            "at least 1 token, cached less than isl"
        )
    sorted_ = numbers.sort_values("at_s", kind="stable")
    isl, osl, cached = (sorted_[name].to_numpy(dtype=int) for name in ("isl", "osl", CACHED))
    return Requests(1e3 * sorted_["at_s"].to_numpy(dtype=float), isl, osl, cached)
