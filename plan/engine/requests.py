"""Requests to simulate: equal ones, random arrivals, or a recorded trace."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers.files import read_table, require
from foretune.errors import RunTableError
from foretune.plan.describe.layout import Workload
from foretune.plan.describe.lengths import MAX_TOKENS
from foretune.support.files import translate_read_errors

COLUMNS = ("at_s", "isl", "osl")
"""Columns of a trace: arrival in seconds, tokens of the prompt and of the answer."""
CACHED = "cached"
"""Optional column: cached tokens of the prompt."""


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival.

    Attributes:
        arrival_ms: when requests arrive.
        isl: tokens of prompts.
        osl: tokens of answers.
        cached: tokens of prompts that are in the prefix cache.
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
        count = len(arrival_ms)
        return cls(
            arrival_ms=np.asarray(arrival_ms, dtype=float),
            isl=np.full(count, isl),
            osl=np.full(count, osl),
            cached=np.full(count, cached),
            in_flight=in_flight,
        )

    @classmethod
    def poisson(
        cls, per_s: float, count: int, isl: int, osl: int, cached: int = 0, seed: int = 0
    ) -> "Requests":
        """Return equal requests with Poisson arrivals, ``per_s`` per second."""
        arrival_ms = _poisson_arrivals_ms(per_s, count, seed)
        return cls.uniform(arrival_ms, isl=isl, osl=osl, cached=cached)

    @classmethod
    def in_flight_of(
        cls, workload: Workload, count: int, in_flight: int, seed: int = 0
    ) -> "Requests":
        """Return a workload's requests, of which ``in_flight`` are served at a time."""
        arrival_ms = np.zeros(count)
        return cls._of_workload(workload, arrival_ms, in_flight=in_flight, seed=seed)

    @classmethod
    def arriving_of(cls, workload: Workload, count: int, per_s: float, seed: int = 0) -> "Requests":
        """Return a workload's requests with Poisson arrivals, ``per_s`` per second."""
        arrival_ms = _poisson_arrivals_ms(per_s, count, seed)
        return cls._of_workload(workload, arrival_ms, in_flight=0, seed=seed)

    @classmethod
    def _of_workload(
        cls, workload: Workload, arrival_ms: np.ndarray, in_flight: int, seed: int
    ) -> "Requests":
        """Return requests of a workload, whose lengths are drawn if they differ."""
        if workload.mix is None:
            return cls.uniform(
                arrival_ms,
                isl=workload.isl,
                osl=workload.osl,
                cached=workload.prefix,
                in_flight=in_flight,
            )
        count = len(arrival_ms)
        isl, osl = workload.mix.draw(count, seed)
        return cls(
            arrival_ms=arrival_ms,
            isl=isl,
            osl=osl,
            cached=np.full(count, workload.prefix),
            in_flight=in_flight,
        )

    def shard(self, part: int, parts: int) -> "Requests":
        """Return every ``parts``-th request from ``part`` on: the share of one server."""
        share = slice(part, None, parts)
        return Requests(
            arrival_ms=self.arrival_ms[share],
            isl=self.isl[share],
            osl=self.osl[share],
            cached=self.cached[share],
            in_flight=-(-self.in_flight // parts),  # rounded up
        )


def _poisson_arrivals_ms(per_s: float, count: int, seed: int) -> np.ndarray:
    """Return when ``count`` requests arrive at random, in milliseconds."""
    gaps_ms = np.random.default_rng(seed).exponential(1e3 / per_s, count)
    arrivals_ms: np.ndarray = np.cumsum(gaps_ms)
    return arrivals_ms


def read_trace(path: str | os.PathLike[str]) -> Requests:
    """Return the requests of a CSV or Parquet file.

    Columns are ``at_s``, ``isl``, ``osl`` and optionally ``cached``. Raises RunTableError if the
    file cannot be read, lacks a column, or has an invalid row.
    """
    table = read_numbers(path, COLUMNS, "a trace of requests", optional=CACHED)
    if table.empty:
        raise RunTableError(f"{path} has no rows: it needs one per request")
    table[CACHED] = table.get(CACHED, 0)

    is_valid = _valid_rows(table)
    if not is_valid.all():
        row = int(np.flatnonzero(~is_valid.to_numpy())[0]) + 1
        raise RunTableError(
            f"{path}, row {row}: at_s must be 0 or more seconds, isl and osl whole numbers of "
            "at least 1 token, cached less than isl"
        )

    by_arrival = table.sort_values("at_s", kind="stable")
    return Requests(
        arrival_ms=1e3 * by_arrival["at_s"].to_numpy(dtype=float),
        isl=by_arrival["isl"].to_numpy(dtype=int),
        osl=by_arrival["osl"].to_numpy(dtype=int),
        cached=by_arrival[CACHED].to_numpy(dtype=int),
    )


def read_numbers(
    path: str | os.PathLike[str], columns: Sequence[str], what: str, optional: str = ""
) -> pd.DataFrame:
    """Return numeric columns of a CSV or Parquet file, NaN for texts; raises RunTableError.

    ``what`` names the table in messages. A column ``optional`` is returned if there is one.
    """
    table = read_table(Path(path), columns)
    require(table, columns, Path(path), what)
    with translate_read_errors(path, RunTableError, "is damaged: {}"):
        present = [name for name in (*columns, optional) if name in table]
        return table[present].apply(pd.to_numeric, errors="coerce")


def _valid_rows(table: pd.DataFrame) -> "pd.Series[bool]":
    """Return which rows of a trace are valid; NaN is not."""
    is_whole = (table[["isl", "osl", CACHED]] % 1 == 0).all(axis=1)
    is_small = (table[["isl", "osl"]] < MAX_TOKENS).all(axis=1)
    arrives = (table["at_s"] >= 0) & (table["at_s"] < np.inf)
    has_tokens = (table["isl"] >= 1) & (table["osl"] >= 1)
    cached_fits = (table[CACHED] >= 0) & (table[CACHED] < table["isl"])
    return is_whole & is_small & arrives & has_tokens & cached_fits
