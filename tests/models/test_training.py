"""Training and validating a predictor: `models/training.py`."""

import numpy as np
import pandas as pd
import pytest

from foretune.errors import RunTableError
from foretune.models import train_predictor

QUICK = {"rounds": 10, "rate": 0.5}


def products(n=60):
    """Return a plain table: sizes in columns of their own names, and the time."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"M": rng.integers(1, 99, n), "N": rng.integers(1, 99, n)})
    return table.assign(time_ms=0.1 + table["M"] * table["N"] / 1e3)


def train(table, **options):
    return train_predictor(table, parameters=QUICK, validate="none", **options)


@pytest.mark.parametrize(
    ("column", "cells", "expected"),
    [
        ("status", ["passed", "OOM"], ["ok", "runtime_error"]),
        ("device", ["H200"], ["H200"]),
        ("kernel", ["theirs"], ["theirs"]),
    ],
)
def test_train_predictor_plain_table_may_have_column_of_run_tables(column, cells, expected):
    table = products()
    table[column] = np.resize(cells, len(table))

    runs = train(table).predictor.runs_

    assert {"problem.M", "problem.N"} <= set(runs)
    assert sorted(set(runs[column])) == expected


def test_train_predictor_run_table_without_kernel_is_refused():
    table = products().rename(columns={"M": "problem.M", "N": "problem.N"})
    with pytest.raises(RunTableError, match="column 'kernel' is missing"):
        train(table.assign(device="H200", status="ok"))
