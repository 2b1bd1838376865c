"""The Pareto front, its hypervolume, and the search for it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from foretune.errors import SpaceError
from foretune.measurement import Measurement, Status
from foretune.objective import ConstrainedObjective, Limit, Objective
from foretune.problem import Problem
from foretune.search import Prior, make_searcher
from foretune.search.pareto import Chebyshev, ParetoSearcher
from foretune.search.pareto_front import hypervolume, pareto_front
from foretune.space import Configuration, SearchSpace

COORDINATES = st.floats(0, 4).map(lambda x: round(x, 1))  # ties and repetitions are likely
POINTS = st.integers(1, 5).flatmap(
    lambda d: hnp.arrays(float, st.tuples(st.integers(0, 7), st.just(d)), elements=COORDINATES)
)


def dominates(a, b):
    return (a <= b).all() and (a < b).any()


def union_of_boxes(points, reference):
    """Inclusion and exclusion: exact, and exponential in the number of points."""
    sides = [reference - p for p in points if (p < reference).all()]
    return sum(
        (-1) ** (n + 1) * np.prod(np.min(chosen, axis=0))
        for n in range(1, len(sides) + 1)
        for chosen in itertools.combinations(sides, n)
    )


@given(POINTS)
def test_on_the_front_is_whom_nobody_dominates(points):
    front = pareto_front(points)
    for i, on_it in enumerate(front):
        assert on_it == (not any(dominates(p, points[i]) for p in points))
    for i in np.flatnonzero(~front):  # and somebody on the front dominates the others
        assert any(dominates(p, points[i]) for p in points[front])


@given(POINTS)
def test_failures_are_never_on_the_front(points):
    points[::2, 0] = np.inf
    points[1::4, -1] = np.nan
    front = pareto_front(points)
    usable = np.isfinite(points).all(axis=1)
    assert not front[~usable].any()
    assert (front[usable] == pareto_front(points[usable])).all()


def test_equals_are_all_on_the_front():
    assert pareto_front([[1, 2], [1, 2], [2, 1], [2, 2]]).tolist() == [True, True, True, False]


@given(POINTS)
def test_hypervolume_equals_volume_of_boxes(points):
    reference = np.full(points.shape[1], 3.05)
    assert hypervolume(points, reference) == pytest.approx(union_of_boxes(points, reference))


@given(POINTS, st.data())
def test_hypervolume_never_shrinks_with_more_points(points, data):
    reference = np.full(points.shape[1], 3.05)
    more = data.draw(hnp.arrays(float, (1, points.shape[1]), elements=COORDINATES))
    before, after = (hypervolume(p, reference) for p in (points, np.vstack([points, more])))
    beaten = any((p <= more[0]).all() for p in points) or (more >= reference).any()
    assert after >= before - 1e-9
    assert (after > before + 1e-9) == (not beaten)


def test_hypervolume_computed_by_hand():
    assert hypervolume([[1, 3], [2, 2], [3, 1]], [4, 4]) == 3 + 2 + 1
    assert hypervolume([[0, 0, 0]], [2, 3, 4]) == 24
    assert hypervolume([[4, 0], [np.inf, 1], [np.nan, 1]], [4, 4]) == 0
    assert hypervolume(np.empty((0, 2)), [4, 4]) == 0


SPACE = SearchSpace(
    {"tile": (1, 2, 4, 8, 16, 32), "unroll": (1, 2, 4, 8), "clock": (1, 2, 3, 4, 5)}
)


def costs(config):
    """Fast clocks cost energy; tile and unroll want to be in the middle."""
    off = abs(math.log2(config["tile"]) - 3) + abs(math.log2(config["unroll"]) - 1)
    time_ms = 1.3**off / config["clock"] ** 0.7
    return time_ms, 20 + 10 * config["clock"] ** 2.2


def measure(config, broken=lambda c: False):
    common = ("toy", Problem(n=1), Configuration(config), "Toy")
    if broken(config):
        return Measurement(*common, Status.RUNTIME_ERROR, recorded_at="then")
    time_ms, power_w = costs(config)
    return Measurement(*common, Status.OK, time_ms=time_ms, power_w=power_w, recorded_at="then")


VALUES = np.array([[t, t * p] for t, p in map(costs, SPACE)])
REFERENCE = 3 * VALUES.min(axis=0)
FRONT = {SPACE[int(i)] for i in np.flatnonzero(pareto_front(VALUES))}


def search(searcher, budget, broken=lambda c: False):
    asked = []
    while len(asked) < budget and (batch := searcher.ask(1)):
        asked += batch
        searcher.tell(measure(c, broken) for c in batch)
    return asked


def volume(configs):
    return hypervolume(VALUES[[SPACE.index(c) for c in configs]], REFERENCE)


def priors(off=(1.0, 1.0)):
    valid = np.ones(len(SPACE))
    return [Prior(np.log(VALUES[:, i] * off[i]), 0.05, valid) for i in (0, 1)]


def test_pareto_front_is_not_dominated():
    assert 4 <= len(FRONT) < len(SPACE) / 10
    assert len({c["clock"] for c in FRONT}) == len(FRONT)


def test_pareto_searcher_beats_random():
    budget = 30
    seeds = range(3)
    found = {
        name: np.mean([volume(search(make(seed), budget)) for seed in seeds])
        for name, make in {
            "pareto": lambda seed: ParetoSearcher(SPACE, seed=seed),
            "random": lambda seed: make_searcher("random", SPACE, seed=seed),
            "time": lambda seed: make_searcher("surrogate", SPACE, seed=seed),
        }.items()
    }
    assert found["pareto"] > found["random"]
    assert found["pareto"] > found["time"]
    assert found["pareto"] > 0.9 * volume(FRONT)


@pytest.mark.parametrize("off", [(1.0, 1.0), (3.0, 0.2)])
def test_pareto_searcher_right_priors_find_front_at_once(off):
    """Nor does it matter that they are off by factors, a different one for each objective."""
    asked = search(ParetoSearcher(SPACE, priors=priors(off)), 12)
    assert set(asked[:2]) <= FRONT
    assert volume(asked) > 0.9 * volume(FRONT)


def test_pareto_searcher_never_repeats():
    small = SearchSpace({"tile": (4, 8), "unroll": (1, 2), "clock": (1, 5)})
    searcher = ParetoSearcher(small, seed=1)
    first = searcher.ask(3)
    asked = first + search(searcher, 99)
    assert len(asked) == len(set(asked)) == len(small)
    assert searcher.ask(2) == []
    searcher.tell(map(measure, first))
    assert {m.config for m in searcher.front()} == {
        c for c in small if not any(dominates(*np.array([total(o), total(c)])) for o in small)
    }


def total(config):
    time_ms, power_w = costs(config)
    return time_ms, time_ms * power_w


def test_pareto_searcher_same_seed_same_proposals():
    one = search(ParetoSearcher(SPACE, seed=3), 12)
    assert search(ParetoSearcher(SPACE, seed=3), 12) == one
    assert search(ParetoSearcher(SPACE, seed=4), 12) != one


@pytest.mark.parametrize("kind", ["random", "tpe", "exhaustive"])
def test_pareto_searcher_with_other_searchers(kind):
    searcher = ParetoSearcher(SPACE, kind=kind)
    assert len(set(search(searcher, 10))) == 10
    values = np.array([total(m.config) for m in searcher.front()])
    assert pareto_front(values).all()
    assert (np.diff(values[:, 0]) > 0).all()


def test_failures_and_what_breaks_a_limit_are_on_no_front():
    goals = [
        ConstrainedObjective(o, (Limit("power_w", 150.0),))
        for o in (Objective.TIME, Objective.ENERGY)
    ]
    searcher = ParetoSearcher(SPACE, goals, priors=priors())
    asked = search(searcher, 10, broken=lambda c: c["unroll"] == 8)
    assert any(costs(c)[1] > 150 for c in asked)  # nobody told the prior
    searcher.tell(measure(c, lambda c: c["unroll"] == 8) for c in SPACE)
    assert {m.config for m in searcher.front()} == {c for c in FRONT if costs(c)[1] <= 150}
    assert all(searcher.observed[c] == measure(c) for c in FRONT)  # as they were measured


def test_before_anything_works_it_goes_on():
    searcher = ParetoSearcher(SPACE)
    assert searcher.front() == []
    asked = search(searcher, 12, broken=lambda c: True)
    assert len(set(asked)) == 12
    assert searcher.front() == []


def test_pareto_searcher_configuration_outside_space_is_refused():
    with pytest.raises(SpaceError, match="not in the space"):
        ParetoSearcher(SPACE).tell([measure({"tile": 3, "unroll": 1, "clock": 1})])


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=2, max_size=8))
def test_chebyshev_least_value_is_never_dominated(pairs):
    values = np.array(pairs)
    goal = Chebyshev(
        (Objective.TIME, Objective.ENERGY), np.array([0.3, 0.7]), np.log(values).min(axis=0)
    )
    best = values[np.argmin(goal.combine_logs(np.log(values)))]
    assert not any(dominates(v, best * (1 - 1e-9)) for v in values)


def test_chebyshev_of_a_measurement():
    goal = Chebyshev((Objective.TIME, Objective.ENERGY), np.array([0.5, 0.5]), np.zeros(2))
    m = measure(SPACE[0])
    logs = np.log(total(SPACE[0]))
    assert math.log(goal.value_of(m)) == pytest.approx(goal.combine_logs(logs))
    assert goal.value_of(measure(SPACE[0], broken=lambda c: True)) == math.inf
    unmetered = Measurement("toy", Problem(n=1), SPACE[0], "Toy", Status.OK, time_ms=1.0)
    assert goal.value_of(unmetered) == math.inf
