"""SMAC3 behind ask and tell."""

import sys

import numpy as np
import pytest
from peers.smac import SMACSearcher

from foretune.errors import MissingExtra
from foretune.search import make_searcher
from foretune.space import SearchSpace
from foretune.testing.searchers import SPACE

PLAIN = SearchSpace({"x": tuple(range(12)), "y": (1, 2, 4, 8, 16, 32), "way": ("a", "b")})


def law(config):
    """Best at x=7, y=8, way b."""
    return 1 + abs(config["x"] - 7) + abs(np.log2(config["y"]) - 3) + (config["way"] == "a")


def asked(space, seed, n):
    searcher = make_searcher(SMACSearcher, space, seed=seed)
    found = []
    for _ in range(n):
        (config,) = searcher.ask()
        found.append(config)
        searcher.tell_values({space.index(config): law(config)})
    return found


def test_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "smac", None)
    with pytest.raises(MissingExtra, match=r"searcher 'smac' needs .*smac.*pip install"):
        make_searcher(SMACSearcher, SPACE)


class TestSMAC:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("smac")

    def test_it_keeps_to_its_seed_and_repeats_nothing(self):
        found = asked(PLAIN, 1, 24)
        assert len(set(found)) == 24
        assert asked(PLAIN, 1, 10) == found[:10]
        assert asked(PLAIN, 2, 10) != found[:10]

    def test_restrictions_are_kept(self):
        searcher = make_searcher(SMACSearcher, SPACE, seed=1)
        for _ in range(3):
            config = searcher.ask(2)
            assert len({SPACE.index(c) for c in config}) == 2
            searcher.tell_values({SPACE.index(c): 1.0 for c in config})

    def test_it_hears_what_others_measured(self):
        searcher = make_searcher(SMACSearcher, SPACE, seed=1)
        searcher.tell_values({3: 2.0, 5: float("inf")})
        history = searcher._facade.runhistory
        assert sorted(value.cost for value in history.values()) == [2.0, 4.0]
