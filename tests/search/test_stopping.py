"""When searches end."""

import math

import pytest

from foretune import SearchSpace
from foretune.errors import UsageError
from foretune.search.searcher import RandomSearcher
from foretune.search.stopping import DEFAULT_BUDGET, DEFAULT_REGRET, Stopping, make_stopping


class Sure(RandomSearcher):
    """Says what it is told to say."""

    def __init__(self, expected_regret, expected_improvement):
        super().__init__(SearchSpace({"tile": [1, 2]}))
        self.said = expected_regret, expected_improvement

    def expected_regret(self):
        return self.said[0]

    def expected_improvement(self):
        return self.said[1]


def test_stopping_number_of_measurements_ends_search():
    reasons = [Stopping(measurements=3).reason(Sure(0.0, 0.0), n) for n in range(5)]
    assert reasons == [None, None, None, "budget", "budget"]


@pytest.mark.parametrize(
    ("regret", "gain", "reason"),
    [(0.02, 0.1, "regret"), (0.2, 0.1, None), (0.2, 0.001, "regret"), (math.inf, math.inf, None)],
)
def test_so_does_being_sure_or_having_little_to_gain(regret, gain, reason):
    assert Stopping(regret=0.03).reason(Sure(regret, gain), 1) == reason
    assert Stopping(measurements=2).reason(Sure(regret, gain), 1) is None


def test_stopping_without_regret_estimate_goes_on_to_limit():
    searcher = RandomSearcher(SearchSpace({"tile": [1, 2]}))
    assert Stopping(measurements=2, regret=0.5).reason(searcher, 1) is None
    assert Stopping(measurements=2, regret=0.5).reason(searcher, 2) == "budget"


def test_so_do_seconds_before_or_after_the_number():
    rule = Stopping(measurements=3, seconds=10.0)
    searcher = Sure(math.inf, math.inf)
    assert [rule.reason(searcher, 1, s) for s in (0.0, 9.9, 10.0)] == [None, None, "seconds"]
    assert rule.reason(searcher, 3, 0.0) == "budget"
    assert Stopping(seconds=10.0).reason(searcher, 1000, 9.0) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": 0},
        {"seconds": math.nan},
        {"measurements": -1},
        {"regret": -0.1},
        {"regret": math.nan},
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(UsageError):
        Stopping(**wrong)


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ((None, None), Stopping(DEFAULT_BUDGET)),
        ((None, None, 5.0), Stopping(seconds=5.0)),
        ((7, 0.1, 5.0), Stopping(7, 0.1, 5.0)),
        (("auto", None, 5.0), Stopping(None, DEFAULT_REGRET, 5.0)),
        (("auto", 0.1), Stopping(None, 0.1)),
    ],
)
def test_stopping_from_budget(asked, rule):
    assert make_stopping(*asked) == rule


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "all"])
def test_stopping_budget_must_be_positive(wrong):
    with pytest.raises(UsageError, match="budget"):
        make_stopping(wrong, None)
