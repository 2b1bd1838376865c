"""A store that fails for a while: `tune/store/fallible.py`."""

import sqlite3
import subprocess
import sys

import pytest
from stored import LARGE, SMALL, SUBJECT, choice, measured

from foretune.errors import ForetuneWarning, StoreError
from foretune.objective import ConstrainedObjective, Objective
from foretune.tune.store import Store
from foretune.tune.store import fallible as fallible_module
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.store.fallible import location_name

TIME = ConstrainedObjective(Objective.TIME, ())


class AwayStore(Store):
    """A store whose server is away while ``is_away``."""

    is_away = False

    def _check(self):
        if self.is_away:
            raise StoreError("the server is away")

    def put(self, subject, measurements):
        self._check()
        super().put(subject, measurements)

    def choose(self, subject, problem, choice, replacing=None):
        self._check()
        return super().choose(subject, problem, choice, replacing)


@pytest.fixture(autouse=True)
def _only_own_stores(monkeypatch):
    """Stores of other tests may still have something to write."""
    monkeypatch.setattr(fallible_module, "_UNWRITTEN", set())


@pytest.fixture
def away(file):
    return AwayStore(file)


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on only if a test says so."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(fallible_module, "time", clock)
    return clock


def stored_sizes(store):
    return sorted(m.config["x"] for m in store.measurements(SUBJECT))


def test_append_failed_write_is_repeated_with_next_one(away, clock):
    cache = MeasurementCache(SUBJECT, away)
    cache.append(measured(x=1))
    away.is_away = True
    with pytest.warns(ForetuneWarning, match="not stored: the server is away"):
        cache.append(measured(x=2))
    cache.append(measured(x=3))  # without another warning, which would be an error
    assert not cache.is_kept
    away.is_away = False
    cache.append(measured(x=4))
    assert stored_sizes(away) == [1, 2, 3, 4]
    assert cache.is_kept


def test_choose_failed_write_is_repeated_with_next_one(away):
    cache = MeasurementCache(SUBJECT, away)
    away.is_away = True
    with pytest.warns(ForetuneWarning, match="not stored"):
        assert cache.choose(SMALL, TIME, choice(1)) == choice(1)
    away.is_away = False
    cache.append(measured(LARGE, x=1))
    assert away.choice(SUBJECT, SMALL) == choice(1)


def test_append_failed_write_is_repeated_at_exit(away):
    cache = MeasurementCache(SUBJECT, away)
    away.is_away = True
    with pytest.warns(ForetuneWarning, match="not stored"):
        cache.append(measured(x=1))
    away.is_away = False
    fallible_module._write_waiting_at_exit()
    assert stored_sizes(away) == [1]


def test_write_at_exit_still_failing_counts_what_is_lost(away):
    cache = MeasurementCache(SUBJECT, away)
    away.is_away = True
    with pytest.warns(ForetuneWarning, match="not stored"):
        cache.append(measured(x=1))
    with pytest.warns(ForetuneWarning, match="1 result could not be stored"):
        fallible_module._write_waiting_at_exit()
    away.is_away = False
    fallible_module._write_waiting_at_exit()


def test_append_locked_file_loses_nothing(file):
    """Another process holds the lock longer than the store waits."""
    cache = MeasurementCache(SUBJECT, Store(file, patience_s=0.01))
    cache.append(measured(x=0))
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.warns(ForetuneWarning, match="is locked by another process"):
        cache.append(*(measured(x=x) for x in range(1, 5)))
    for x in range(5, 10):
        cache.append(measured(x=x))
    holder.execute("ROLLBACK")
    holder.close()
    fallible_module._write_waiting_at_exit()
    assert stored_sizes(Store(file)) == [*range(10)]


def test_write_after_slow_failure_waits_as_long(away, clock):
    """A failure of 10 seconds is followed by 10 seconds without an attempt."""
    attempts = []

    def slow_put(subject, measurements):
        attempts.append(clock.now)
        clock.now += 10.0
        raise StoreError("locked")

    away.put = slow_put
    cache = MeasurementCache(SUBJECT, away)
    with pytest.warns(ForetuneWarning, match="locked"):
        cache.append(measured(x=0))  # ends at 110 seconds
    for x in range(1, 5):  # at 114, 118, 122 seconds, and after that attempt at 136
        clock.now += 4.0
        cache.append(measured(x=x))
    assert attempts == [100.0, 122.0]
    del away.put
    fallible_module._write_waiting_at_exit()
    assert stored_sizes(away) == [0, 1, 2, 3, 4]


def test_append_contradiction_is_not_kept(away):
    cache = MeasurementCache(SUBJECT, away)
    with pytest.warns(ForetuneWarning, match="status is ok but time_ms"):
        cache.append(measured(time_ms=-1.0, x=1))
    cache.append(measured(x=2))
    assert stored_sizes(away) == [2]


def test_query_failing_returns_default_and_later_the_answer(away):
    cache = MeasurementCache(SUBJECT, away)
    away.put(SUBJECT, [measured(x=1)])

    def fails(subject, problem=None):
        raise StoreError("the server is away")

    away.measurements = fails
    with pytest.warns(ForetuneWarning, match="not stored"):
        assert cache.known(SMALL) == []
    del away.measurements
    assert [m.config["x"] for m in cache.known(SMALL)] == [1]


KILLED_STORE = """
import sqlite3, sys, warnings
from stored import SUBJECT, measured
from foretune.tune.store import Store
from foretune.tune.store.cache import MeasurementCache

warnings.simplefilter("ignore")
cache = MeasurementCache(SUBJECT, Store(sys.argv[1], patience_s=0.01))
cache.append(measured(x=1))
holder = sqlite3.connect(sys.argv[1], isolation_level=None)
holder.execute("BEGIN IMMEDIATE")
cache.append(measured(x=2))
holder.execute("ROLLBACK")
"""


def test_process_end_writes_what_is_waiting(file):
    folder = measured.__globals__["__file__"].rpartition("/")[0]
    code = f"import sys; sys.path.insert(0, {folder!r}){KILLED_STORE}"
    subprocess.run([sys.executable, "-c", code, str(file)], check=True)
    assert stored_sizes(Store(file)) == [1, 2]


def test_location_name_of_every_location(tmp_path):
    path = tmp_path / "tuned.db"
    assert location_name(False) is None
    assert location_name(None) == location_name(True) == ""
    assert location_name(path) == location_name(str(path)) == str(path)
    store = Store(path)
    assert location_name(store) == str(path)
    store.close()
    assert "secret-word" not in location_name("postgresql+psycopg://me:secret-word@host/db")
