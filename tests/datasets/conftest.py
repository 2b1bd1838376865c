"""What the tests of importers share."""

import pandas as pd
import pytest

from foretune.datasets import read_runs, write_runs


@pytest.fixture
def survives(tmp_path):
    """Write what was imported, read it again, and return it if nothing has changed."""

    def check(imported):
        path = tmp_path / "survives.parquet"
        write_runs(path, imported.runs)
        again, lists = read_runs(path), [c for c in imported.runs if c == "time_ms_samples"]
        was, now = imported.runs.drop(columns=lists), again.drop(columns=lists)
        if not (now.equals(was) and now.dtypes.equals(was.dtypes)):  # many times faster than:
            pd.testing.assert_frame_equal(now, was)
        for column in lists:
            for was, now in zip(imported.runs[column], again[column], strict=True):
                assert now is None if was is None else list(now) == was
        return again

    return check
