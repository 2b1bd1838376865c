"""Tests the run log: no measured row is lost, whatever happens: `datasets/run_log.py`."""

import json
import math
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretune.datasets import RunLog, from_measurements, read_runs, write_runs
from foretune.datasets import runs as runs_module
from foretune.datasets.journal import journal_path, read_journal
from foretune.datasets.schema import validate
from foretune.device import Device
from foretune.errors import OutputError, RunTableError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "runs.parquet"


def run(time_ms=1.0, M=64, status=Status.OK, recorded_at="2026-01-01T00:00:00", **config):
    return Measurement(
        "toy",
        Problem(M=M),
        Configuration(config),
        "Toy CPU",
        status,
        time_ms if status is Status.OK else math.nan,
        recorded_at=recorded_at,
    )


def kill(log):
    """End the log as a killed process would: the file is closed, nothing is folded."""
    log._journal.close()
    log._lock._lock.release()


def configs(path):
    return read_runs(path)["config.x"].tolist()


def test_close_leaves_one_parquet_file(path, toy_device):
    with RunLog(path, toy_device) as log:
        log.append(run(x=1))
        log.append(run(x=2, status=Status.COMPILE_ERROR))
        assert len(log) == 2
    assert [p.name for p in path.parent.iterdir()] == ["runs.parquet"]
    runs = read_runs(path)
    assert runs["config.x"].tolist() == [1, 2]
    assert runs["status"].tolist() == ["ok", "compile_error"]
    assert runs["device.cores"].tolist() == [4.0, 4.0]


def test_read_runs_sees_rows_of_open_and_killed_log(path):
    killed = RunLog(path)
    killed.append(run(x=1))
    killed.append(run(x=2))
    assert configs(path) == [1, 2]
    assert not path.exists()
    kill(killed)
    with RunLog(path) as log:
        assert len(log) == 2
        log.append(run(x=3))
        assert configs(path) == [1, 2, 3]
    assert configs(path) == [1, 2, 3]
    assert not journal_path(path).exists()


def test_append_after_deleted_folder_is_error(path):
    with RunLog(path) as log:
        log.append(run(x=1))
        shutil.rmtree(path.parent)
        with pytest.raises(OutputError, match="was deleted while it was in use"):
            log.append(run(x=2))


def test_open_ignores_partial_last_line(path):
    killed = RunLog(path)
    killed.append(run(x=1))
    kill(killed)
    with journal_path(path).open("a") as journal:
        journal.write('{"kernel": "toy", "dev')
    assert configs(path) == [1]
    with RunLog(path) as log:
        log.append(run(x=2))
        assert configs(path) == [1, 2]
    assert configs(path) == [1, 2]


@pytest.mark.parametrize("left", ["", '{"kern'])
def test_open_after_kill_before_first_row(path, left):
    kill(RunLog(path))
    journal_path(path).write_text(left)
    with RunLog(path) as log:
        assert len(log) == 0
        log.append(run(x=1))
    assert configs(path) == [1]


def test_open_names_damaged_line(path):
    killed = RunLog(path)
    killed.append(run(x=1))
    kill(killed)
    with journal_path(path).open("a") as journal:
        journal.write('{"kernel": nonsense\n')
    with pytest.raises(RunTableError, match=r"journal, line 2 is damaged"):
        read_runs(path)
    with pytest.raises(RunTableError, match=r"journal, line 2 is damaged"):
        RunLog(path)


def test_open_impossible_line_leaves_file(path):
    with RunLog(path) as log:
        log.append(run(x=1))
    killed = RunLog(path)
    killed.append(run(time_ms=2.5, x=2))
    kill(killed)
    journal = journal_path(path)
    journal.write_text(journal.read_text().replace("2.5", "-2.5"))
    with pytest.raises(RunTableError, match=r"journal, row 0: status is ok but time_ms is -2.5"):
        RunLog(path)
    journal.unlink()
    assert configs(path) == [1]


def test_find_returns_rows_of_interrupted_collection(path):
    first = run(time_ms=3.0, x=1, flag=True)
    with RunLog(path) as log:
        log.append(first)
        log.append(run(x=2, y=0.5))
    with RunLog(path) as log:
        assert log.find(run(x=1, flag=True)) == log.find(first)
        assert log.find(first).time_ms == 3.0
        assert log.find(("toy", "Toy CPU", Problem(M=64), Configuration(x=2, y=0.5))) is not None
        assert log.find(run(x=2)) is None
        assert log.find(run(x=1, flag=True, M=32)) is None
        assert log.find(("toy", "Another", Problem(M=64), first.config)) is None


def test_find_returns_newest_row(path):
    with RunLog(path) as log:
        log.append(run(time_ms=1.0, x=1))
        log.append(run(time_ms=2.0, x=1))
        assert log.find(run(x=1)).time_ms == 2.0
        assert len(log) == 1
    with RunLog(path) as log:
        assert len(log) == 1
        assert log.find(run(x=1)).time_ms == 2.0
    assert len(read_runs(path)) == 2  # nothing is thrown away


def test_append_merges_other_columns(path, toy_device):
    write_runs(path, from_measurements([run(x=1, mode="a"), run(x=2, mode="b")]))
    with RunLog(path, toy_device) as log:
        log.append(run(x=4, flag=True))
        log.append(run(x="auto"))
    with RunLog(path) as log:
        assert len(log) == 4
        for config in (
            {"x": 1, "mode": "a"},
            {"x": 2, "mode": "b"},
            {"x": 4, "flag": True},
            {"x": "auto"},
        ):
            assert log.find(run(**config)).config == config
        assert log.find(run(x=4, flag=True)) is not None


def test_append_to_rows_without_recorded_at(path):
    write_runs(path, from_measurements([run(time_ms=1.0, x=1)]).drop(columns="recorded_at"))
    with RunLog(path) as log:
        log.append(run(time_ms=2.0, x=1))
    with RunLog(path) as log:
        assert log.find(run(x=1)).time_ms == 2.0


@pytest.mark.parametrize(
    "bad", [run(time_ms=0.0, x=1), run(time_ms=-1.0, x=1), run(time_ms=math.inf, x=1)]
)
def test_append_impossible_row_is_refused(path, bad):
    with RunLog(path) as log:
        log.append(run(x=2))
        with pytest.raises(RunTableError, match="time_ms is"):
            log.append(bad)
        assert log.find(bad) is None
    assert configs(path) == [2]


def test_append_power_above_limit_is_refused(path, toy_device):
    with RunLog(path, toy_device) as log:
        log.append(replace(run(x=1), power_w=toy_device.specs["power_limit_w"]))
        with pytest.raises(RunTableError, match="far above the device's power limit"):
            log.append(replace(run(x=2), power_w=2 * toy_device.specs["power_limit_w"]))
    assert configs(path) == [1]


def test_append_takes_numpy_numbers(path):
    with RunLog(path) as log:
        log.append(run(time_ms=np.float32(0.5), x=np.int64(3)))
    runs = read_runs(path)
    assert runs["time_ms"].tolist() == [0.5]
    assert runs["config.x"].tolist() == [3]


def test_append_keeps_any_text(path):
    strange = "line\nbreak \u2028 \x85 \x1c 'ü' 🚀 \\ \""
    killed = RunLog(path)
    killed.append(run(x=strange))
    assert configs(path) == [strange]
    killed.close()
    assert configs(path) == [strange]


def test_close_empty_log_leaves_no_file(path):
    with RunLog(path) as log:
        assert len(log) == 0
        assert log.runs().empty
        assert log.kernels() == set()
    assert list(path.parent.iterdir()) == []


def test_runs_returns_all_rows(path):
    with RunLog(path) as log:
        log.append(run(x=1))
        assert log.runs()["config.x"].tolist() == [1]
        log.append(run(x=2))
        assert log.runs()["config.x"].tolist() == [1, 2]


def test_read_runs_during_close_returns_all_rows(path, monkeypatch):
    with RunLog(path) as log:
        log.append(run(x=1))
    log, digest = RunLog(path), runs_module.digest
    log.append(run(x=2))
    monkeypatch.setattr(runs_module, "digest", lambda journal: (log.close(), digest(journal))[1])
    assert configs(path) == [1, 2]


def test_close_twice_is_harmless(path):
    log = RunLog(path)
    log.append(run(x=1))
    log.close()
    log.close()
    assert configs(path) == [1]


def test_exception_in_block_still_merges_journal(path):
    def interrupted():
        with RunLog(path) as log:
            log.append(run(x=1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert configs(path) == [1]
    assert not journal_path(path).exists()


def test_open_unwritable_folder_is_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write to"):
        RunLog(tmp_path / "file" / "runs.parquet")


def test_open_other_file_is_refused_and_unchanged(tmp_path):
    other = tmp_path / "runs.parquet"
    other.write_text("my thesis")
    with pytest.raises(RunTableError, match="not a readable Parquet file"):
        RunLog(other)
    assert other.read_text() == "my thesis"
    assert [*tmp_path.iterdir()] == [other], "neither a journal nor a lock is left"


def test_journal_is_json_lines(path):
    log = RunLog(path)
    log.append(run(x=1, flag=True))
    (line,) = journal_path(path).read_text().splitlines()
    assert json.loads(line)["config.flag"] is True
    log.close()


def test_open_by_two_processes_is_refused(path):
    with RunLog(path) as first:
        first.append(run(x=1))
        with pytest.raises(OutputError, match="in use by another process"):
            RunLog(path)
        assert configs(path) == [1]
    with RunLog(path) as second:
        second.append(run(x=2))
    assert configs(path) == [1, 2]


def test_open_rows_merged_twice_count_once(path):
    killed = RunLog(path)
    killed.append(run(x=1))
    rows = journal_path(path).read_text()
    killed.close()
    journal_path(path).write_text(rows)  # killed between writing the file and removing the journal
    RunLog(path).close()
    assert configs(path) == [1]


class Full:
    """A journal on a full disk."""

    name, closed = "journal", False

    def write(self, text):
        raise OSError(28, "No space left on device")

    def close(self):
        raise OSError(28, "No space left on device")


def test_append_full_disk_is_error_and_loses_nothing(path, monkeypatch):
    log = RunLog(path)
    log.append(run(x=1))
    log._journal._file.close()
    monkeypatch.setattr(log._journal, "_file", Full())
    with pytest.raises(OutputError, match="No space left on device"):
        log.append(run(x=2))
    with pytest.raises(OutputError, match="No space left on device"):
        log.close()
    assert configs(path) == [1]
    with RunLog(path) as again:  # the lock is free
        again.append(run(x=2))
    assert configs(path) == [1, 2]


def test_close_syncs_file_before_removing_journal(path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), fsync(fd)))
    with RunLog(path) as log:
        log.append(run(x=1))
    assert path.stat().st_ino == synced[-1]


CELLS = st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | st.sampled_from("ab")
ROWS = st.lists(
    st.builds(
        lambda x, y, time_ms, samples: replace(
            run(time_ms, **{n: v for n, v in (("z", 0), ("x", x), ("y", y)) if v is not None}),
            time_ms_samples=tuple(samples),
        ),
        CELLS,
        CELLS,
        st.floats(0.1, 9),
        st.lists(st.floats(0.1, 9), max_size=2),
    ),
    max_size=8,
)


@settings(max_examples=20)
@given(st.lists(ROWS, max_size=3))
def test_extend_in_pieces_keeps_all_values(tmp_path_factory, parts):
    path = tmp_path_factory.mktemp("log") / "runs.parquet"
    last = {}
    for rows in parts:
        with RunLog(path) as log:
            for m in rows:
                log.append(m)
                last[log_name(m)] = m
                assert log.find(m) == m
            assert len(log) == len(last)
    with RunLog(path) as log:
        assert len(log) == len(last)
        for name, m in last.items():
            assert log.find(name) == m
        assert log.find(run(x="never")) is None
        if last:
            assert log.kernels() == {"toy"}
            assert len(log.runs()) == sum(map(len, parts))


def log_name(m):
    return m.kernel, m.device, m.problem, m.config


def test_append_merges_long_journal(path, monkeypatch):
    monkeypatch.setattr("foretune.datasets.run_log.MAX_JOURNAL_ROWS", 4)
    with RunLog(path) as log:
        for x in range(10):
            log.append(run(time_ms=1.0 + x, x=x))
        assert len(read_journal_rows(path)) == 2
        assert [log.find(run(x=x)).time_ms for x in range(10)] == [1.0 + x for x in range(10)]
        assert configs(path) == list(range(10))
    assert configs(path) == list(range(10))


def read_journal_rows(path):
    return list(read_journal(journal_path(path)))


def test_find_last_row_counts_whatever_its_time(path):
    with RunLog(path) as log:
        log.append(run(time_ms=1.0, x=1, recorded_at="2030-01-01T00:00:00"))
        log.append(run(time_ms=2.0, x=1))
        assert log.find(run(x=1)).time_ms == 2.0
    with RunLog(path) as log:
        assert log.find(run(x=1)).time_ms == 2.0


AMOUNTS = st.sampled_from([math.nan, math.inf, -1.0, 0.0, 1.0, 100.0])


@given(
    st.builds(
        lambda status, time_ms, power_w, energy_mj, kernel: replace(
            run(x=1),
            status=status,
            time_ms=time_ms,
            power_w=power_w,
            energy_mj=energy_mj,
            kernel=kernel,
        ),
        st.sampled_from(Status),
        AMOUNTS,
        AMOUNTS,
        AMOUNTS,
        st.sampled_from(["", "toy"]),
    )
)
def test_check_and_validate_agree(m):
    device = Device("Toy CPU", "cpu", specs={"power_limit_w": 50.0})
    said = []
    for judge in (lambda: m.check(50.0), lambda: validate(from_measurements([m], device))):
        try:
            judge()
            said.append(True)
        except RunTableError:
            said.append(False)
    assert said[0] == said[1]
