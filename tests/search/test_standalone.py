"""`run_search`: any space, any function."""

import math
import threading

import numpy as np
import optuna
import pytest

import foretune as ft
from foretune.errors import MeasurementError, MissingExtra, SpaceError, UsageError
from foretune.measurement import Status
from foretune.search import SearchOutcome, make_searcher
from foretune.space import ListedSpace

KNOBS = {"cache": [1, 2, 4, 8, 16, 32], "index": [False, True], "mode": ["a", "b", "c"]}
SPACE = ft.SearchSpace(KNOBS)
BEST = ft.Configuration(cache=8, index=True, mode="b")


def cost(config):
    """Return a cost that is least at `BEST`."""
    off = abs(math.log2(config["cache"]) - 3)
    return 1.0 + off + 2.0 * (not config["index"]) + 0.5 * (config["mode"] != "b")


def test_minimize_finds_least_value():
    found = ft.run_search("surrogate", KNOBS, cost, budget=25)
    assert isinstance(found, SearchOutcome)
    assert (found.best, found.best_value) == (BEST, 1.0)
    assert (found.measured, found.reason) == (25, "budget")
    assert len({m.config for m in found.trace}) == 25
    assert [m.time_ms for m in found.trace] == [cost(m.config) for m in found.trace]


@pytest.mark.parametrize(
    "searcher",
    ["random", make_searcher("random", SPACE), optuna.samplers.RandomSampler(seed=0)],
    ids=["name", "searcher", "sampler"],
)
def test_any_searcher_finds_everything_in_the_end(searcher):
    found = ft.run_search(searcher, SPACE, cost, budget=99)
    assert (found.best, found.measured, found.reason) == (BEST, len(SPACE), "exhausted")


@pytest.mark.parametrize("name", ["surrogate", "tpe", "cmaes", "policy"])
def test_configurations_may_lack_parameters(name):
    listed = [{"tile": t, "stages": s} for t in (1, 2) for s in (1, 2)] + [{"tile": 4}, {"tile": 8}]
    space = ListedSpace(map(ft.Configuration, listed))
    try:
        found = ft.run_search(name, space, lambda config: 9.0 - config["tile"], budget=99)
    except MissingExtra as e:
        pytest.skip(str(e))
    assert (found.best, found.measured) == ({"tile": 8}, len(listed))


@pytest.mark.parametrize("name", ["exhaustive", "policy"])
def test_searchers_that_list_a_space_refuse_a_large_one(name):
    knobs = {f"x{i}": range(100) for i in range(6)}
    try:
        with pytest.raises(SpaceError, match="more than 4,000,000 configurations"):
            ft.run_search(name, knobs, lambda config: 1.0)
    except MissingExtra as e:
        pytest.skip(str(e))


def test_minimize_same_seed_repeats_search():
    traces = [
        [m.config for m in ft.run_search("surrogate", SPACE, cost, budget=8, seed=s).trace]
        for s in (3, 3, 4)
    ]
    assert traces[0] == traces[1] != traces[2]


def test_failures_are_measurements_that_never_win():
    def fails(config):
        if config["mode"] == "a":
            raise MeasurementError("mode a crashes")
        return math.nan if config["mode"] == "b" else cost(config)

    found = ft.run_search("exhaustive", SPACE, fails, budget=99)
    errors = {m.config["mode"]: m.error for m in found.trace}
    assert errors == {"a": "mode a crashes", "b": "fails returned nan", "c": ""}
    assert found.best == {**BEST, "mode": "c"}
    nothing = ft.run_search("random", SPACE, lambda config: math.inf, budget=3)
    assert (nothing.best, nothing.best_value) == (None, math.inf)


def test_minimize_raises_other_errors():
    with pytest.raises(ZeroDivisionError):
        ft.run_search("random", SPACE, lambda config: 1 / 0)


@pytest.mark.parametrize("value", ["fast", "1.5", None, (1.0, 2.0)])
def test_run_search_refuses_what_is_no_number(value):
    with pytest.raises(UsageError, match="return a number"):
        ft.run_search("random", SPACE, lambda config: value, budget=1)


def test_measurements_are_taken_as_they_are():
    def measured(config):
        status = Status.OK
        watts = 10.0 if config == BEST else 1000.0
        return ft.Measurement("mine", ft.Problem(), config, "", status, cost(config), power_w=watts)

    found = ft.run_search("exhaustive", SPACE, measured, budget=99, objective=ft.Objective.ENERGY)
    assert (found.best, found.best_value) == (BEST, 10.0)
    assert found.trace[0].kernel == "mine"


def test_known_and_first_configurations():
    known = ft.run_search("exhaustive", SPACE, cost, budget=2).trace
    default = {"cache": 32, "index": False, "mode": "c"}
    first = [default, dict(known[0].config), default]
    found = ft.run_search("exhaustive", SPACE, cost, budget=3, known=known, first=first)
    assert [SPACE.index(m.config) for m in found.trace] == [SPACE.index(default), 2, 3]
    with pytest.raises(SpaceError):
        ft.run_search("random", SPACE, cost, first=[{**default, "cache": 3}])


def test_minimize_regret_ends_search():
    found = ft.run_search("surrogate", SPACE, cost, budget="auto", regret=0.1)
    assert found.reason == "regret"
    assert found.measured < len(SPACE)
    with pytest.raises(UsageError, match="cannot estimate its regret"):
        ft.run_search("random", SPACE, cost, budget="auto")


def test_seconds_end_a_search():
    found = ft.run_search("exhaustive", SPACE, cost, seconds=1e-9)
    assert (found.reason, found.measured) == ("seconds", 0)
    found = ft.run_search("exhaustive", SPACE, cost, seconds=1e9)
    assert (found.reason, found.measured) == ("exhausted", len(SPACE))


def test_parallel_measurements_run_at_the_same_time():
    both = threading.Barrier(2)

    def waits(config):
        both.wait(timeout=60)
        return cost(config)

    found = ft.run_search("surrogate", SPACE, waits, budget=8, parallel=2)
    assert len({m.config for m in found.trace}) == 8
    with pytest.raises(UsageError, match="give 1 or more"):
        ft.run_search("random", SPACE, cost, parallel=0)


def test_minimize_without_parallelism_measures_in_this_thread():
    threads = set()

    def noted(config):
        threads.add(threading.current_thread())
        return cost(config)

    ft.run_search("random", SPACE, noted, budget=3)
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize(
    "values",
    [
        [None, 1],
        [(1, 2), (3, 4)],
        [1, True, "1", 1.0],
        [None, "None"],
        [min, max],
        [float("nan"), 1.0],
        [np.dtype("f4"), np.dtype("f8")],
        [2**70, 2**71],
    ],
    ids=str,
)
def test_run_search_measures_the_values_that_were_listed(values):
    seen = []

    def cost(config):
        seen.append(config["k"])
        return -float(len(seen))

    found = ft.run_search("random", {"k": values}, cost, budget=9)
    assert sorted(map(repr, seen)) == sorted(map(repr, values))
    assert repr(found.best["k"]) == repr(seen[-1])
