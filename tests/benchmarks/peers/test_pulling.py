"""A function that calls for values, turned around."""

import pytest
from peers.pulling import CallbackToAskTell

from foretune.errors import ForetuneError


def test_it_runs_as_far_as_it_was_told():
    seen = []

    def function(values):
        seen.append(values([3, 1, 3]))
        seen.append(values([1]))  # told already: it does not wait
        seen.append(values([2]))

    pull = CallbackToAskTell(function, 0)
    assert pull.pending_requests({}) == [3, 1]
    assert pull.pending_requests({1: 0.1}) == [3]
    assert seen == []
    assert pull.pending_requests({1: 0.1, 3: 0.3}) == [2]
    assert seen == [[0.3, 0.1, 0.3], [0.1]]
    assert pull.pending_requests({1: 0.1, 2: 0.2, 3: 0.3}) == []
    assert seen[-1] == [0.2]
    assert pull.pending_requests({}) == []


def test_its_error_is_raised_once_where_it_is_asked():
    def function(values):
        raise KeyError("lost")

    pull = CallbackToAskTell(function, 0)
    with pytest.raises(ForetuneError, match=r"the search failed: KeyError\('lost'\)"):
        pull.pending_requests({})
    assert pull.pending_requests({}) == []


def test_it_can_be_closed_at_any_time():
    ended = []

    def function(values):
        try:
            values([1])
        except Exception:
            ended.append("caught")
        finally:
            ended.append("closed")

    CallbackToAskTell(function, 0).close()
    pull = CallbackToAskTell(function, 0)
    assert pull.pending_requests({}) == [1]
    pull.close()
    pull.close()
    assert ended == ["closed"]
    assert pull.pending_requests({1: 1.0}) == []
