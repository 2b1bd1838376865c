"""Histograms of requests, good and bad."""

import pandas as pd
import pytest

from foretune.errors import RunTableError
from foretune.plan import Workload
from foretune.plan.fleet.capacity import Demand, read_requests

TABLE = pd.DataFrame(
    {"isl": [128, 2048, 128, 64], "osl": [32, 256, 32, 8], "requests_per_s": [1.5, 0.5, 2.5, 0.0]}
)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_lengths_are_added_up_and_idle_ones_left_out(tmp_path, suffix):
    path = tmp_path / f"requests.{suffix}"
    TABLE.to_csv(path, index=False) if suffix == "csv" else TABLE.to_parquet(path)
    assert read_requests(path) == [
        Demand(Workload(128, 32), 4.0),
        Demand(Workload(2048, 256), 0.5),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a readable table"),
        (
            "isl,osl\n1,1\n",
            "column 'requests_per_s' is missing .expected: isl, osl, requests_per_s",
        ),
        ("isl,osl,requests_per_s\n", "has no requests"),
        ("isl,osl,requests_per_s\n9,9,0\n", "has no requests"),
        ("isl,osl,requests_per_s\n9,9,1\n9,9,-1\n", "row 2: requests_per_s must be a number"),
        ("isl,osl,requests_per_s\n9,9,many\n", "row 1: requests_per_s must be a number"),
        ("isl,osl,requests_per_s\n9,9,inf\n", "row 1: requests_per_s must be a number"),
        ("isl,osl,requests_per_s\n0,9,1\n", "row 1: isl must be a whole number"),
        ("isl,osl,requests_per_s\n9,1.5,1\n", "row 1: osl must be a whole number"),
        ("isl,osl,requests_per_s\n9,inf,1\n", "row 1: osl must be a whole number"),
        ('isl,osl,requests_per_s\n"9,9,1\n', "a quote in it is not closed"),
    ],
)
def test_bad_files(tmp_path, text, reason):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(RunTableError, match=reason):
        read_requests(path)


def test_files_that_are_none(tmp_path):
    with pytest.raises(RunTableError, match="is not a readable table"):
        read_requests(tmp_path / "absent.csv")
    (tmp_path / "text.parquet").write_text("isl,osl,requests_per_s\n")
    with pytest.raises(RunTableError, match="is not a readable table"):
        read_requests(tmp_path / "text.parquet")
