"""Scores, the memory that fits, and comparisons in turn."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.plan import Requirements
from foretune.plan.prove.memory_limit import IMPOSSIBLE, MemoryLimit, unplanned_gib
from foretune.plan.prove.pairs import compare_in_turn
from foretune.plan.prove.prediction import Promise
from foretune.plan.prove.score import best_load, check_goal, load_score, meets_limits
from foretune.plan.prove.searcher import CorrectedSearcher, prior_of_scores
from foretune.problem import Problem
from foretune.space import Configuration, SearchSpace

FAST = Promise(ttft_ms=100, tpot_ms=10, tokens_per_s=50)
FULL = Promise(ttft_ms=800, tpot_ms=40, tokens_per_s=400)


def test_score_goal_decides_what_is_better():
    throughput = Requirements(goal="throughput")
    latency = Requirements(goal="latency")
    assert load_score(FULL, throughput) < load_score(FAST, throughput)
    assert load_score(FAST, latency) < load_score(FULL, latency)
    assert load_score(FAST, throughput) == 20.0
    with pytest.raises(UsageError, match="cannot measure energy"):
        check_goal(Requirements(goal="energy"))


def test_score_broken_limit_chooses_other_load():
    requirements = Requirements(ttft_ms=200)
    loads = {"c1": FAST, "c16": FULL}
    assert best_load(loads, Requirements())[0] == "c16"
    assert best_load(loads, requirements)[0] == "c1"
    assert meets_limits(FAST, requirements)
    assert not meets_limits(FULL, requirements)
    assert best_load({}, requirements) == ("", math.inf)


def test_corrected_searcher_spends_no_start_far_from_the_best():
    space = SearchSpace({"requests": [1, 2, 4, 8, 16, 32]})
    scores = {1: 32.0, 2: 16.0, 4: 8.0, 8: 4.0, 16: 2.0, 32: 1.0}  # more requests are better
    predicted = [scores[config["requests"]] for config in space]
    prior = prior_of_scores(predicted, spread=0.2, p_valid=np.ones(len(predicted)))
    searcher = CorrectedSearcher(space, correct=lambda measurements: prior)

    for requests in (8, 16):
        searcher.tell([trial_row(requests, scores[requests])])
    assert searcher.ask() == [Configuration(requests=32)]

    # With the best known, little is expected of the rest: the search may stop.
    searcher.tell([trial_row(32, scores[32])])
    assert searcher.expected_improvement() < 0.01


def trial_row(requests, score):
    return Measurement(
        kernel="serve",
        problem=Problem({"isl": 1}),
        config=Configuration(requests=requests),
        device="toy",
        status=Status.OK,
        time_ms=score,
    )


def test_score_nothing_generated_is_worst():
    assert load_score(Promise(1, 1, 0.0), Requirements()) == math.inf


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ([], 0.0),
        ([(1.7, math.nan)], 0.0),  # a running server, or one on another machine
        ([(1.7, 3.2)], 1.5),
        ([(1.7, 3.2), (1.7, 2.9), (2.7, 4.0), (1.7, math.nan)], 1.3),
    ],
)
def test_unplanned_memory_is_the_median_difference(trials, expected):
    assert unplanned_gib(trials) == pytest.approx(expected)


def test_memory_is_bounded_from_both_sides():
    limit = MemoryLimit.of_trials([(2.0, False), (4.0, False), (8.0, True)])
    probability = limit.probability(np.array([1.0, 4.0, 6.0, 8.0, 9.0]))
    assert probability.tolist() == [1.0, 1.0, 0.5, IMPOSSIBLE, IMPOSSIBLE]
    assert MemoryLimit.of_trials([]).probability(np.array([1e9])).tolist() == [1.0]


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=8))
def test_memory_probabilities_fall_with_memory(trials):
    sizes = np.linspace(0, 100, 30)
    probability = MemoryLimit.of_trials(trials).probability(sizes)
    assert np.all(np.diff(probability) <= 1e-12)
    assert np.all((probability >= IMPOSSIBLE) & (probability <= 1.0))


def test_pairs_alternate_their_order():
    started = []

    def start(is_other):
        started.append(is_other)
        return 1.0 if is_other else 2.0

    comparison = compare_in_turn(start, pairs=3, may_go_on=lambda: True)
    assert started == [False, True, True, False, False, True]
    assert comparison.ratio == pytest.approx(2.0)
    assert comparison.is_verified


def test_noise_is_no_win():
    scores = iter([1.0, 1.1, 1.0, 1.2, 0.9, 1.0])
    comparison = compare_in_turn(lambda _: next(scores), pairs=3, may_go_on=lambda: True)
    assert not comparison.is_verified
    assert not comparison.reason


def test_compare_in_turn_spent_budget_or_failed_start_has_reason():
    none = compare_in_turn(lambda _: 1.0, pairs=3, may_go_on=lambda: False)
    assert none.reason == "it takes 3 pairs of starts, the budget had 0"
    failed = compare_in_turn(lambda _: math.inf, pairs=3, may_go_on=lambda: True)
    assert failed.reason == "a start of the comparison failed"
    assert not failed.is_verified
