"""Optuna's samplers behind ask and tell: ours by name, and any other as it is."""

import math

import numpy as np
import optuna
import pytest

from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.search import make_searcher
from foretune.search.factory import searcher_name
from foretune.search.optuna.searchers import CMAESSearcher, OptunaSearcher, TPESearcher
from foretune.space import Configuration, SearchSpace

SPACE = SearchSpace(
    {"x": tuple(range(16)), "y": (1, 2, 4, 8, 16), "flag": (False, True), "way": ("a", "b", "c")},
    ["x * y <= 96"],
)
BEST = Configuration(x=9, y=4, flag=True, way="b")
TINY = SearchSpace(
    {"x": (1, 2), "y": (4,), "flag": (True,), "way": ("a", "b")}, ["x == 1 or way == 'b'"]
)


def law(config):
    slow = 1 + abs(config["x"] - 9) + 2 * abs(np.log2(config["y"]) - 2)
    return slow + (not config["flag"]) + (config["way"] != "b")


def measured(config, time_ms=None):
    common = ("toy", Problem(n=1), config, "Toy GPU")
    if config["y"] == 16:
        return Measurement(*common, Status.RUNTIME_ERROR)
    return Measurement(*common, Status.OK, time_ms=law(config) if time_ms is None else time_ms)


def search(searcher, budget):
    asked = []
    for _ in range(budget):
        asked += searcher.ask()
        searcher.tell([measured(asked[-1])])
    return asked


def samplers():
    kinds = optuna.samplers
    return [
        kinds.TPESampler(seed=0),
        kinds.RandomSampler(seed=0),
        kinds.NSGAIISampler(seed=0, population_size=5),
        kinds.QMCSampler(seed=0, warn_independent_sampling=False),
    ]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("number", range(4))
def test_any_sampler_will_do(number):
    sampler = samplers()[number]
    searcher = make_searcher(sampler, SPACE)
    assert isinstance(searcher, OptunaSearcher)
    assert searcher_name(sampler) == type(sampler).__name__
    asked = search(searcher, 30)
    assert len(set(asked)) == 30
    assert all(c in SPACE for c in asked)
    assert searcher.best() == min((c for c in asked if c["y"] < 16), key=law)
    tiny = make_searcher(samplers()[number], TINY)
    assert set(search(tiny, 3)) == set(TINY)
    assert tiny.ask() == []


def test_optuna_searcher_needs_sampler():
    with pytest.raises(UsageError, match="give a sampler"):
        OptunaSearcher(SPACE)


@pytest.mark.parametrize("kind", ["tpe", "cmaes"])
def test_optuna_searchers_propose_better_than_typical(kind):
    if kind == "cmaes":
        pytest.importorskip("cmaes")
    usual = np.median([law(c) for c in SPACE])
    asked = [c for seed in range(3) for c in search(make_searcher(kind, SPACE, seed=seed), 50)[20:]]
    assert np.median([law(c) for c in asked]) < usual / 1.2


def test_gp_searcher_finds_best_and_keeps_to_seed():
    pytest.importorskip("torch")
    asked = search(make_searcher("gp", SPACE, seed=1), 16)
    assert len(set(asked)) == 16
    assert search(make_searcher("gp", SPACE, seed=1), 16) == asked
    assert min(map(law, asked[10:])) < np.median([law(c) for c in SPACE]) / 1.5


def test_optuna_searcher_illegal_proposals_cost_nothing():
    """A sampler hears of a forbidden proposal, and of one that was measured, without asking."""
    searcher = TPESearcher(SPACE)
    search(searcher, 40)
    trials = searcher._study.trials
    inside = {
        SPACE.index_or_none(searcher._decoded(t.params)) for t in trials if t.value != math.inf
    }
    assert inside <= searcher.observed.keys()
    forbidden = [t for t in trials if SPACE.index_or_none(searcher._decoded(t.params)) is None]
    assert forbidden
    assert all(t.value == math.inf for t in forbidden)


def test_optuna_searcher_learns_measurements_of_others():
    searcher = TPESearcher(SPACE)
    searcher.tell([measured(c) for c in SPACE if c["x"] < 3])
    assert len(searcher._study.trials) == sum(c["x"] < 3 for c in SPACE)
    first = searcher._study.trials[0]
    assert searcher._decoded(first.params) == SPACE[0]
    assert first.value == measured(SPACE[0]).time_ms


def test_numbers_are_positions_where_order_matters():
    ordinal = optuna.distributions.IntDistribution
    cmaes = CMAESSearcher(SPACE) if _has("cmaes") else None
    any_sampler = make_searcher(optuna.samplers.RandomSampler(), SPACE)
    assert isinstance(any_sampler._distributions["y"], ordinal)
    assert not isinstance(any_sampler._distributions["way"], ordinal)
    assert not isinstance(TPESearcher(SPACE)._distributions["y"], ordinal)
    if cmaes is not None:
        assert isinstance(cmaes._distributions["way"], ordinal)
    config = SPACE[77]
    assert any_sampler._decoded(any_sampler._encoded(config)) == config


def test_optuna_searcher_falls_back_to_nearest_free():
    searcher = TPESearcher(SPACE)
    near = searcher._nearest(BEST, {SPACE.index(BEST)})
    assert SPACE[near] in SPACE.neighbors(BEST)
    assert SPACE[near]["x"] in (8, 10)  # a fifteenth of its range; y: a quarter


def test_optuna_searcher_nan_is_not_learned():
    searcher = make_searcher("tpe", SPACE, Objective.ENERGY)
    search(searcher, 5)
    states = {t.state for t in searcher._study.trials if t.value is None}
    assert states <= {optuna.trial.TrialState.FAIL}
    assert searcher.best() is None


def _has(package):
    from importlib.util import find_spec

    return find_spec(package) is not None
