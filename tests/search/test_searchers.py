"""What every searcher promises, and what each is for."""

import dataclasses
import math

import numpy as np
import pytest

from foretune.errors import MissingExtra, SpaceError, UnknownName, UsageError
from foretune.measurement import Measurement, Status
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.registry import registered
from foretune.search import Prior, Stopping, make_searcher
from foretune.space import Configuration, SearchSpace

SEARCHERS = sorted(registered("searchers").keys() - {"gp"})
"""Optuna's Gaussian process takes too long for a whole space: `test_optuna_search.py`."""
SPACE = SearchSpace(
    {
        "tile": (1, 2, 4, 8, 16),
        "unroll": (1, 2, 4),
        "order": ("ij", "ji"),
        "pack": (False, True),
        "split": ("auto", 1, 2),
    },
    ["tile * unroll <= 32", "split != 'auto' or tile > 1"],
)
SMALL = SearchSpace(SPACE.parameters, ["tile in (4, 8, 16)", "unroll < 4", "split != 1"])
TINY = SearchSpace({"x": (1, 2), "flag": (False, True)}, ["x == 1 or flag"])


def toy_ms(config):
    """Best at tile 8, unroll 2, ji, packed, split 2."""
    slow = 1.3 ** abs(math.log2(config["tile"]) - 3) * 1.2 ** abs(math.log2(config["unroll"]) - 1)
    slow *= 1.0 if config["order"] == "ji" else 1.25
    slow *= 1.0 if config["pack"] else 1.15
    return slow * {"auto": 1.1, 1: 1.2, 2: 1.0}[config["split"]]


BEST = Configuration(tile=8, unroll=2, order="ji", pack=True, split=2)


def fails(config):
    return config["tile"] == 16 and config["pack"]


def measure(config, law=toy_ms, broken=fails, power_w=math.nan):
    common = ("toy", Problem(n=1), Configuration(config), "Toy CPU")
    if broken(config):
        return Measurement(*common, Status.RUNTIME_ERROR)
    return Measurement(*common, Status.OK, time_ms=law(config), power_w=power_w)


def never(config):
    return False


def perfect_prior(space=SPACE, law=toy_ms, spread=0.05):
    mean = np.log([law(c) for c in space])
    return Prior(mean, spread, np.array([0.02 if fails(c) else 0.98 for c in space]))


def make(name, space=SPACE, seed=0, prior=None, **options):
    try:
        return make_searcher(name, space, seed=seed, prior=prior, **options)
    except MissingExtra as e:
        pytest.skip(str(e))


def search(searcher, budget, n=1, **how):
    """Return the configurations asked for, in order."""
    asked = []
    while len(asked) < budget:
        batch = searcher.ask(min(n, budget - len(asked)))
        if not batch:
            break
        asked += batch
        searcher.tell(measure(c, **how) for c in batch)
    return asked


with_and_without_prior = pytest.mark.parametrize("guided", [False, True], ids=["alone", "guided"])
every = pytest.mark.parametrize("name", SEARCHERS)


@pytest.fixture
def prior(guided):
    return perfect_prior() if guided else None


def test_there_are_searchers():
    assert {"random", "exhaustive", "tpe", "surrogate"} <= set(SEARCHERS)
    assert len(SPACE) > 100
    assert BEST in SPACE
    assert min(SPACE, key=toy_ms) == BEST


@every
@with_and_without_prior
@pytest.mark.parametrize("n", [1, 7])
def test_it_never_repeats_and_stays_legal(name, n, prior):
    asked = search(make(name, prior=prior), budget=28, n=n)
    assert len(asked) == len(set(asked)) == 28
    assert all(c in SPACE for c in asked)


@every
@with_and_without_prior
def test_it_asks_again_without_being_told(name, prior):
    searcher = make(name, prior=prior)
    asked = [c for _ in range(4) for c in searcher.ask(3)]
    assert len(set(asked)) == 12


@every
@with_and_without_prior
def test_the_seed_decides(name, prior):
    one = search(make(name, seed=3, prior=prior), budget=16, n=4)
    assert search(make(name, seed=3, prior=prior), budget=16, n=4) == one


@pytest.mark.parametrize("name", ["random", "tpe", "surrogate"])
def test_another_seed_searches_elsewhere(name):
    assert search(make(name, seed=0), budget=8) != search(make(name, seed=1), budget=8)


@every
@with_and_without_prior
def test_it_survives_failures(name, prior):
    searcher = make(name, prior=prior)
    asked = search(searcher, budget=10, broken=lambda c: True)
    assert len(set(asked)) == 10
    assert searcher.best() is None
    asked += search(searcher, budget=10)
    assert len(set(asked)) == 20
    assert searcher.best() in asked[10:]


@every
@with_and_without_prior
def test_asking_for_more_than_there_is(name, guided):
    searcher = make(name, SMALL, prior=perfect_prior(SMALL) if guided else None)
    assert set(searcher.ask(10_000)) == set(SMALL)
    assert searcher.ask(5) == []


@every
@pytest.mark.parametrize("n", [1, 3])
def test_a_tiny_space_is_exhausted(name, n):
    searcher = make(name, TINY)
    asked = search(searcher, budget=99, n=n, law=lambda c: c["x"], broken=never)
    assert len(asked) == len(TINY) == 3
    assert set(asked) == set(TINY)
    assert searcher.best()["x"] == 1
    assert searcher.ask() == []


@every
@pytest.mark.parametrize("parameters", [{"x": (1,)}, {}])
def test_a_space_of_one(name, parameters):
    searcher = make(name, SearchSpace(parameters))
    (only,) = searcher.ask(3)
    searcher.tell([measure(only, law=lambda c: 1.0, broken=never)])
    assert searcher.best() == only
    assert searcher.ask() == []


@every
def test_nothing_is_asked_for(name):
    assert make(name).ask(0) == []


@every
@with_and_without_prior
def test_it_learns_of_what_it_did_not_propose(name, guided):
    searcher = make(name, SMALL, prior=perfect_prior(SMALL) if guided else None)
    others = [c for c in SMALL if c["order"] == "ji" and not fails(c)]
    searcher.tell(measure(c) for c in others)
    assert searcher.best() == BEST
    asked = search(searcher, budget=99_999, n=8)
    assert not set(asked) & set(others)
    assert len(asked) + len(others) == len(SMALL)
    assert searcher.best() == BEST


@every
def test_what_is_outside_the_space_is_refused(name):
    searcher = make(name)
    with pytest.raises(SpaceError, match="not in the space"):
        searcher.tell([measure({**BEST, "tile": 3}, law=lambda c: 1.0)])
    assert searcher.best() is None
    searcher.tell([])
    assert len(searcher.ask(2)) == 2


@every
def test_the_incumbent_is_the_best_success(name):
    searcher = make(name)
    assert searcher.best() is None
    slow, fast, broken = (
        Configuration(tile=t, unroll=1, order="ij", pack=True, split=1) for t in (1, 4, 16)
    )
    searcher.tell([measure(slow), measure(broken)])
    assert searcher.best() == slow
    searcher.tell([measure(fast)])
    assert searcher.best() == fast
    searcher.tell([measure(slow, law=lambda c: 0.01)])  # a second opinion replaces the first
    assert searcher.best() == slow


@every
def test_the_objective_is_minimised(name):
    watts = {1: 10.0, 2: 1000.0}
    time_ms = {1: 2.0, 2: 1.0}
    for objective, best in (("time", 2), ("energy", 1), ("edp", 1)):
        searcher = make(name, TINY, objective=Objective(objective))
        for config in searcher.ask(3):
            x = config["x"]
            searcher.tell([measure(config, lambda c: time_ms[c["x"]], never, watts[x])])
        assert searcher.best()["x"] == best, objective


@every
def test_without_a_meter_energy_has_no_incumbent(name):
    searcher = make(name, objective=Objective.ENERGY)
    assert len(set(search(searcher, budget=8))) == 8
    assert searcher.best() is None


def test_unknown_searchers():
    with pytest.raises(UnknownName, match="unknown searcher 'randon': did you mean 'random'"):
        make("randon")


def test_random_is_uniform():
    rounds, n = 400, 5
    counts = np.zeros(len(SPACE))
    for seed in range(rounds):
        for config in make("random", seed=seed).ask(n):
            counts[SPACE.index(config)] += 1
    expected = rounds * n / len(SPACE)
    chi2 = ((counts - expected) ** 2 / expected).sum()
    degrees = len(SPACE) - 1
    assert abs(chi2 - degrees) < 4 * math.sqrt(2 * degrees)


def test_exhaustive_goes_in_order_or_by_the_prior():
    assert make("exhaustive").ask(9) == [SPACE[i] for i in range(9)]
    prior = perfect_prior()
    guided = make("exhaustive", prior=prior).ask(9)
    assert guided == sorted(SPACE, key=lambda c: prior.log_mean[SPACE.index(c)])[:9]


@pytest.mark.parametrize("name", ["surrogate", "exhaustive"])
def test_a_perfect_prior_finds_the_optimum_at_the_first_ask(name):
    assert make(name, prior=perfect_prior()).ask() == [BEST]


def test_a_prior_keeps_the_surrogate_from_what_fails():
    fast_if_it_ran = perfect_prior(law=lambda c: 0.3 * toy_ms(c) if fails(c) else toy_ms(c))
    heedless = Prior(fast_if_it_ran.log_mean, fast_if_it_ran.log_spread, np.ones(len(SPACE)))
    assert make("surrogate", prior=fast_if_it_ran).ask() == [BEST]
    assert fails(make("surrogate", prior=heedless).ask()[0])


def evaluations_until(asked, within):
    good = toy_ms(BEST) * within
    return next((i for i, c in enumerate(asked, 1) if not fails(c) and toy_ms(c) <= good), math.inf)


def test_the_surrogate_alone_beats_random():
    needed = {
        name: np.median([evaluations_until(search(make(name, seed=s), 99), 1.05) for s in range(7)])
        for name in ("surrogate", "random")
    }
    assert needed["surrogate"] < needed["random"] / 3


def test_a_misleading_prior_costs_but_does_not_trap():
    def wrong(config):  # tile the wrong way round, order the wrong one
        return (
            toy_ms(config)
            * 2 ** (math.log2(config["tile"]) - 2)
            * (1.5 if config["order"] == "ji" else 1.0)
        )

    asked = search(make("surrogate", prior=perfect_prior(law=wrong, spread=0.5)), budget=40)
    assert toy_ms(asked[0]) > 1.5 * toy_ms(BEST)  # it was misled
    chance = np.median(
        [evaluations_until(search(make("random", seed=s), 156), 1.1) for s in range(9)]
    )
    assert evaluations_until(asked, 1.10) < chance


def test_a_prior_upside_down_does_not_trap_either():
    upside_down = perfect_prior(law=lambda c: 1 / toy_ms(c), spread=0.5)
    asked = search(make("surrogate", prior=upside_down), budget=len(SPACE) // 2)
    assert evaluations_until(asked, 1.10) <= len(SPACE) // 2


def test_a_prior_of_another_space_is_refused():
    with pytest.raises(UsageError, match="the prior is of 156 configurations, the space has"):
        make("surrogate", SMALL, prior=perfect_prior())


def test_a_constant_prior_is_none():
    flat = Prior(np.zeros(len(SPACE)), 0.1, np.ones(len(SPACE)))
    asked = search(make("surrogate", prior=flat), budget=20)
    assert asked == search(make("surrogate"), budget=20)


def test_the_surrogate_forgets_what_is_too_much(monkeypatch):
    monkeypatch.setattr("foretune.search.surrogate_process.MOST", 20)
    searcher = make("surrogate")
    search(searcher, budget=60)
    assert len(searcher._posterior) < 30
    assert searcher.best() == BEST


def test_a_prior_that_is_off_by_a_factor_does_not_matter():
    tenfold = perfect_prior(law=lambda c: 10 * toy_ms(c))
    asked = search(make("surrogate", prior=tenfold), budget=5)
    assert asked[0] == BEST
    assert evaluations_until(asked, 1.0) == 1


def test_the_surrogate_handles_spaces_larger_than_its_pool():
    space = SearchSpace({f"p{i}": tuple(range(8)) for i in range(5)})  # 32768

    def law(config):
        return 1.0 + sum((v - 5) ** 2 for v in config.values()) / 10

    best = Configuration({f"p{i}": 5 for i in range(5)})
    mean = np.log(1.0 + sum((c - 5.0) ** 2 for c in space.columns().values()) / 10)
    guided = make("surrogate", space, prior=Prior(mean, 0.1, np.ones(len(space))))
    assert guided.ask() == [best]
    alone = make("surrogate", space)
    asked = search(alone, budget=14, n=7, law=law, broken=never)
    assert len(set(asked)) == 14
    assert law(alone.best()) < np.median(np.exp(mean))


def test_the_surrogate_learns_what_fails():
    """The prior is sure of twelve configurations that all fail: some of them are lesson enough."""
    prior = perfect_prior(law=lambda c: 0.7 * toy_ms(c) if fails(c) else toy_ms(c), spread=0.2)
    sure = Prior(prior.log_mean, prior.log_spread, np.full(len(SPACE), 0.9))
    asked = search(make("surrogate", prior=sure), budget=20)
    assert fails(asked[0])
    assert sum(map(fails, asked)) < sum(map(fails, SPACE)) < len(asked)
    assert BEST in asked


@pytest.mark.parametrize("name", ["surrogate", "transfer"])
class TestRegret:
    def test_it_is_unknown_at_first_and_small_at_last(self, name):
        searcher = make(name, SMALL)
        assert searcher.regret() == searcher.gain() == math.inf
        search(searcher, budget=len(SMALL), broken=never)
        assert searcher.regret() < 0.03
        assert searcher.gain() < 0.001

    def test_a_search_that_stops_on_it_found_what_matters(self, name):
        searcher, measured = make(name, seed=1), 0
        while not Stopping(regret=0.05).is_over(searcher, measured):
            (config,) = searcher.ask()
            searcher.tell([measure(config)])
            measured += 1
        assert measured < len(SPACE) / 2
        assert toy_ms(searcher.best()) <= 1.1 * toy_ms(BEST)

    def test_asking_for_it_changes_no_proposal(self, name):
        plain, asked = make(name, seed=3), make(name, seed=3)
        for _ in range(20):
            assert math.isfinite(asked.regret()) or asked.regret() == math.inf
            (config,) = asked.ask()
            assert plain.ask() == [config]
            for searcher in (plain, asked):
                searcher.tell([measure(config)])
            _ = asked.gain()


def test_a_prior_from_elsewhere_is_checked_before_its_word_counts():
    foreign = make("surrogate", prior=perfect_prior())
    search(foreign, budget=8)
    assert foreign.regret() == math.inf
    search(foreign, budget=1)
    assert foreign.regret() < 0.1
    own = make("surrogate", prior=dataclasses.replace(perfect_prior(), foreign=False))
    search(own, budget=2)
    assert own.regret() < 0.1


def test_others_cannot_tell():
    searcher = make("random")
    search(searcher, budget=5)
    assert searcher.regret() == searcher.gain() == math.inf
