"""What every searcher promises, and what each is for."""

import dataclasses
import math

import numpy as np
import pytest

from foretune.errors import MissingExtra, UnknownName, UsageError
from foretune.problem import Problem
from foretune.registry import registered
from foretune.search import Prior, Stopping, make_searcher
from foretune.space import Configuration, SearchSpace
from foretune.testing import check_searcher
from foretune.testing.searchers import (
    SMALL,
    SPACE,
    fails,
    make_measurement,
    make_prior,
    propose,
)
from foretune.testing.searchers import time_ms as toy_ms

SEARCHERS = sorted(registered("searchers").keys() - {"gp"})
"""Takes too long for a whole space: `test_optuna_search.py`."""
BEST = Configuration(tile=8, unroll=2, order="ji", pack=True, split=2)


def make(name, space=SPACE, seed=0, prior=None, **options):
    try:
        return make_searcher(name, space, seed=seed, prior=prior, **options)
    except MissingExtra as e:
        pytest.skip(str(e))


def perfect_prior(law=toy_ms, spread=0.05):
    return make_prior(SPACE, law, spread)


@pytest.mark.parametrize("name", SEARCHERS)
def test_searcher_fulfils_contract(name, monkeypatch):
    """It holds however little a policy has learned, and however seldom a sampler is asked again."""
    try:
        if name in ("tpe", "cmaes"):
            from foretune.search.optuna import searchers

            monkeypatch.setattr(searchers, "MAX_RETRIES", 3)
        if name == "policy":
            from foretune.search.policies import agent, searcher

            brief = agent.TrainingSchedule(updates=3, episodes=16)
            monkeypatch.setattr(searcher, "SHORT_TRAINING", brief)
            monkeypatch.setattr(searcher, "UPDATES_PER_TELL", 1)
        check_searcher(name)
    except MissingExtra as e:
        pytest.skip(str(e))


def test_registered_searchers():
    assert {"random", "exhaustive", "tpe", "surrogate"} <= set(SEARCHERS)
    assert len(SPACE) > 100
    assert BEST in SPACE
    assert min(SPACE, key=toy_ms) == BEST


@pytest.mark.parametrize("name", ["random", "tpe", "surrogate"])
def test_another_seed_searches_elsewhere(name):
    assert propose(make(name, seed=0), budget=8) != propose(make(name, seed=1), budget=8)


def test_unknown_searchers():
    with pytest.raises(UnknownName, match="unknown searcher 'randon': did you mean 'random'"):
        make("randon")


def test_random_is_uniform():
    rounds = 400
    n = 5
    counts = np.zeros(len(SPACE))
    for seed in range(rounds):
        for config in make("random", seed=seed).ask(n):
            counts[SPACE.index(config)] += 1
    expected = rounds * n / len(SPACE)
    chi2 = ((counts - expected) ** 2 / expected).sum()
    degrees = len(SPACE) - 1
    assert abs(chi2 - degrees) < 4 * math.sqrt(2 * degrees)


VAST = SearchSpace({f"p{i}": tuple(2**k for k in range(10)) for i in range(12)}, ["p0 < p1"])


def vast_ms(config):
    return 1.0 + sum(abs(math.log2(v) - 5 - i % 3) for i, v in enumerate(config.values())) / 10


def test_searcher_space_too_large_to_enumerate():
    best = {
        name: min(
            vast_ms(c)
            for c in propose(make(name, VAST), 60, time_of=vast_ms, is_broken=lambda c: False)
        )
        for name in ("surrogate", "random")
    }
    assert best["surrogate"] < 1.6 < best["random"]


def test_exhaustive_goes_in_order_or_by_the_prior():
    assert make("exhaustive").ask(9) == [SPACE[i] for i in range(9)]
    prior = perfect_prior()
    guided = make("exhaustive", prior=prior).ask(9)
    assert guided == sorted(SPACE, key=lambda c: prior.log_mean[SPACE.index(c)])[:9]


@pytest.mark.parametrize("name", ["surrogate", "exhaustive"])
def test_surrogate_perfect_prior_proposes_optimum_first(name):
    assert make(name, prior=perfect_prior()).ask() == [BEST]


def test_surrogate_prior_avoids_failures():
    fast_if_it_ran = perfect_prior(law=lambda c: 0.3 * toy_ms(c) if fails(c) else toy_ms(c))
    heedless = Prior(fast_if_it_ran.log_mean, fast_if_it_ran.log_spread, np.ones(len(SPACE)))
    assert make("surrogate", prior=fast_if_it_ran).ask() == [BEST]
    assert fails(make("surrogate", prior=heedless).ask()[0])


def evaluations_until(asked, within):
    good = toy_ms(BEST) * within
    return next((i for i, c in enumerate(asked, 1) if not fails(c) and toy_ms(c) <= good), math.inf)


def test_surrogate_without_prior_beats_random():
    needed = {
        name: np.median(
            [evaluations_until(propose(make(name, seed=s), 99), 1.05) for s in range(5)]
        )
        for name in ("surrogate", "random")
    }
    assert needed["surrogate"] < needed["random"] / 3


def test_surrogate_misleading_prior_costs_but_does_not_trap():
    def wrong(config):  # tile the wrong way round, order the wrong one
        return (
            toy_ms(config)
            * 2 ** (math.log2(config["tile"]) - 2)
            * (1.5 if config["order"] == "ji" else 1.0)
        )

    asked = propose(make("surrogate", prior=perfect_prior(law=wrong, spread=0.5)), budget=40)
    assert toy_ms(asked[0]) > 1.5 * toy_ms(BEST)  # it was misled
    chance = np.median(
        [evaluations_until(propose(make("random", seed=s), 156), 1.1) for s in range(9)]
    )
    assert evaluations_until(asked, 1.10) < chance


def test_surrogate_reversed_prior_does_not_trap():
    upside_down = perfect_prior(law=lambda c: 1 / toy_ms(c), spread=0.5)
    asked = propose(make("surrogate", prior=upside_down), budget=len(SPACE) // 2)
    assert evaluations_until(asked, 1.10) <= len(SPACE) // 2


def test_searcher_prior_of_other_space_is_refused():
    with pytest.raises(UsageError, match="the prior is for 156 configurations, the space has"):
        make("surrogate", SMALL, prior=perfect_prior())


def test_surrogate_constant_prior_counts_as_none():
    flat = Prior(np.zeros(len(SPACE)), 0.1, np.ones(len(SPACE)))
    asked = propose(make("surrogate", prior=flat), budget=20)
    assert asked == propose(make("surrogate"), budget=20)


def test_surrogate_leaves_out_measurements_beyond_limit(monkeypatch):
    monkeypatch.setattr("foretune.search.surrogate_model.MAX_FITTED", 20)
    searcher = make("surrogate")
    propose(searcher, budget=60)
    assert len(searcher._loss_posterior.of_candidates) < 30
    assert searcher.best() == BEST


def test_surrogate_prior_off_by_factor_proposes_optimum_first():
    tenfold = perfect_prior(law=lambda c: 10 * toy_ms(c))
    asked = propose(make("surrogate", prior=tenfold), budget=5)
    assert asked[0] == BEST
    assert evaluations_until(asked, 1.0) == 1


def test_surrogate_space_larger_than_pool():
    space = SearchSpace({f"p{i}": tuple(range(8)) for i in range(5)})  # 32768

    def law(config):
        return 1.0 + sum((v - 5) ** 2 for v in config.values()) / 10

    best = Configuration({f"p{i}": 5 for i in range(5)})
    mean = np.log(1.0 + sum((c - 5.0) ** 2 for c in space.columns().values()) / 10)
    guided = make("surrogate", space, prior=Prior(mean, 0.1, np.ones(len(space))))
    assert guided.ask() == [best]
    alone = make("surrogate", space)
    asked = propose(alone, budget=14, n=7, time_of=law, is_broken=lambda c: False)
    assert len(set(asked)) == 14
    assert law(alone.best()) < np.median(np.exp(mean))


def test_surrogate_of_other_problems_keeps_pool_until_it_is_told_something():
    space = SearchSpace({f"p{i}": tuple(range(8)) for i in range(5)})  # larger than the pool
    elsewhere = [
        dataclasses.replace(
            make_measurement(config, lambda c: 1.0 + c["p0"], lambda c: False), problem=Problem(n=2)
        )
        for config in space.sample(8, np.random.default_rng(0))
    ]
    searcher = make("surrogate", space, problem=Problem(n=1), other_measurements=elsewhere)
    first = searcher.search_posterior()
    again = searcher.search_posterior()
    np.testing.assert_array_equal(again.indices, first.indices)


def test_surrogate_learns_failures():
    """The prior is sure of twelve configurations that all fail: some of them are lesson enough."""
    prior = perfect_prior(law=lambda c: 0.7 * toy_ms(c) if fails(c) else toy_ms(c), spread=0.2)
    sure = Prior(prior.log_mean, prior.log_spread, np.full(len(SPACE), 0.9))
    asked = propose(make("surrogate", prior=sure), budget=20)
    assert fails(asked[0])
    assert sum(map(fails, asked)) < sum(map(fails, SPACE)) < len(asked)
    assert BEST in asked


class TestRegret:
    def test_expected_regret_is_infinite_first_and_small_last(self):
        searcher = make("surrogate", SMALL)
        assert searcher.expected_regret() == searcher.expected_improvement() == math.inf
        propose(searcher, budget=len(SMALL), is_broken=lambda c: False)
        assert searcher.expected_regret() < 0.03
        assert searcher.expected_improvement() < 0.001

    def test_searches_that_stop_on_it_found_what_matters(self):
        found = []
        for seed in range(8):
            searcher = make("surrogate", seed=seed)
            spent = 0
            while Stopping(regret=0.05).reason(searcher, spent) is None:
                (config,) = searcher.ask()
                searcher.tell([make_measurement(config)])
                spent += 1
            assert spent < len(SPACE) / 2
            found.append(toy_ms(searcher.best()) / toy_ms(BEST))
        assert np.mean(found) <= 1.1

    def test_asking_for_it_changes_no_proposal(self):
        plain = make("surrogate", seed=3)
        asked = make("surrogate", seed=3)
        for _ in range(20):
            assert math.isfinite(asked.expected_regret()) or asked.expected_regret() == math.inf
            (config,) = asked.ask()
            assert plain.ask() == [config]
            for searcher in (plain, asked):
                searcher.tell([make_measurement(config)])
            _ = asked.expected_improvement()


def test_expected_regret_foreign_prior_is_checked_first():
    foreign = make("surrogate", prior=perfect_prior())
    propose(foreign, budget=8)
    assert foreign.expected_regret() == math.inf
    propose(foreign, budget=1)
    assert foreign.expected_regret() < 0.1
    own = make("surrogate", prior=dataclasses.replace(perfect_prior(), foreign=False))
    propose(own, budget=2)
    assert own.expected_regret() < 0.1


def test_expected_regret_other_searchers_is_infinite():
    searcher = make("random")
    propose(searcher, budget=5)
    assert searcher.expected_regret() == searcher.expected_improvement() == math.inf


@pytest.mark.parametrize("told", [1, 5])
def test_improvement_counts_as_far_as_it_is_likely_to_run(told):
    """Of two candidates that promise as much, the one that surely runs is measured first."""
    space = SearchSpace({"x": tuple(range(20)), "risky": (True, False)})
    mean = np.array([0.2 * c["x"] - 0.01 * c["risky"] for c in space])
    p_valid = np.array([0.3 if c["risky"] else 1.0 for c in space])
    searcher = make("surrogate", space, prior=Prior(mean, 0.2, p_valid, foreign=False))
    known = [Configuration(x=x, risky=False) for x in range(10, 10 + told)]
    searcher.tell(
        make_measurement(c, lambda c: math.exp(0.2 * c["x"]), lambda c: False) for c in known
    )
    assert [c["risky"] for c in searcher.ask(3)] == [False, False, False]


LINE = SearchSpace({"x": tuple(range(100))})


def test_surrogate_checks_foreign_prior_far_from_measurements():
    def law(config):
        return math.exp(0.02 * config["x"])

    far = {}
    for foreign in (True, False):
        prior = Prior(np.log([law(c) for c in LINE]), 0.1, np.ones(len(LINE)), foreign)
        asked = propose(
            make("surrogate", LINE, prior=prior), 10, time_of=law, is_broken=lambda c: False
        )
        far[foreign] = sum(c["x"] >= 50 for c in asked)
    assert far[True] >= far[False] + 2


def test_surrogate_pending_proposal_moves_next_one_away():
    """Of proposals at once, no two are neighbors: the second would tell what the first does."""

    def law(config):
        return 1 + ((config["x"] - 37) / 40) ** 2

    searcher = make("surrogate", LINE)
    propose(searcher, 9, time_of=law, is_broken=lambda c: False)
    first, second, third = (c["x"] for c in searcher.ask(3))
    assert min(abs(first - second), abs(first - third), abs(second - third)) > 1
