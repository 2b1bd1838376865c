"""Kernel Tuner's strategies behind ask and tell: seeds, threads, ends; what they find."""

import gc
import random
import threading
import time

import numpy as np
import pytest
from peers import PEERS
from toy_space import space_runs

from foretune.errors import MissingExtra
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.search.replay.recorded import recorded_spaces
from foretune.search.replay.replay import replay
from foretune.space import SearchSpace
from foretune.testing import check_searcher

pytest.importorskip("kernel_tuner")

STRATEGIES = sorted(name for name in PEERS if name.startswith("kt_"))
SPACE = SearchSpace(
    {"x": tuple(range(1, 13)), "y": (1, 2, 4, 8, 16, 32), "flag": (False, True), "way": ("a", "b")},
    ["x * y <= 96"],
)
every = pytest.mark.parametrize("name", STRATEGIES)


def law(config):
    """Best at x=7, y=8, flag, way b; the largest y fails."""
    slow = 1 + abs(config["x"] - 7) + abs(np.log2(config["y"]) - 3)
    return slow + (not config["flag"]) + 0.5 * (config["way"] == "a")


def measured(config):
    common = ("toy", Problem(n=1), config, "Toy GPU")
    if config["y"] == 32:
        return Measurement(*common, Status.RUNTIME_ERROR)
    return Measurement(*common, Status.OK, time_ms=law(config))


def step(searcher):
    (config,) = searcher.ask()
    searcher.tell([measured(config)])
    return config


def ends(thread):
    """Wait until a thread has ended."""
    deadline = time.monotonic() + 30
    while thread.is_alive() and time.monotonic() < deadline:
        gc.collect()
        thread.join(0.01)
    return not thread.is_alive()


def test_the_strategies_are_kernel_tuners():
    from kernel_tuner.interface import strategy_map

    assert len(STRATEGIES) >= 8
    assert {PEERS[name].strategy for name in STRATEGIES} <= set(strategy_map)
    assert all(f"kt_{PEERS[name].strategy}" == name for name in STRATEGIES)


@every
def test_the_contract(name):
    check_searcher(PEERS[name])


@every
def test_two_searches_in_turn_are_two_searches_one_after_the_other(name):
    make = PEERS[name]
    alone = make(SPACE, seed=5)
    expected = [step(alone) for _ in range(40)]
    one = make(SPACE, seed=5)
    other = make(SPACE, seed=6)
    pairs = [(step(one), step(other)) for _ in range(40)]
    assert [a for a, _ in pairs] == expected
    assert [b for _, b in pairs] != expected


@every
def test_the_world_outside_keeps_its_random_numbers(name):
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = random.random(), np.random.random()  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    searcher = PEERS[name](SPACE)
    for _ in range(30):
        step(searcher)
    assert (random.random(), np.random.random()) == expected  # noqa: NPY002
    assert np.random.default_rng.__name__ == "default_rng"


@every
def test_a_search_that_is_dropped_leaves_no_thread(name):
    # Threads of earlier tests may end meanwhile.
    before = set(threading.enumerate())
    searcher = PEERS[name](SPACE)
    for _ in range(3):
        step(searcher)
    (thread,) = set(threading.enumerate()) - before
    del searcher
    assert ends(thread)


@pytest.mark.parametrize("name", ["kt_genetic_algorithm", "kt_simulated_annealing"])
def test_beyond_the_strategys_end_the_rest_of_the_space_is_drawn(name):
    searcher = PEERS[name](SPACE)
    asked = [step(searcher) for _ in range(len(SPACE))]
    assert len(set(asked)) == len(SPACE) > 200
    assert searcher.ask() == []
    assert searcher.best() == {"x": 7, "y": 8, "flag": True, "way": "b"}


@pytest.mark.parametrize("name", ["kt_genetic_algorithm", "kt_pso"])
def test_a_population_is_proposed_at_once(name):
    """Before anything is told, a strategy's first batch is all there is to know of it."""
    by_one = PEERS[name](SPACE)
    batch = [by_one.ask()[0] for _ in range(20)]
    assert PEERS[name](SPACE).ask(20) == batch


def test_what_was_told_is_not_asked_for():
    searcher = PEERS["kt_genetic_algorithm"](SPACE)
    told = [c for c in SPACE if c["flag"]]
    searcher.tell(map(measured, told))
    assert not {step(searcher) for _ in range(60)} & set(told)


def test_small_spaces_are_searched_at_random():
    (recorded,) = recorded_spaces(space_runs(), "toy")
    strategy = replay(recorded, PEERS["kt_pso"], budget=60, repeats=3)
    assert (strategy.curves == replay(recorded, "random", budget=60, repeats=3).curves).all()


def test_without_kernel_tuner_it_says_how_to_get_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "kernel_tuner", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[bench\]'"):
        PEERS["kt_pso"](SPACE)
