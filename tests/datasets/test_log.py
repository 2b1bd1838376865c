"""The run log: whatever happens to the process, what was measured stays."""

import json
import math
import shutil

import numpy as np
import pytest

from foretune.datasets import RunLog, from_measurements, read_runs, write_runs
from foretune.datasets.runs import journal_of
from foretune.errors import OutputError, RunTableError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "runs.parquet"


def run(time_ms=1.0, M=64, status=Status.OK, recorded_at="2026-01-01T00:00:00", **config):
    return Measurement(
        "toy", Problem(M=M), Configuration(config), "Toy CPU", status,
        time_ms if status is Status.OK else math.nan, recorded_at=recorded_at,
    )  # fmt: skip


def kill(log):
    """End the log as a killed process would: the file is closed, nothing is folded."""
    log._journal.close()
    log._lock._held.close()


def configs(path):
    return read_runs(path)["config.x"].tolist()


def test_closing_leaves_one_parquet_file(path, toy_device):
    with RunLog(path, toy_device) as log:
        log.append(run(x=1))
        log.append(run(x=2, status=Status.COMPILE_ERROR))
        assert len(log) == 2
    assert [p.name for p in path.parent.iterdir()] == ["runs.parquet"]
    runs = read_runs(path)
    assert runs["config.x"].tolist() == [1, 2]
    assert runs["status"].tolist() == ["ok", "compile_error"]
    assert runs["device.cores"].tolist() == [4.0, 4.0]


def test_rows_can_be_read_while_the_log_is_open_and_after_a_kill(path):
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
    assert not journal_of(path).exists()


def test_a_folder_that_is_deleted_is_noticed_at_once(path):
    with RunLog(path) as log:
        log.append(run(x=1))
        shutil.rmtree(path.parent)
        with pytest.raises(OutputError, match="was deleted while measurements went there"):
            log.append(run(x=2))


def test_half_a_line_at_the_end_is_ignored_and_does_not_spoil_the_next(path):
    killed = RunLog(path)
    killed.append(run(x=1))
    kill(killed)
    with journal_of(path).open("a") as journal:
        journal.write('{"kernel": "toy", "dev')
    assert configs(path) == [1]
    with RunLog(path) as log:
        log.append(run(x=2))
        assert configs(path) == [1, 2]
    assert configs(path) == [1, 2]


@pytest.mark.parametrize("left", ["", '{"kern'])
def test_a_kill_before_the_first_row(path, left):
    kill(RunLog(path))
    journal_of(path).write_text(left)
    with RunLog(path) as log:
        assert len(log) == 0
        log.append(run(x=1))
    assert configs(path) == [1]


def test_a_damaged_line_is_named(path):
    killed = RunLog(path)
    killed.append(run(x=1))
    kill(killed)
    with journal_of(path).open("a") as journal:
        journal.write('{"kernel": nonsense\n')
    with pytest.raises(RunTableError, match=r"journal, line 2 is damaged"):
        read_runs(path)
    with pytest.raises(RunTableError, match=r"journal, line 2 is damaged"):
        RunLog(path)


def test_an_interrupted_collection_finds_its_place(path):
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


def test_the_newest_is_found(path):
    with RunLog(path) as log:
        log.append(run(time_ms=1.0, x=1))
        log.append(run(time_ms=2.0, x=1))
        assert log.find(run(x=1)).time_ms == 2.0
        assert len(log) == 1
    with RunLog(path) as log:
        assert [m.time_ms for m in log.measurements()] == [2.0]
    assert len(read_runs(path)) == 2  # nothing is thrown away


def test_appending_to_a_file_with_other_columns(path, toy_device):
    write_runs(path, from_measurements([run(x=1, mode="a"), run(x=2, mode="b")]))
    with RunLog(path, toy_device) as log:
        log.append(run(x=4, flag=True))
        log.append(run(x="auto"))
    with RunLog(path) as log:
        assert [m.config for m in log.measurements()] == [
            {"x": 1, "mode": "a"}, {"x": 2, "mode": "b"}, {"x": 4, "flag": True}, {"x": "auto"},
        ]  # fmt: skip
        assert log.find(run(x=4, flag=True)) is not None


def test_appending_to_rows_of_unknown_time(path):
    write_runs(path, from_measurements([run(time_ms=1.0, x=1)]).drop(columns="recorded_at"))
    with RunLog(path) as log:
        log.append(run(time_ms=2.0, x=1))
    with RunLog(path) as log:
        assert log.find(run(x=1)).time_ms == 2.0


@pytest.mark.parametrize(
    "bad", [run(time_ms=0.0, x=1), run(time_ms=-1.0, x=1), run(time_ms=math.inf, x=1)]
)
def test_an_impossible_row_is_refused_and_spoils_nothing(path, bad):
    with RunLog(path) as log:
        log.append(run(x=2))
        with pytest.raises(RunTableError, match="time_ms is"):
            log.append(bad)
        assert log.find(bad) is None
    assert configs(path) == [2]


def test_numpy_numbers_can_be_appended(path):
    with RunLog(path) as log:
        log.append(run(time_ms=np.float32(0.5), x=np.int64(3)))
    runs = read_runs(path)
    assert runs["time_ms"].tolist() == [0.5]
    assert runs["config.x"].tolist() == [3]


def test_text_of_every_kind(path):
    strange = "line\nbreak \u2028 \x85 \x1c 'ü' 🚀 \\ \""
    killed = RunLog(path)
    killed.append(run(x=strange))
    assert configs(path) == [strange]
    killed.close()
    assert configs(path) == [strange]


def test_an_empty_log_leaves_nothing(path):
    with RunLog(path) as log:
        assert len(log) == 0
        assert log.runs().empty
        assert log.measurements() == []
    assert list(path.parent.iterdir()) == []


def test_runs_are_all_rows(path):
    with RunLog(path) as log:
        log.append(run(x=1))
        assert log.runs()["config.x"].tolist() == [1]
        log.append(run(x=2))
        assert log.runs()["config.x"].tolist() == [1, 2]


def test_closing_twice_is_harmless(path):
    log = RunLog(path)
    log.append(run(x=1))
    log.close()
    log.close()
    assert configs(path) == [1]


def test_an_exception_still_folds_the_journal(path):
    def interrupted():
        with RunLog(path) as log:
            log.append(run(x=1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert configs(path) == [1]
    assert not journal_of(path).exists()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write to"):
        RunLog(tmp_path / "file" / "runs.parquet")


def test_what_is_no_run_table_is_not_touched(tmp_path):
    other = tmp_path / "runs.parquet"
    other.write_text("my thesis")
    with pytest.raises(RunTableError, match="not a readable Parquet file"):
        RunLog(other)
    assert other.read_text() == "my thesis"
    assert not journal_of(other).exists()


def test_the_journal_is_plain_json_lines(path):
    log = RunLog(path)
    log.append(run(x=1, flag=True))
    (line,) = journal_of(path).read_text().splitlines()
    assert json.loads(line)["config.flag"] is True
    log.close()


def test_two_processes_do_not_write_one_file(path):
    with RunLog(path) as first:
        first.append(run(x=1))
        with pytest.raises(OutputError, match="in use by another process"):
            RunLog(path)
        assert configs(path) == [1]
    with RunLog(path) as second:
        second.append(run(x=2))
    assert configs(path) == [1, 2]


def test_rows_folded_twice_count_once(path):
    killed = RunLog(path)
    killed.append(run(x=1))
    rows = journal_of(path).read_text()
    killed.close()
    journal_of(path).write_text(rows)  # killed between writing the file and removing the journal
    RunLog(path).close()
    assert configs(path) == [1]


class Full:
    """A journal on a full disk."""

    name, closed = "journal", False

    def write(self, text):
        raise OSError(28, "No space left on device")

    def close(self):
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_one_error_and_loses_nothing(path, monkeypatch):
    log = RunLog(path)
    log.append(run(x=1))
    log._journal.close()
    monkeypatch.setattr(log, "_journal", Full())
    with pytest.raises(OutputError, match="No space left on device"):
        log.append(run(x=2))
    with pytest.raises(OutputError, match="No space left on device"):
        log.close()
    assert configs(path) == [1]
    with RunLog(path) as again:  # the lock is free
        again.append(run(x=2))
    assert configs(path) == [1, 2]
