"""Replaying recorded spaces: budgets, seeds, failures, ends of spaces."""

import numpy as np
import pytest
from toy_space import space_runs

from foretune.errors import UnknownName, UsageError
from foretune.search.replay.recorded import recorded_spaces
from foretune.search.replay.replay import replay
from foretune.search.searcher import Prior, RandomSearcher


@pytest.fixture
def recorded():
    runs = space_runs()
    (only,) = recorded_spaces(runs, "toy")
    return only


def test_replay_curve_is_best_share_so_far(recorded):
    result = replay(recorded, "random", budget=30, repeats=4)
    assert result.curves.shape == result.overhead_ms.shape == (4, 30)
    assert (result.budget, result.repeats) == (30, 4)
    assert (result.space, result.searcher) == ("toy", "random")
    assert (np.diff(result.curves) >= 0).all()
    assert result.curves.max() <= 1
    assert (result.overhead_ms > 0).all()


def test_exhaustive_search_sees_the_recorded_values_in_order(recorded):
    curve = replay(recorded, "exhaustive", budget=60, repeats=1).curves[0]
    assert curve == pytest.approx(recorded.optimum / np.minimum.accumulate(recorded.values))
    assert curve[-1] == 1.0


def test_replay_budget_beyond_space_ends_with_it(recorded):
    result = replay(recorded, "random", budget=70, repeats=3)
    assert (result.curves[:, 59:] == 1.0).all()
    assert np.isnan(result.overhead_ms[:, 60:]).all()
    assert not np.isnan(result.overhead_ms[:, :60]).any()


def test_failures_cost_an_evaluation(recorded):
    last = np.argsort(recorded.values)[::-1]  # failures first
    order = np.empty(60)
    order[last] = np.arange(60)
    prior = Prior(order, 0.1, np.ones(60))
    curve = replay(recorded, "exhaustive", budget=5, repeats=1, prior=prior).curves[0]
    assert curve[:3].tolist() == [0.0, 0.0, 0.0]
    assert curve[3] == pytest.approx(recorded.optimum / recorded.values[last[3]])


@pytest.mark.parametrize("searcher", ["random", "tpe"])
def test_replay_same_seed_same_curves(recorded, searcher):
    one = replay(recorded, searcher, budget=15, repeats=3, seed=1).curves
    assert (replay(recorded, searcher, budget=15, repeats=3, seed=1).curves == one).all()
    assert (replay(recorded, searcher, budget=15, repeats=3, seed=2).curves != one).any()
    assert len(np.unique(one, axis=0)) == 3  # repeats are different searches


def test_more_repeats_and_more_budget_begin_alike(recorded):
    few = replay(recorded, "random", budget=10, repeats=2).curves
    assert (replay(recorded, "random", budget=20, repeats=5).curves[:2, :10] == few).all()


def test_processes_do_not_matter(recorded):
    alone = replay(recorded, "random", budget=20, repeats=5).curves
    assert (replay(recorded, "random", budget=20, repeats=5, n_jobs=2).curves == alone).all()


def test_replay_takes_searcher_class(recorded):
    by_name = replay(recorded, "random", budget=10, repeats=2)
    by_class = replay(recorded, RandomSearcher, budget=10, repeats=2)
    assert (by_class.curves == by_name.curves).all()
    assert by_class.searcher == "RandomSearcher"


def test_replay_unusable_arguments_are_refused(recorded):
    with pytest.raises(UsageError, match="budget 0 and repeats 20: give at least 1 of each"):
        replay(recorded, "random", budget=0)
    with pytest.raises(UsageError, match="repeats 0"):
        replay(recorded, "random", repeats=0)
    with pytest.raises(UnknownName, match="unknown searcher 'randon'"):
        replay(recorded, "randon")


def test_replay_space_of_one_configuration():
    runs = space_runs()
    (recorded,) = recorded_spaces(runs.head(1), "one")
    assert (replay(recorded, "random", budget=3, repeats=2).curves == 1.0).all()
