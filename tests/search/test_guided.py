"""Searchers that know no priors, beside one that does."""

import numpy as np
import pytest

from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.search import Prior, Searcher, make_searcher
from foretune.search.factory import GUIDED_MEASUREMENTS, TURN_PERIOD, GuidedSearcher
from foretune.search.searcher import RandomSearcher
from foretune.testing.searchers import SPACE, fails, make_prior, time_ms


def told(config):
    """Return the measurement of a configuration."""
    ran = not fails(config)
    status = Status.OK if ran else Status.RUNTIME_ERROR
    time = time_ms(config) if ran else float("nan")
    return Measurement("toy", Problem(), config, "Toy CPU", status, time_ms=time)


def evaluations(searcher):
    """Return how many measurements it needs to find the best configuration."""
    best = min(time_ms(c) for c in SPACE if not fails(c))
    for n in range(1, len(SPACE) + 1):
        (config,) = searcher.ask(1)
        searcher.tell([told(config)])
        if not fails(config) and time_ms(config) == best:
            return n
    return None


class Forward(Searcher):
    """Proposes configurations in order, and keeps what it was told."""

    def _propose(self, n):
        return [i for i in range(len(self.space)) if i not in self.proposed][:n]


@pytest.mark.parametrize("kind", ["tpe", "random", Forward])
def test_guided_searcher_uses_prior(kind):
    alone = [evaluations(make_searcher(kind, SPACE, seed=seed)) for seed in range(3)]
    guided = [
        evaluations(make_searcher(kind, SPACE, seed=seed, prior=make_prior(SPACE)))
        for seed in range(3)
    ]
    assert np.mean(guided) <= 0.35 * np.mean(alone)


def test_guided_searcher_shuffled_prior_costs_little():
    good = make_prior(SPACE)
    shuffled = Prior(np.random.default_rng(1).permutation(good.log_mean), 0.05, good.p_valid)
    alone = [evaluations(make_searcher("random", SPACE, seed=seed)) for seed in range(5)]
    misled = [
        evaluations(make_searcher("random", SPACE, seed=seed, prior=shuffled)) for seed in range(5)
    ]
    assert np.mean(misled) <= 1.2 * np.mean(alone)


@pytest.mark.parametrize("kind", ["surrogate", "exhaustive"])
def test_make_searcher_that_uses_prior_is_not_guided(kind):
    searcher = make_searcher(kind, SPACE, prior=make_prior(SPACE))
    assert searcher.uses_prior
    assert not isinstance(searcher, GuidedSearcher)


def test_turns():
    """The other has every third turn after the first, knows all, and nothing comes twice."""
    searcher = make_searcher(Forward, SPACE, prior=make_prior(SPACE))
    asked = []
    for _ in range(GUIDED_MEASUREMENTS + 2 * TURN_PERIOD):
        (config,) = searcher.ask(1)
        asked.append(SPACE.index(config))
        searcher.tell([told(config)])
    assert len(set(asked)) == len(asked)
    assert set(searcher._other.observed) == set(searcher._guide.observed) == set(asked)
    theirs = [n for n in range(GUIDED_MEASUREMENTS, len(asked)) if n % TURN_PERIOD == 0]
    for n in theirs:
        assert asked[n] == min(i for i in range(len(SPACE)) if i not in asked[:n])


def test_guided_searcher_checks_prior_first():
    asked = []
    for kind in (Forward, "surrogate"):
        searcher = make_searcher(kind, SPACE, prior=make_prior(SPACE))
        asked.append([searcher.ask()[0] for _ in range(GUIDED_MEASUREMENTS)])
    assert asked[0] == asked[1]


def test_guided_searcher_regret_is_guides_estimate():
    assert RandomSearcher(SPACE).expected_regret() == float("inf")
    searcher = make_searcher("random", SPACE, prior=make_prior(SPACE))
    for _ in range(20):
        searcher.tell([told(c) for c in searcher.ask(1)])
    assert searcher.expected_regret() < 0.2
