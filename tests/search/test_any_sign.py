"""Searches for the smallest of numbers of any sign: `search/any_sign.py`."""

import math

import numpy as np
import pytest

from foretune.errors import UsageError
from foretune.search import run_search
from foretune.search.any_sign import PositiveScale
from foretune.search.searcher import RandomSearcher
from foretune.space import SearchSpace

SIZES = {"x": list(range(16)), "y": list(range(16))}


def bowl(config):
    """Smallest at (11, 4), where it is 0."""
    return float((config["x"] - 11) ** 2 + (config["y"] - 4) ** 2)


@pytest.mark.parametrize("shift", [0.0, -50.0, -1e6])
@pytest.mark.parametrize("searcher", ["surrogate", "tpe"])
def test_run_search_finds_smallest_number_of_any_sign(searcher, shift):
    """A search without knowledge of the sign would need 128 of 256 measurements on average."""
    outcome = run_search(searcher, SIZES, lambda c: bowl(c) + shift, budget=60)
    assert bowl(outcome.best) <= 2.0
    assert outcome.best_value == bowl(outcome.best) + shift
    assert len({m.config for m in outcome.trace}) == 60


def test_run_search_finds_zero_among_positive_numbers():
    outcome = run_search("exhaustive", {"x": [1, 2, 3]}, lambda c: float(c["x"] - 1), budget=3)
    assert dict(outcome.best) == {"x": 1}
    assert outcome.best_value == 0.0


def test_run_search_positive_numbers_reach_searcher_unchanged():
    told = []

    class Listener(RandomSearcher):
        def _learn(self, new_values):
            told.extend(new_values.values())

    run_search(Listener, SIZES, lambda c: 1.0 + bowl(c), budget=4)
    outcome = run_search(Listener, SIZES, lambda c: 1.0 + bowl(c), budget=4)
    assert told[4:] == [m.time_ms for m in outcome.trace]


def test_run_search_failures_stay_failures_among_negative_numbers():
    def fails(config):
        return math.nan if config["x"] > 1 else -float(config["x"])

    outcome = run_search("surrogate", {"x": [0, 1, 2, 3]}, fails, budget=4)
    assert dict(outcome.best) == {"x": 1}


def test_run_search_parallel_measures_nothing_twice_after_negative_number():
    outcome = run_search("surrogate", SIZES, lambda c: -bowl(c), budget=40, parallel=4)
    assert len({m.config for m in outcome.trace}) == 40


def test_run_search_with_searcher_refuses_negative_number():
    searcher = RandomSearcher(SearchSpace(SIZES))
    with pytest.raises(UsageError, match="give the searcher's name or class"):
        run_search(searcher, searcher.space, lambda c: -1.0, budget=2)


@pytest.mark.parametrize("budget", [np.int64(3), np.int32(3)])
def test_run_search_takes_numpy_budget(budget):
    assert run_search("random", SIZES, bowl, budget=budget).measured == 3


@pytest.mark.parametrize("values", [[-3.0, 0.0, 5.0], [-1e300, 0.0, 1e300], [0.0], [-2.0, -2.0]])
def test_positive_scale_keeps_order(values):
    scale = PositiveScale.fit(values)
    mapped = [scale.positive(value) for value in sorted(values)]
    assert mapped == sorted(mapped)
    assert all(0 < value < math.inf for value in mapped)


def test_positive_scale_median_is_one():
    # The median is 0, the best 3 below it: exp(asinh(-1)) = sqrt(2) - 1.
    scale = PositiveScale.fit([-3.0, 0.0, 5.0])
    assert scale.positive(0.0) == 1.0
    assert scale.positive(-3.0) == pytest.approx(math.sqrt(2.0) - 1.0)
    assert scale.positive(math.inf) == math.inf
