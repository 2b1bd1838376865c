"""Scores of searches: by hand, by brute force, and at the edges."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_space import space_runs

from foretune.search.replay.recorded import recorded_spaces
from foretune.search.replay.replay import replay
from foretune.search.replay.scores import (
    evals_to,
    geometric_mean_evals,
    methodology_score,
    random_baseline,
    score_replay,
)

INF = math.inf
spaces = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6).flatmap(
    lambda runs: st.integers(0, 2).map(lambda failures: np.array([*runs, *[INF] * failures]))
)


@given(spaces)
def test_random_baseline_is_mean_over_all_draws(values):
    finite = np.where(np.isinf(values), values[np.isfinite(values)].max(), values)
    by_hand = [
        np.mean([min(draw) for draw in itertools.combinations(finite, n)])
        for n in range(1, len(values) + 1)
    ]
    assert random_baseline(values, len(values)) == pytest.approx(by_hand)


@given(spaces, st.integers(1, 12))
def test_random_baseline_falls_to_optimum_and_stays(values, budget):
    baseline = random_baseline(values, len(values) + budget)
    assert (np.diff(baseline) <= 1e-12).all()
    assert baseline[len(values) - 1 :] == pytest.approx(values.min())


def test_methodology_score_of_all_orders_is_zero_on_average():
    values = np.array([1.0, 2.0, 2.5, 4.0, INF, 9.0])
    curves = np.array(
        [1.0 / np.minimum.accumulate(order) for order in itertools.permutations(values)]
    )
    scores = methodology_score(values, curves)
    assert scores.mean() == pytest.approx(0.0, abs=1e-12)
    assert scores.max() == pytest.approx(1.0)


def test_methodology_score_of_optimum_is_one_and_of_bad_luck_negative():
    values = np.linspace(1.0, 5.0, 100)
    perfect = np.ones((2, 50))
    assert methodology_score(values, perfect) == pytest.approx([1.0, 1.0])
    stuck = np.full((1, 50), 0.2)
    assert methodology_score(values, stuck)[0] < -1


def test_methodology_score_counts_only_its_range():
    values = np.linspace(1.0, 5.0, 1000)  # median 3; baseline(n) = 1 + 4 / (n + 1) about
    worse_later = np.ones((1, 200))
    start, end = 2, 40  # 1 % of the way: 2.98, 95 %: 1.1
    assert random_baseline(values, 200)[[start - 1, end - 1]] == pytest.approx([2.33, 1.1], abs=0.1)
    worse_later[:, end:] = 0.5
    worse_later[:, : start - 1] = 0.0
    assert methodology_score(values, worse_later)[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    "values", [[2.0] * 5, [2.0], [3.0, 2.0, 2.0, 2.0], [2.0, INF], [3.0, 3.0, 3.0, 2.0]]
)
def test_methodology_score_without_possible_gain(values):
    scores = methodology_score(np.array(values), np.ones((3, 5)))
    assert not np.isinf(scores).any()
    if np.median([v for v in values if v < INF]) == min(values):
        assert np.isnan(scores).all()


def test_methodology_score_too_small_budget_is_nan():
    values = np.array([1.0, *[2.0] * 60, *[100.0] * 39])  # one draw: 40 on average
    assert np.isnan(methodology_score(values, np.ones((2, 1)))).all()


def test_evaluations_until_a_share():
    curves = np.array([[0.5, 0.96, 1.0], [0.95, 0.95, 0.95], [0.1, 0.2, 0.99], [0.1, 0.1, 0.1]])
    assert evals_to(0.95, curves) == 2.5
    assert evals_to(0.95, curves[:3]) == 2.0
    assert evals_to(0.99, curves) == 3.0  # exactly half get there
    assert evals_to(0.99, curves[:3]) == 3.0
    assert evals_to(0.99, curves[1:]) is None
    assert evals_to(1.0, curves) is None


def test_geometric_mean_evals_none_counts_twice_the_budget():
    assert geometric_mean_evals([1.0, 100.0], 200) == pytest.approx(10.0)
    assert geometric_mean_evals([100.0, None], 200) == pytest.approx(200.0)


def test_scores_of_a_replay():
    runs = space_runs()
    (recorded,) = recorded_spaces(runs, "toy")
    result = replay(recorded, "random", budget=60, repeats=30)
    scores = score_replay(recorded, result)
    said = vars(scores)
    assert set(said["fraction_at"]) == {5, 10, 20, 50}
    assert said["fraction_at"][10] == pytest.approx(result.curves[:, 9].mean())
    assert said["hit_95"] == 1.0
    assert said["within_5"] == recorded.count_within(0.95)
    assert said["configurations"] == 60
    assert scores.evals_to_95 <= scores.evals_to_99 <= 60
    assert abs(scores.score) < 4 * scores.score_error
    assert scores.overhead_ms > 0


def test_scores_of_a_single_repeat_and_of_constant_times():
    runs = space_runs()
    constant = runs[runs["status"] == "ok"].assign(time_ms=2.0)
    (recorded,) = recorded_spaces(constant, "toy")
    scores = score_replay(recorded, replay(recorded, "random", budget=5, repeats=1))
    assert (scores.evals_to_95, scores.hit_95, scores.fraction_at[5]) == (1.0, 1.0, 1.0)
    assert math.isnan(scores.score)
    assert math.isnan(scores.score_error)
