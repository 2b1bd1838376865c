"""Run tables as Optuna's studies, there and back; and studies of others."""

import math
import sqlite3

import optuna
import pytest

from foretune.datasets import from_measurements, import_runs
from foretune.datasets.importers.optuna_studies import write
from foretune.datasets.runs import to_measurements
from foretune.errors import OutputError, RunTableError, UsageError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration


def measured(n, block, time_ms):
    status = Status.OK if math.isfinite(time_ms) else Status.COMPILE_ERROR
    return Measurement(
        "blur",
        Problem(n=n),
        Configuration(block=block, fast=True),
        "My CPU",
        status,
        time_ms=time_ms,
        error="" if status is Status.OK else "too large",
    )


ROWS = [
    measured(64, 8, 2.5),
    measured(64, 16, 1.5),
    measured(128, 8, 9.0),
    measured(64, 32, math.nan),
]


def facts(measurements):
    found = [
        (m.kernel, m.device, dict(m.problem), dict(m.config), m.status, repr(m.time_ms))
        for m in measurements
    ]
    return sorted(found, key=repr)


def test_write_then_read_keeps_rows(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    names = write(from_measurements(ROWS), url)
    assert names == ["blur n=64 on My CPU", "blur n=128 on My CPU"]
    study = optuna.load_study(study_name=names[0], storage=url)
    assert study.best_params == {"block": 16, "fast": True}
    assert study.best_value == 1.5
    imported = import_runs(tmp_path / "study.db", "optuna")
    assert facts(to_measurements(imported.runs)) == facts(ROWS)
    with pytest.raises(UsageError, match=r"has a study .*n=64.* already"):
        write(from_measurements(ROWS), url)
    with pytest.raises(OutputError, match="cannot be written"):
        write(from_measurements(ROWS), f"sqlite:///{tmp_path}/no/study.db")


def test_read_other_study_maps_value_to_time(tmp_path):
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db", study_name="mine")

    def objective(trial):
        trial.set_user_attr("status", "their own notes")
        return trial.suggest_int("block", 1, 4) * 0.5

    study.optimize(objective, n_trials=3)
    study.set_user_attr("problem", "their own notes")
    with pytest.raises(UsageError, match="does not name its device"):
        import_runs(tmp_path / "s.db", "optuna")
    seconds = {"time_ms": "value*1000"}
    runs = import_runs(tmp_path / "s.db", "optuna", device="My CPU", mapping=seconds).runs
    assert (runs["time_ms"] == 500 * runs["config.block"]).all()
    assert set(runs["kernel"]) == set(runs["problem.study"]) == {"mine"}
    (tmp_path / "no.db").write_text("text")
    with pytest.raises(RunTableError, match="expected Optuna's SQLite database"):
        import_runs(tmp_path / "no.db", "optuna", device="My CPU")


def test_read_leaves_database_unchanged(tmp_path):
    theirs, study = tmp_path / "theirs.db", tmp_path / "a study?.db"
    with sqlite3.connect(theirs) as database:
        database.execute("CREATE TABLE results (time_ms REAL)")
    database.close()
    write(from_measurements(ROWS), f"sqlite:///{tmp_path}/s.db")
    (tmp_path / "s.db").rename(study)
    before = [path.read_bytes() for path in (theirs, study)]
    found = import_runs(tmp_path, "optuna")
    assert facts(to_measurements(found.runs)) == facts(ROWS)
    assert found.skipped == {str(theirs): f"{theirs} is an SQLite database without Optuna studies"}
    with pytest.raises(RunTableError, match="without Optuna studies"):
        import_runs(theirs, "optuna")
    assert [path.read_bytes() for path in (theirs, study)] == before
    assert len(list(tmp_path.iterdir())) == 2
