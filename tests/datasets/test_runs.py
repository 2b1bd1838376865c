"""Tests run tables on disk: `datasets/runs.py`."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.datasets import from_measurements, newest_runs, read_runs, to_measurements, write_runs
from foretune.datasets.run_log import RunLog
from foretune.errors import OutputError, RunTableError, UsageError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NAMES = st.text("abcXYZ_09", min_size=1, max_size=4)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False),
    TEXT,
)
POSITIVE = st.floats(1e-9, 1e9)
MAYBE = st.one_of(st.just(math.nan), POSITIVE)


@st.composite
def measurements(draw):
    status = draw(st.sampled_from(Status))
    ok = status is Status.OK
    return Measurement(
        kernel=draw(TEXT.filter(bool)),
        problem=Problem(draw(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3))),
        config=Configuration(draw(st.dictionaries(NAMES, VALUES, max_size=3))),
        device=draw(TEXT.filter(bool)),
        status=status,
        time_ms=draw(POSITIVE) if ok else math.nan,
        time_ms_samples=tuple(draw(st.lists(POSITIVE, max_size=3))) if ok else (),
        power_w=draw(MAYBE) if ok else math.nan,
        energy_mj=draw(MAYBE) if ok else math.nan,
        compile_s=draw(MAYBE),
        relative_error=draw(MAYBE),
        static=draw(st.dictionaries(NAMES, POSITIVE, max_size=2)),
        error="" if ok else draw(TEXT),
        source=draw(TEXT),
        recorded_at=draw(st.datetimes()).isoformat(),
        environment=draw(TEXT),
    )


def same(a, b):
    """Compare measurements, NaN being equal to NaN."""
    return repr(_sortable(a)) == repr(_sortable(b))


def _sortable(m):
    values = {**vars(m), "static": sorted(m.static.items())}
    return {**values, "problem": m.problem.id, "config": m.config.id}


@given(st.lists(measurements(), min_size=1, max_size=5))
def test_write_runs_keeps_measurements(tmp_path, written):
    path = tmp_path / "runs.parquet"
    write_runs(path, from_measurements(written))
    read = to_measurements(read_runs(path))
    assert len(read) == len(written)
    assert all(same(a, b) for a, b in zip(read, written, strict=True))


def test_write_runs_csv_name_is_refused(tmp_path, toy_measurements):
    for write in (RunLog, lambda path: write_runs(path, from_measurements(toy_measurements))):
        with pytest.raises(UsageError, match=r"runs.csv: run tables are Parquet files: use a name"):
            write(tmp_path / "runs.csv")
    assert not any(tmp_path.iterdir())


def test_to_measurements_restores_types_of_columns_with_gaps(tmp_path):
    rows = [
        run(x=64, flag=True, mode="a", split="auto"),
        run(x=32, flag=False, split=4),
        run(y=0.5, split=True),
    ]
    write_runs(tmp_path / "runs.parquet", from_measurements(rows))
    configs = [m.config for m in to_measurements(read_runs(tmp_path / "runs.parquet"))]
    assert configs == [m.config for m in rows]
    assert [[type(v) for v in c.values()] for c in configs] == [
        [type(m.config[name]) for name in c] for m, c in zip(rows, configs, strict=True)
    ]


def test_write_runs_keeps_categories_of_mixed_types(tmp_path):
    runs = from_measurements([run(x=1), run(x="a"), run(x=0.5), run(y=1)])
    runs["config.x"] = runs["config.x"].astype("category")
    write_runs(tmp_path / "runs.parquet", runs)
    assert read_runs(tmp_path / "runs.parquet")["config.x"].tolist()[:3] == [1, "a", 0.5]


def test_from_measurements_stores_specs_in_every_row(toy_measurements, toy_device):
    runs = from_measurements(toy_measurements, toy_device)
    for name, value in toy_device.specs.items():
        assert (runs[f"device.{name}"] == value).all()


def test_ordered_columns_in_reading_order():
    columns = list(from_measurements([run(x=1)]).columns)
    assert columns[:6] == ["kernel", "device", "status", "problem.M", "config.x", "time_ms"]


def run(M=64, status=Status.OK, time_ms=1.0, recorded_at="2026-01-01T00:00:00", **config):
    time_ms = time_ms if status is Status.OK else math.nan
    return Measurement(
        "toy",
        Problem(M=M),
        Configuration(config),
        "Toy CPU",
        status,
        time_ms,
        recorded_at=recorded_at,
    )


def test_read_runs_needs_required_columns_only(tmp_path):
    runs = pd.DataFrame(
        {"kernel": ["k"], "device": ["d"], "status": ["ok"], "config.x": [1], "time_ms": [2.0]}
    )
    write_runs(tmp_path / "a.parquet", runs)
    (m,) = to_measurements(read_runs(tmp_path / "a.parquet"))
    assert (m.config, m.problem, m.time_ms, m.time_ms_samples) == ({"x": 1}, {}, 2.0, ())
    assert math.isnan(m.power_w)


def test_read_runs_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunTableError, match=r"^\. is a folder, not a run table: give a file in"):
        read_runs(".")
    (tmp_path / "runs.parquet").touch()
    with pytest.raises(RunTableError, match=r"not a run table: give runs\.parquet$"):
        read_runs(".")


def test_read_runs_missing_file_says_how_to_collect(tmp_path):
    with pytest.raises(RunTableError, match="does not exist: collect one with 'foretune collect'"):
        read_runs(tmp_path / "none.parquet")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunTableError, match="does not exist"):
        read_runs(tmp_path / "file" / "none.parquet")


@pytest.mark.parametrize("keep", [0, 3, 100, -20])
def test_read_runs_truncated_file_is_refused(tmp_path, keep):
    path = tmp_path / "runs.parquet"
    write_runs(path, from_measurements([run(x=1)]))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RunTableError, match=r"runs\.parquet is not a readable Parquet file"):
        read_runs(path)


def test_read_runs_newer_version_is_refused(tmp_path):
    path = tmp_path / "runs.parquet"
    write_runs(path, from_measurements([run(x=1)]))
    table = pq.read_table(path)
    note = {**table.schema.metadata, b"foretune.schema_version": b"2"}
    pq.write_table(table.replace_schema_metadata(note), path)
    with pytest.raises(RunTableError, match="schema version 2, this Foretune reads up to 1: inst"):
        read_runs(path)


def test_read_runs_validates(tmp_path):
    path = tmp_path / "runs.parquet"
    runs = from_measurements([run(x=1), run(x=2)])
    runs.loc[1, "time_ms"] = 0.0
    pq.write_table(pa.Table.from_pandas(runs), path)
    with pytest.raises(RunTableError, match=r"runs\.parquet, row 1: status is ok but time_ms is 0"):
        read_runs(path)


def test_write_runs_invalid_table_leaves_old_file(tmp_path):
    path = tmp_path / "runs.parquet"
    write_runs(path, from_measurements([run(x=1)]))
    before = path.read_bytes()
    with pytest.raises(RunTableError, match="row 0"):
        write_runs(path, from_measurements([run(x=1)]).assign(time_ms=-1.0))
    with pytest.raises(RunTableError, match="Parquet cannot hold"):
        write_runs(path, from_measurements([run(x=2**64 - 1), run(x=-1)]))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["runs.parquet"]


def test_write_runs_unwritable_folder_is_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_runs(tmp_path / "file" / "runs.parquet", from_measurements([run(x=1)]))
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        write_runs(tmp_path / "folder.parquet", from_measurements([run(x=1)]))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.parquet"]


def times(runs):
    return newest_runs(runs)["time_ms"].tolist()


def test_newest_runs_keeps_newest():
    runs = from_measurements(
        [
            run(x=1, time_ms=1.0, recorded_at="2026-01-02T00:00:00"),
            run(x=2, time_ms=2.0),
            run(x=1, time_ms=3.0, recorded_at="2026-01-01T00:00:00"),
            run(M=32, x=1, time_ms=4.0),
        ]
    )
    assert times(runs) == [1.0, 2.0, 4.0]


def test_newest_runs_equal_times_keep_last():
    runs = from_measurements([run(x=1, time_ms=1.0), run(x=1, time_ms=2.0)])
    assert times(runs) == [2.0]
    assert times(runs.drop(columns="recorded_at")) == [2.0]


def test_newest_runs_keeps_newer_failure():
    older, newer = run(x=1), run(x=1, status=Status.TIMEOUT, recorded_at="2027-01-01T00:00:00")
    assert newest_runs(from_measurements([newer, older]))["status"].tolist() == ["timeout"]


def test_newest_runs_rows_without_time_are_oldest():
    runs = from_measurements([run(x=1, time_ms=1.0), run(x=1, time_ms=2.0), run(x=1, time_ms=3.0)])
    runs["recorded_at"] = ["2026-01-01T00:00:00", None, None]
    assert times(runs) == [1.0]


def test_newest_runs_compares_categorical_times():
    runs = from_measurements(
        [
            run(x=1, time_ms=1.0, recorded_at="2026-02-01T00:00:00"),
            run(x=1, time_ms=2.0, recorded_at="2026-01-01T00:00:00"),
        ]
    )
    order = ["2026-02-01T00:00:00", "2026-01-01T00:00:00"]
    runs["recorded_at"] = pd.Categorical(runs["recorded_at"], categories=order)
    assert times(runs) == [1.0]


def test_newest_runs_gap_is_a_value():
    runs = from_measurements([run(x=1), run(x=1, y=2), run(y=2), run(x=1, y=2)])
    assert len(newest_runs(runs)) == 3


def test_newest_runs_keeps_order_and_index():
    runs = from_measurements([run(x=3), run(x=1), run(x=2), run(x=1)])
    runs.index = pd.Index([10, 11, 12, 13])
    kept = newest_runs(runs)
    assert kept.index.tolist() == [10, 12, 13]
    assert kept["config.x"].tolist() == [3, 2, 1]


@pytest.mark.shared_data
def test_read_runs_reads_measured_spaces(shared_data):
    manifest = json.loads((shared_data / "spaces" / "manifest.json").read_text())
    assert manifest["spaces"]
    for space in manifest["spaces"]:
        runs = read_runs(shared_data / "spaces" / space["file"])
        assert len(runs) == space["rows"], space["file"]
        assert (runs["status"] == "ok").sum() == space["ok"], space["file"]
        assert runs["time_ms"].min() == pytest.approx(space["best_ms"]), space["file"]


@pytest.mark.shared_data
def test_to_measurements_and_back_keeps_measured_space(shared_data, tmp_path):
    runs = read_runs(next(iter(sorted((shared_data / "spaces").glob("pnpoly__*.parquet"))))).head(
        500
    )
    measured = to_measurements(runs)
    write_runs(tmp_path / "again.parquet", from_measurements(measured))
    again = to_measurements(read_runs(Path(tmp_path / "again.parquet")))
    assert all(same(a, b) for a, b in zip(measured, again, strict=True))
    np.testing.assert_array_equal([m.time_ms for m in again], runs["time_ms"])
