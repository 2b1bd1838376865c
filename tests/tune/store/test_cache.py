"""Measurements and choices of one kernel: `tune/store/cache.py`, and what it reads of a store."""

import dataclasses

import pytest
from stored import LARGE, SMALL, SUBJECT, choice, measured

from foretune.problem import Problem
from foretune.tune.store import Store
from foretune.tune.store import store as store_module
from foretune.tune.store.cache import MeasurementCache


def sizes(measurements):
    return {(m.problem["n"], m.config["x"]) for m in measurements}


@pytest.fixture
def few_rows(monkeypatch):
    """Stores count as large from 20 rows on; eight problems share them."""
    monkeypatch.setattr(store_module, "MAX_OTHER_ROWS", 20)


def put_problems(store, exponents, rows):
    for exponent in exponents:
        problem = Problem(n=2**exponent)
        store.put(SUBJECT, [measured(problem, x=x) for x in range(rows)])


def test_known_reads_only_its_problem(store, monkeypatch):
    store.put(SUBJECT, [measured(SMALL, x=1), measured(LARGE, x=2)])
    asked = []
    read = store.measurements
    monkeypatch.setattr(store, "measurements", lambda *about: asked.append(about) or read(*about))
    cache = MeasurementCache(SUBJECT, store)
    assert sizes(cache.known(SMALL)) == {(64, 1)}
    assert cache.find(LARGE, measured(x=2).config).problem == LARGE
    assert asked == [(SUBJECT, SMALL), (SUBJECT, LARGE)]


def test_known_sees_what_others_measured_since(store):
    cache = MeasurementCache(SUBJECT, store)
    cache.append(measured(x=1))
    store.put(SUBJECT, [measured(x=2)])
    assert sizes(cache.known(SMALL)) == {(64, 1), (64, 2)}


def test_known_forgotten_problem_has_only_new_measurements(store):
    store.put(SUBJECT, [measured(x=1), measured(LARGE, x=1)])
    cache = MeasurementCache(SUBJECT, store)
    cache.forget(SMALL)
    assert cache.known(SMALL) == []
    assert sizes(cache.known_for_other_problems(LARGE)) == set()
    cache.append(measured(x=2))
    assert sizes(cache.known(SMALL)) == {(64, 2)}


def test_other_measurements_small_store_gives_all(store):
    put_problems(store, exponents=range(3, 6), rows=3)
    cache = MeasurementCache(SUBJECT, store)
    others = cache.known_for_other_problems(Problem(n=8))
    assert sizes(others) == {(n, x) for n in (16, 32) for x in range(3)}


@pytest.mark.usefixtures("few_rows")
def test_other_measurements_large_store_gives_nearest_problems(store):
    # Of 20 rows, each of the eight nearest problems provides at most 20 / 8 = 2.5, rounded up to 3.
    put_problems(store, exponents=range(3, 15), rows=10)
    others = MeasurementCache(SUBJECT, store).known_for_other_problems(Problem(n=8))
    rows = {n: sum(m.problem["n"] == n for m in others) for n in (2**e for e in range(3, 15))}
    assert [*rows.values()] == [0, 3, 3, 3, 3, 3, 3, 2, 0, 0, 0, 0]


@pytest.mark.usefixtures("few_rows")
def test_other_measurements_two_problems_share_all_rows(store):
    put_problems(store, exponents=(4, 5, 6), rows=30)
    others = MeasurementCache(SUBJECT, store).known_for_other_problems(Problem(n=16))
    assert sorted(m.problem["n"] for m in others) == [32] * 10 + [64] * 10


@pytest.mark.usefixtures("few_rows")
def test_other_measurements_only_own_rows_gives_none(store):
    put_problems(store, exponents=[4], rows=30)
    assert MeasurementCache(SUBJECT, store).known_for_other_problems(Problem(n=16)) == []


def test_summary_counts_in_database_like_the_rows(store):
    store.put(SUBJECT, [measured(x=1), measured(time_ms=float("nan"), x=2), measured(LARGE, x=1)])
    odd = measured(x='}, "status": "ok"', status="ok", time_ms=float("nan"))
    store.put(SUBJECT, [odd])
    store.choose(SUBJECT, SMALL, choice())
    store.choose(SUBJECT, Problem(n=1, candidates="abc"), choice())
    (summary,) = store.summary()
    failed = [m for m in store.measurements(SUBJECT) if not m.ok]
    assert summary.failed == len(failed) == 2
    assert (summary.problems, summary.measurements, summary.choices) == (3, 4, 2)


def test_newest_subject_is_the_one_measured_last(store):
    older = dataclasses.replace(SUBJECT, versions="older")
    store.put(SUBJECT, [measured(x=1, at="2026-01-02T00:00:00+00:00")])
    store.put(older, [measured(x=1, at="2026-01-01T00:00:00+00:00")])
    assert store.newest_subject("softmax") == SUBJECT
    later = choice(1, at="2026-01-03T00:00:00.000+00:00")
    store.choose(older, SMALL, later)
    assert store.newest_subject("softmax") == older


def test_measurements_of_a_problem_use_the_index(file):
    """Without the index, a problem's rows are sought among all rows of the kernel."""
    store = Store(file)
    put_problems(store, exponents=range(3, 6), rows=3)
    queries = []
    store._database._connection.set_trace_callback(queries.append)
    store.measurements(SUBJECT, Problem(n=8))
    (select,) = (query for query in queries if query.startswith("SELECT"))
    plan = store._database._connection.execute(f"EXPLAIN QUERY PLAN {select}").fetchall()
    assert any("autoindex_foretune_measurements" in step[-1] for step in plan)
