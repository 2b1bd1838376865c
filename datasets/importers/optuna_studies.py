"""Reads Optuna's studies as a run table, and writes a run table as studies."""

import math
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from foretune.datasets.file_contents import SQLITE
from foretune.datasets.importers.columns import table_from_records
from foretune.datasets.importers.files import Request, WrongFile, read_beginning
from foretune.datasets.runs import to_measurements
from foretune.datasets.time_units import MS_PER_UNIT, unit_in_name
from foretune.errors import OutputError, UsageError
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.support.expression import Expression
from foretune.support.files import read_bytes

TABLES = {"studies", "trials"}
"""Some of the tables of Optuna's databases."""


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return the finished trials of all studies with one objective, whose value is milliseconds.

    ``time_ms`` may map to an expression of ``value``. A study is a problem; its name is the kernel
    unless one is given, or Foretune wrote it. Studies with several objectives are skipped, with a
    note. Raises UsageError if a study's value is no time, and no mapping turns it into one.
    """
    milliseconds = Expression(request.mapping.get("time_ms", "value"), "--map time_ms")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with _opened(path) as storage:
        names = optuna.get_all_study_names(storage)
        records: list[dict[str, Any]] = []
        for name in names:
            study = optuna.load_study(study_name=name, storage=storage)
            records += _records(study, milliseconds, path, request)
        return table_from_records(records, {"source": f"optuna {path.name}"})


@contextmanager
def _opened(path: Path) -> Iterator[optuna.storages.BaseStorage]:
    """Yield the storage in a file: a database, or a journal of JSON lines."""
    beginning = read_beginning(path)
    if beginning.startswith(SQLITE):
        with _opened_copy(path) as storage:
            yield storage
    elif beginning.lstrip().startswith(b"{") and b'"op_code"' in beginning:
        # Optuna writes a lock beside the journal that it opens.
        with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
            copied = Path(folder, "journal.log")
            copied.write_bytes(read_bytes(path))
            yield JournalStorage(JournalFileBackend(str(copied)))
    else:
        raise WrongFile(
            f"{path} is not a file of studies: expected Optuna's SQLite database or journal"
        )


@contextmanager
def _opened_copy(path: Path) -> Iterator[optuna.storages.RDBStorage]:
    """Yield the storage of a copy, because Optuna adds its tables to any database that it opens."""
    with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
        copied = Path(folder, "studies.db")
        with (
            closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database,
            closing(sqlite3.connect(copied)) as copy,
        ):
            found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not {name for (name,) in found} >= TABLES:
                raise WrongFile(f"{path} is an SQLite database without Optuna studies")
            database.backup(copy)
        storage = optuna.storages.RDBStorage(f"sqlite:///{copied}", skip_compatibility_check=True)
        if storage.get_current_version() != storage.get_head_version():
            # Databases of older releases have other tables; the copy is upgraded.
            storage.upgrade()
        try:
            yield storage
        finally:
            storage.engine.dispose()


def _records(
    study: optuna.Study, milliseconds: Expression, path: Path, request: Request
) -> Iterator[dict[str, Any]]:
    """Yield a row for each finished trial of a study with one objective."""
    if len(study.directions) > 1:
        request.notes.append(
            f"{path}: study {study.study_name!r} is skipped: it has {len(study.directions)} "
            "objectives, and one value per trial is read"
        )
        return
    if "time_ms" not in request.mapping:
        milliseconds = _milliseconds_of(study, path)

    # Foretune writes what it knows of a study; of others, only the name is known.
    is_ours = _is_ours(study)
    attributes = study.user_attrs if is_ours else {}
    problem = attributes.get("problem") or {"study": study.study_name}
    common = {
        "kernel": request.kernel or attributes.get("kernel") or study.study_name,
        "device": request.device or attributes.get("device") or request.given("device", path),
        **{f"problem.{name}": value for name, value in problem.items()},
    }
    trials = study.get_trials(deepcopy=False)
    states = Counter(trial.state.name.lower() for trial in trials if not _has_ended(trial))
    if states:
        listed = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        request.notes.append(
            f"{path}: study {study.study_name!r}: {listed} trials have no final value and are left "
            "out"
        )
    for trial in trials:
        if not _has_ended(trial):
            continue
        status = "runtime_error"
        time_ms = math.nan
        if trial.state is TrialState.COMPLETE:
            status = "ok"
            time_ms = float(milliseconds.evaluate({"value": np.array([trial.value])})[0])
        if is_ours:
            status = trial.user_attrs.get("status", status)
        config = {f"config.{name}": value for name, value in trial.params.items()}
        yield {**common, **config, "status": status, "time_ms": time_ms}


def _has_ended(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether a trial has a value, or has failed; a pruned one has neither."""
    return trial.state.is_finished() and trial.state is not TrialState.PRUNED


def _is_ours(study: optuna.Study) -> bool:
    """Whether Foretune wrote a study."""
    return isinstance(study.user_attrs.get("problem"), dict)


def _milliseconds_of(study: optuna.Study, path: Path) -> Expression:
    """Return the time of a study's value; UsageError unless the value is minimized and a time."""
    where = f"{path}: study {study.study_name!r}"
    how_to = "say what a run's milliseconds are, for example --map time_ms=1e9/value"
    if study.direction is not StudyDirection.MINIMIZE:
        raise UsageError(f"{where} maximizes its value, which is no time: {how_to}")

    # Names of values are optional. Foretune's own studies have milliseconds.
    names = study.metric_names
    if not names:
        if _is_ours(study):
            return Expression("value", "value")
        raise UsageError(f"{where} does not say what its value is: {how_to}")
    unit = unit_in_name(names[0])
    if unit is not None:
        return Expression(f"value*{MS_PER_UNIT[unit.lower()]!r}", "value")
    raise UsageError(f"{where} has the value {names[0]!r}, without a unit of time: {how_to}")


def write(runs: pd.DataFrame, url: str) -> list[str]:
    """Write one study per kernel, device and problem; return the studies' names.

    Raises UsageError if a study exists already, OutputError if the storage cannot be written.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    groups: dict[tuple[str, str, Problem], list[Measurement]] = {}
    for measurement in to_measurements(runs):
        key = (measurement.kernel, measurement.device, measurement.problem)
        groups.setdefault(key, []).append(measurement)
    names = []
    storage = None
    try:
        storage = optuna.storages.RDBStorage(url)
        for (kernel, device, problem), rows in groups.items():
            name = f"{kernel} {problem} on {device}"
            study = optuna.create_study(storage=storage, study_name=name)
            study.set_user_attr("kernel", kernel)
            study.set_user_attr("device", device)
            study.set_user_attr("problem", dict(problem))
            space = _distributions(rows)
            study.add_trials([_trial(measurement, space) for measurement in rows])
            names.append(name)
    except optuna.exceptions.DuplicatedStudyError as e:
        raise UsageError(f"{url} has a study {name!r} already: give another file") from e
    except Exception as e:
        raise OutputError(f"{url} cannot be written: {type(e).__name__}") from e
    finally:
        if storage is not None:
            storage.engine.dispose()
    return names


def _distributions(rows: Sequence[Measurement]) -> dict[str, CategoricalDistribution]:
    """Return each knob's values in the order of their first occurrence."""
    knobs = dict.fromkeys(name for measurement in rows for name in measurement.config)
    return {
        knob: CategoricalDistribution(
            list(dict.fromkeys(measurement.config.get(knob) for measurement in rows))
        )
        for knob in knobs
    }


def _trial(
    measurement: Measurement, space: Mapping[str, CategoricalDistribution]
) -> optuna.trial.FrozenTrial:
    attributes: dict[str, Any] = {"status": measurement.status.value}
    if measurement.error:
        attributes["error"] = measurement.error
    if measurement.power_w and not math.isnan(measurement.power_w):
        attributes["power_w"] = measurement.power_w
    return create_trial(
        state=TrialState.COMPLETE if measurement.ok else TrialState.FAIL,
        value=measurement.time_ms if measurement.ok else None,
        params=dict(measurement.config),
        distributions={name: space[name] for name in measurement.config},
        user_attrs=attributes,
    )
