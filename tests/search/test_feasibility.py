"""What runs is learned from what ran and what did not."""

import math
import sys

import numpy as np
import pytest

from foretune.search import make_searcher
from foretune.search.feasibility import MIN_P_VALID, Feasibility
from foretune.space import SearchSpace

SPACE = SearchSpace({"tile": [1, 2, 4, 8, 16, 32], "unroll": list(range(8)), "mode": ["a", "b"]})


def runs(config):
    return config["tile"] * (config["unroll"] + 1) <= 24


def told(numbers):
    return {i: 1.0 if runs(SPACE[i]) else math.inf for i in map(int, numbers)}


def place(numbers):
    return SPACE.codes[numbers].astype(float)


def judged(known, believed=None):
    everything = np.arange(len(SPACE))
    return Feasibility(place, believed, 0).predict(everything, known)


def test_nothing_is_doubted_before_anything_failed():
    believed = np.linspace(0.1, 1.0, len(SPACE))
    good = [i for i in range(len(SPACE)) if runs(SPACE[i])][:5]
    assert (judged(told(good)) == 1.0).all()
    assert (judged(told(good), believed) == believed).all()


def test_where_nothing_ran_everything_is_as_likely():
    bad = [i for i in range(len(SPACE)) if not runs(SPACE[i])][:5]
    assert (judged(told(bad)) == MIN_P_VALID).all()


@pytest.mark.parametrize("xgboost", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_edge_is_learned(seed, xgboost, monkeypatch):
    if not xgboost:
        monkeypatch.setitem(sys.modules, "xgboost", None)
    known = np.random.default_rng(seed).choice(len(SPACE), 40, replace=False)
    likely = judged(told(known))
    truth = np.array([runs(c) for c in SPACE])
    unseen = ~np.isin(np.arange(len(SPACE)), known)
    right = (likely > 0.5) == truth
    assert right[unseen].mean() > 0.75
    assert likely[unseen & truth].mean() > likely[unseen & ~truth].mean() + 0.3


def test_what_was_believed_counts_while_little_is_known():
    believed = np.where(np.arange(len(SPACE)) % 2, 0.9, 0.2)
    likely = judged(told([0, len(SPACE) - 1]), believed)
    assert np.corrcoef(likely, believed)[0, 1] > 0.9


def test_a_search_finds_what_is_fast_beside_what_fails():
    """Three in four fail, and what is fast lies where failures begin."""
    space = SearchSpace({"a": list(range(24)), "b": list(range(24))})

    def time_ms(config):
        a, b = config["a"], config["b"]
        return math.inf if a + b > 16 else 10.0 - 0.3 * a - 0.31 * b

    ran = np.isfinite([time_ms(c) for c in space])
    assert ran.mean() < 0.3
    searcher = make_searcher("surrogate", space, seed=0)
    values = []
    for _ in range(50):
        number = searcher._propose(1)[0]
        searcher.proposed.add(number)
        searcher.tell_values({number: time_ms(space[number])})
        values.append(time_ms(space[number]))
    assert min(values) <= 1.05 * min(time_ms(c) for c in space)
