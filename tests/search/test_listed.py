"""Searching a short list without a prior."""

import math

import pytest

from foretune import Configuration
from foretune.search.listed import ListedSearcher
from foretune.space import ListedSpace

CONFIGS = [
    Configuration(BLOCK=b, num_warps=w, num_stages=s)
    for b in (32, 64, 128, 256) for w in (1, 2, 4, 8) for s in (2, 3, 4)
]  # fmt: skip


def time_ms(config):
    """A valley in the middle; the largest tiles with many stages do not fit."""
    if config["BLOCK"] == 256 and config["num_stages"] == 4:
        return math.inf
    off = (math.log2(config["BLOCK"]) - 6.6) ** 2 + 0.5 * (math.log2(config["num_warps"]) - 2) ** 2
    return 1 + 0.2 * off + 0.05 * abs(config["num_stages"] - 3)


def search(searcher, gain=0.004):
    """Measure until one more is expected to gain no more than ``gain``."""
    asked = []
    while searcher.expected_improvement() > gain and (proposed := searcher.ask()):
        asked += proposed
        searcher.tell_values({searcher.space.index(proposed[0]): time_ms(proposed[0])})
    return asked


def test_few_measurements_find_the_best_of_a_list():
    asked = search(ListedSearcher(ListedSpace(CONFIGS)))
    assert len(asked) == len(set(asked)) <= 16
    assert min(map(time_ms, asked)) <= 1.02 * min(map(time_ms, CONFIGS))


@pytest.mark.parametrize("default", [None, CONFIGS[0], CONFIGS[-1]])
def test_the_default_or_the_middle_is_first(default):
    searcher = ListedSearcher(ListedSpace(CONFIGS), default=default)
    (first,) = searcher.ask()
    assert first == default or (default is None and first["BLOCK"] in (64, 128))
    assert searcher.expected_regret() == math.inf


def test_several_at_once_differ_and_the_list_ends():
    searcher = ListedSearcher(ListedSpace(CONFIGS))
    assert len(set(searcher.ask(5))) == 5
    searcher.tell_values(dict.fromkeys(range(len(CONFIGS)), math.inf))
    assert searcher.ask() == []
    assert searcher.expected_improvement() == math.inf


def test_the_regret_falls():
    searcher = ListedSearcher(ListedSpace(CONFIGS))
    for n, config in enumerate(CONFIGS):
        searcher.tell_values({n: time_ms(config)})
        if n == 3:
            early = searcher.expected_regret()
    assert searcher.expected_regret() < min(early, 0.02)


def test_one_configuration():
    searcher = ListedSearcher(ListedSpace([Configuration(BLOCK=64)]))
    assert searcher.ask() == [Configuration(BLOCK=64)]
    searcher.tell_values({0: 1.0})
    assert searcher.ask() == []
    assert searcher.expected_improvement() == 0.0
