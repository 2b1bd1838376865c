"""Handing out work: all is done once, whoever is lost, however many there are."""

import heapq
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.collect.distributed.dispatcher import (
    MAX_ATTEMPTS,
    MAX_IDLE_S,
    MAX_RETIRE_S,
    REFRESH_S,
    RETIRE_S,
    Dispatcher,
    WorkerLost,
)
from foretune.errors import ForetuneWarning, MeasurementError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore::foretune.errors.ForetuneWarning")


class FakeCrew:
    """Workers that take the seconds a piece of work says; time passes only while one waits.

    Args:
        devices: how many workers there may be, or a function of the time.
        deadly: seconds after which each piece of work kills its worker, as often as they are many.
        first: the first answer of each worker; None once they are used up.
    """

    def __init__(self, devices, deadly=None, first=()):
        self.devices = devices if callable(devices) else lambda now: devices
        self.deadly = {work: list(times) for work, times in (deadly or {}).items()}
        self.first = list(first)
        self.now = 0.0
        self.started = 0
        self.events = []
        self.started_at = []
        self.busy = set()
        self.most_busy = 0
        self.done_by = {}

    def capacity(self):
        return self.devices(self.now)

    def start(self):
        self.started += 1
        self.started_at.append(self.now)
        answer = self.first.pop(0) if self.first else None
        heapq.heappush(self.events, (self.now + 1, self.started, answer))
        return self.started

    def send(self, worker, work):
        assert worker not in self.busy, "it has something to do already"
        self.busy.add(worker)
        self.most_busy = max(self.most_busy, len(self.busy))
        name, seconds = work
        if self.deadly.get(name):
            event = (self.now + self.deadly[name].pop(), worker, WorkerLost("it is gone"))
        else:
            event = (self.now + seconds, worker, f"{name} is done")
            self.done_by.setdefault(worker, []).append(name)
        heapq.heappush(self.events, event)

    def receive(self, timeout_s):
        if not self.events or self.events[0][0] > self.now + timeout_s:
            self.now += timeout_s
            return None
        self.now, worker, answer = heapq.heappop(self.events)
        self.busy.discard(worker)
        return worker, answer


def dispatcher(crew):
    return Dispatcher(crew, clock=lambda: crew.now)


def pieces(n, seconds=10.0, groups=1):
    return [(i % groups, (i, seconds)) for i in range(n)]


@given(
    devices=st.integers(1, 9),
    work=st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 50)), max_size=40),
    deaths=st.dictionaries(st.integers(0, 39), st.integers(0, MAX_ATTEMPTS), max_size=10),
)
def test_results_answers_every_piece_once(devices, work, deaths):
    crew = FakeCrew(devices, {name: [0.5] * times for name, times in deaths.items()})
    asked = [(group, (i, seconds)) for i, (group, seconds) in enumerate(work)]
    answers = dict(dispatcher(crew).results(asked))
    assert sorted(answers) == list(range(len(work)))
    for i, answer in answers.items():
        fatal = deaths.get(i, 0) == MAX_ATTEMPTS
        assert isinstance(answer, WorkerLost) if fatal else answer == f"{i} is done"
    done = Counter(name for names in crew.done_by.values() for name in names)
    assert all(times == 1 for times in done.values())
    assert crew.most_busy <= devices


def test_results_uses_all_devices():
    crew = FakeCrew(4)
    list(dispatcher(crew).results(pieces(40)))
    assert sorted(map(len, crew.done_by.values())) == [10] * 4
    assert crew.now == pytest.approx(1 + 10 * 10)


def test_results_slow_piece_delays_no_other():
    crew = FakeCrew(2)
    list(dispatcher(crew).results([(0, ("slow", 100.0)), *pieces(10)]))
    assert sorted(map(len, crew.done_by.values())) == [1, 10]


def test_results_worker_keeps_group():
    crew = FakeCrew(3)
    list(dispatcher(crew).results(pieces(30, groups=3)))
    for names in crew.done_by.values():
        assert len({name % 3 for name in names}) == 1


def test_results_many_workers_share_group():
    crew = FakeCrew(4)
    list(dispatcher(crew).results(pieces(32, groups=2)))
    assert sorted(map(len, crew.done_by.values())) == [8] * 4


def test_results_single_pieces_go_to_same_worker():
    crew = FakeCrew(3)
    members = dispatcher(crew)
    list(members.results(pieces(9)))
    before = {worker: len(names) for worker, names in crew.done_by.items()}
    for piece in pieces(5):
        list(members.results([piece]))
    more = [len(names) - before[worker] for worker, names in crew.done_by.items()]
    assert sorted(more) == [0, 0, 5]


def test_results_lost_worker_is_replaced_with_warning():
    crew = FakeCrew(2, {3: [5.0]})
    with pytest.warns(ForetuneWarning, match="its work goes to another one: it is gone"):
        assert len(list(dispatcher(crew).results(pieces(10)))) == 10
    assert crew.started == 3


def test_results_new_devices_join():
    crew = FakeCrew(lambda now: 1 if now < 50 else 8)
    list(dispatcher(crew).results(pieces(100)))
    assert crew.started == 8
    assert crew.now < 50 + 100 * 10 / 4


def test_results_unfit_device_is_retried_less_often():
    crew = FakeCrew(2, first=[None, *[UsageError("other code")] * 99])
    with pytest.warns(ForetuneWarning, match="continuing without a device for 5 s: other code"):
        assert len(list(dispatcher(crew).results(pieces(400)))) == 400
    assert list(crew.done_by) == [1]
    gaps = np.diff(crew.started_at[1:])
    limits = np.minimum(RETIRE_S * 2.0 ** np.arange(len(gaps)), MAX_RETIRE_S)
    assert len(gaps) > 12
    assert np.all((limits <= gaps) & (gaps < limits + 10.0 + REFRESH_S + 2.0))  # a piece takes 10 s


def test_results_device_returns_after_killed_workers():
    lost = [WorkerLost("killed")] * MAX_ATTEMPTS
    crew = FakeCrew(3, first=[None, *lost, *lost])
    with pytest.warns(ForetuneWarning, match="continuing without a device for 10 s: killed"):
        assert len(list(dispatcher(crew).results(pieces(60)))) == 60
    assert len(crew.done_by) == 3
    assert crew.started == 3 + 2 * MAX_ATTEMPTS


def test_results_all_workers_killed_come_back():
    """All are lost at work, and then as they start, for a while."""
    crew = FakeCrew(2, {0: [1.0], 1: [1.0]}, [None, None, *[WorkerLost("killed")] * 20])
    assert len(list(dispatcher(crew).results(pieces(20)))) == 20
    assert crew.started == 24


def test_results_worker_lost_at_start_is_restarted():
    crew = FakeCrew(2, first=[WorkerLost("the node is gone")])
    with pytest.warns(
        ForetuneWarning, match="a worker was lost during its start: the node is gone"
    ):
        assert len(list(dispatcher(crew).results(pieces(20)))) == 20
    assert len(crew.done_by) == 2


def test_results_device_that_left_is_not_awaited():
    """Who was unfit leaves; then the worker of the other device is lost, and gets another."""
    crew = FakeCrew(lambda now: 2 if now < 30 else 1, {8: [1.0]}, [None, UsageError("other code")])
    assert len(list(dispatcher(crew).results(pieces(12)))) == 12
    assert crew.started == 3


def test_wait_without_fit_device_raises_reason():
    with pytest.raises(UsageError, match="other code"):
        dispatcher(FakeCrew(2, first=[UsageError("old"), UsageError("other code")])).wait()
    with pytest.raises(MeasurementError, match="no start"):
        dispatcher(FakeCrew(1, first=[WorkerLost("no start")] * MAX_ATTEMPTS)).wait()


def test_results_without_devices_ends_after_limit():
    crew = FakeCrew(lambda now: int(now < 100))
    crew.deadly = {20: [5.0]}
    answers = dispatcher(crew).results(pieces(30))
    with pytest.raises(MeasurementError, match="all measurements are kept"):
        list(answers)
    assert MAX_IDLE_S < crew.now < MAX_IDLE_S + 400


def test_results_early_stop_drops_old_answers():
    crew = FakeCrew(3)
    members = dispatcher(crew)
    for _ in members.results(pieces(9)):
        break
    later = [(0, (name, 1.0)) for name in "abcd"]
    assert sorted(a for _, a in members.results(later)) == [f"{n} is done" for n in "abcd"]
