"""Demand on a fleet: requests per second of each length."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers.files import read_table, require
from foretune.errors import RunTableError
from foretune.files import translate_read_errors
from foretune.plan.describe.workload import Workload
from foretune.plan.engine.requests import MAX_TOKENS

COLUMNS = ("isl", "osl", "requests_per_s")


@dataclass(frozen=True)
class Demand:
    """Requests of one length.

    ``per_s`` arrive per second.
    """

    workload: Workload
    per_s: float

    def __str__(self) -> str:
        return f"{self.workload.isl}+{self.workload.osl} tokens"


def read_requests(path: str | os.PathLike[str]) -> list[Demand]:
    """Return the demands in a CSV or Parquet file with columns ``isl, osl, requests_per_s``.

    Rows of one length are summed; zero rates are dropped. Raises RunTableError if the file cannot
    be read, lacks a column, or has an invalid row.
    """
    table = read_table(Path(path), COLUMNS)
    require(table, COLUMNS, Path(path), "a table of requests")
    with translate_read_errors(path, RunTableError, "is damaged: {}"):
        numbers = table[list(COLUMNS)].apply(pd.to_numeric, errors="coerce")
    for i, row in enumerate(numbers.to_dict("records"), 1):
        if error := _row_error(row):
            raise RunTableError(f"{path}, row {i}: {error}")
    per_s = numbers.groupby(["isl", "osl"])["requests_per_s"].sum()
    found = [
        Demand(Workload(int(i), int(o)), float(rate)) for (i, o), rate in per_s.items() if rate
    ]
    if not found:
        raise RunTableError(f"{path} has no requests: add rows of {', '.join(COLUMNS)}")
    return found


def _row_error(row: Mapping[str, float]) -> str:
    """Return what is wrong with a row; empty if it is valid."""
    for name in ("isl", "osl"):
        if not (row[name] >= 1 and row[name] == np.floor(row[name]) < MAX_TOKENS):
            return f"{name} must be a whole number of tokens, at least 1"
    if not 0 <= row["requests_per_s"] < np.inf:
        return "requests_per_s must be a number of requests, not below 0"
    return ""
