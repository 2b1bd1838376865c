"""Traces and shares of requests: `plan/engine/requests.py`."""

import pandas as pd
import pytest

from foretune.errors import RunTableError
from foretune.plan.engine.requests import Requests, read_trace


def test_read_trace_sorts_by_arrival(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("at_s,isl,osl\n2,100,10\n0.5,200,20\n")
    requests = read_trace(path)
    assert requests.arrival_ms.tolist() == [500.0, 2000.0]
    assert requests.isl.tolist() == [200, 100]
    assert requests.cached.tolist() == [0, 0]


def test_read_trace_parquet_with_cached_tokens(tmp_path):
    path = tmp_path / "trace.parquet"
    pd.DataFrame({"at_s": [0.0], "isl": [9], "osl": [1], "cached": [4]}).to_parquet(path)
    assert read_trace(path).cached.tolist() == [4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("at_s,isl\n1,2\n", "column 'osl' is missing"),
        ("at_s,isl,osl\n", "no rows"),
        ("at_s,isl,osl\n-1,5,5\n", "row 1"),
        ("at_s,isl,osl\n1,5,5\n1,5.5,5\n", "row 2"),
        ("at_s,isl,osl,cached\n1,5,5,5\n", "row 1"),
        ("", "is not a readable table"),
    ],
)
def test_read_trace_invalid_row_is_named(tmp_path, text, said):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(RunTableError, match=said):
        read_trace(path)


def test_shard_deals_requests_in_turn():
    requests = Requests.poisson(10.0, 7, 5, 5)
    parts = [requests.shard(i, 3) for i in range(3)]
    assert [len(part) for part in parts] == [3, 2, 2]
    assert parts[1].arrival_ms[0] == requests.arrival_ms[1]
