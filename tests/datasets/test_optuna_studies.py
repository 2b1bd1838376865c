"""Run tables as Optuna's studies, there and back; and studies of others."""

import math
import sqlite3
from contextlib import closing

import optuna
import pytest

from foretune.datasets import from_measurements, import_runs
from foretune.datasets.importers.optuna_studies import write
from foretune.datasets.runs import to_measurements
from foretune.errors import OutputError, RunTableError, UsageError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration

MILLISECONDS = {"time_ms": "value"}


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
    seconds = {"time_ms": "value*1000"}
    with pytest.raises(UsageError, match="does not say what its value is"):
        import_runs(tmp_path / "s.db", "optuna", device="My CPU")
    with pytest.raises(UsageError, match="does not name its device"):
        import_runs(tmp_path / "s.db", "optuna", mapping=seconds)
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


def study_of(folder, name, directions, values):
    study = optuna.create_study(
        storage=f"sqlite:///{folder}/s.db", study_name=name, directions=directions
    )
    for value in values:
        trial = study.ask({"block": optuna.distributions.IntDistribution(1, 64)})
        study.tell(trial, value)
    return study


def test_a_study_that_maximizes_is_no_time(tmp_path):
    study_of(tmp_path, "speed", ["maximize"], [100.0, 400.0])
    with pytest.raises(UsageError, match=r"'speed' maximizes .*--map time_ms=1e9/value"):
        import_runs(tmp_path / "s.db", "optuna", device="d")
    mapping = {"time_ms": "1000/value"}
    imported = import_runs(tmp_path / "s.db", "optuna", device="d", mapping=mapping)
    assert imported.runs["time_ms"].tolist() == [10.0, 2.5]


@pytest.mark.filterwarnings("ignore:.*set_metric_names is experimental")
def test_the_name_of_a_value_tells_its_unit(tmp_path):
    study_of(tmp_path, "mine", ["minimize"], [100.0]).set_metric_names(["latency_us"])
    imported = import_runs(tmp_path / "s.db", "optuna", device="d")
    assert imported.runs["time_ms"].tolist() == [0.1]


@pytest.mark.filterwarnings("ignore:.*set_metric_names is experimental")
def test_a_value_that_is_named_otherwise_is_no_time(tmp_path):
    study_of(tmp_path, "mine", ["minimize"], [100.0]).set_metric_names(["loss"])
    with pytest.raises(UsageError, match="has the value 'loss', without a unit of time"):
        import_runs(tmp_path / "s.db", "optuna", device="d")


def test_a_study_with_two_objectives_is_skipped_by_name(tmp_path):
    study_of(tmp_path, "one", ["minimize"], [2.0])
    study_of(tmp_path, "two", ["minimize", "maximize"], [(1.0, 3.0)])
    imported = import_runs(tmp_path / "s.db", "optuna", device="d", mapping=MILLISECONDS)
    assert imported.kernels == {"one": 1}
    assert any("study 'two' is skipped: it has 2 objectives" in note for note in imported.notes)


def test_only_studies_with_two_objectives_are_named(tmp_path):
    study_of(tmp_path, "two", ["minimize", "maximize"], [(1.0, 3.0)])
    with pytest.raises(RunTableError, match="study 'two' is skipped: it has 2 objectives"):
        import_runs(tmp_path / "s.db", "optuna", device="d")


def test_a_database_of_an_older_release_is_upgraded_in_a_copy(tmp_path):
    study_of(tmp_path, "old", ["minimize"], [2.0])
    path = tmp_path / "s.db"
    with closing(sqlite3.connect(path)) as database, database:
        # The database says that its tables are older; the upgrade changes what it finds.
        database.execute("UPDATE alembic_version SET version_num = 'v3.0.0.d'")
    before = path.read_bytes()
    imported = import_runs(path, "optuna", device="d", mapping=MILLISECONDS)
    assert imported.runs["time_ms"].tolist() == [2.0]
    assert path.read_bytes() == before


def test_trials_without_a_value_are_named(tmp_path):
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db", study_name="mine")

    def objective(trial):
        block = trial.suggest_int("block", 1, 4)
        if trial.number == 1:
            raise optuna.TrialPruned
        if trial.number == 2:
            raise RuntimeError
        return block * 0.5

    study.optimize(objective, n_trials=3, catch=(RuntimeError,))
    study.ask()
    imported = import_runs(tmp_path / "s.db", "optuna", device="My CPU", mapping=MILLISECONDS)
    assert imported.runs["status"].tolist() == ["ok", "runtime_error"]
    assert any("1 pruned, 1 running trials" in note for note in imported.notes)


def test_a_journal_is_read_and_not_changed(tmp_path):
    path = tmp_path / "journal.log"
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    storage = optuna.storages.JournalStorage(backend)
    study = optuna.create_study(storage=storage, study_name="mine")
    study.optimize(lambda trial: trial.suggest_int("block", 1, 4) * 0.5, n_trials=2)
    before = path.read_bytes()
    runs = import_runs(path, "optuna", device="My CPU", mapping=MILLISECONDS).runs
    assert (runs["time_ms"] == 0.5 * runs["config.block"]).all()
    assert path.read_bytes() == before
