"""The search loop and its drivers."""

import itertools
import math

import pytest

from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.search.loop import run, run_concurrently, search
from foretune.search.searcher import ExhaustiveSearcher, RandomSearcher
from foretune.search.stopping import Stopping
from foretune.space import SearchSpace

SPACE = SearchSpace({"tile": (1, 2, 4, 8, 16), "unroll": (1, 2, 4, 8)})


def time_ms(config):
    return abs(math.log2(config["tile"]) - 2) + config["unroll"]


def measurement(config, status=Status.OK):
    value = time_ms(config) if status is Status.OK else math.nan
    return Measurement("toy", Problem(n=1), config, "toy device", status, value)


def measure(configs):
    return [measurement(config) for config in configs]


class Counting(ExhaustiveSearcher):
    """Counts what it is told and how often its regret is asked for."""

    regret = math.inf

    def _prepare(self):
        super()._prepare()
        self.told = []
        self.times_asked = 0

    def tell(self, measurements):
        self.told += (measurements := list(measurements))
        super().tell(measurements)

    def expected_regret(self):
        self.times_asked += 1
        return self.regret


def test_search_budget_ends_it():
    searcher = Counting(SPACE)
    result = run(search(searcher, Stopping(7)), measure)
    assert (result.measured, result.reason) == (7, "budget")
    assert [m.config for m in searcher.told] == [SPACE[i] for i in range(7)]


def test_search_without_budget_measures_nothing():
    loop = search(Counting(SPACE), Stopping(0), until_one_runs=True)
    assert run(loop, lambda configs: pytest.fail(f"{configs} are measured")).measured == 0


def test_search_exhausted_space_ends_it():
    result = run(search(RandomSearcher(SPACE), Stopping()), measure)
    assert (result.measured, result.reason) == (len(SPACE), "exhausted")


def test_search_small_regret_ends_it():
    searcher = Counting(SPACE)

    def measure_two(configs):
        searcher.regret = 0.02 if len(searcher.observed) == 1 else math.inf
        return measure(configs)

    result = run(search(searcher, Stopping(10, regret=0.03)), measure_two)
    assert (result.measured, result.reason, result.regret) == (2, "regret", 0.02)


def test_known_measurements_are_told_first_and_do_not_count():
    searcher = Counting(SPACE)
    known = measure([SPACE[3], SPACE[0]])
    result = run(search(searcher, Stopping(2), known=known), measure)
    assert result.measured == 2
    assert [SPACE.index(m.config) for m in searcher.told] == [3, 0, 1, 2]


def test_first_configurations_are_measured_once():
    searcher = Counting(SPACE)
    run(search(searcher, Stopping(), first=[SPACE[9], SPACE[0]], parallel=3), measure)
    numbers = [SPACE.index(m.config) for m in searcher.told]
    assert numbers[:3] == [9, 0, 1]
    assert sorted(numbers) == [*range(len(SPACE))]


def test_search_budget_is_exceeded_until_one_runs():
    searcher = Counting(SPACE)
    ran = itertools.count()

    def mostly_fails(configs):
        return [
            measurement(c, Status.OK if next(ran) == 3 else Status.RUNTIME_ERROR) for c in configs
        ]

    result = run(search(searcher, Stopping(2), until_one_runs=True), mostly_fails)
    assert (result.measured, result.reason) == (4, "budget")
    failing = search(Counting(SPACE), Stopping(2))
    assert run(failing, mostly_fails).measured == 2


def test_several_devices_are_kept_busy_and_results_come_in_any_order():
    under_way = []
    most = 0

    def submit(config):
        nonlocal most
        under_way.append(config)
        most = max(most, len(under_way))

    def finished():
        return measurement(under_way.pop())

    searcher = Counting(SPACE)
    result = run_concurrently(search(searcher, Stopping(9), parallel=3), submit, finished)
    assert (result.measured, most) == (9, 3)
    assert len({m.config for m in searcher.told}) == 9


def test_pending_configurations_count_against_the_budget():
    loop = search(Counting(SPACE), Stopping(3), parallel=2)
    assert len(next(loop).start) == 2
    batch = loop.send([])
    assert (batch.start, batch.pending) == ((), 2)
    batch = loop.send(measure([SPACE[1]]))
    assert (batch.start, batch.pending) == ((SPACE[2],), 2)
    batch = loop.send(measure([SPACE[2]]))
    assert (batch.start, batch.pending) == ((), 1)
    with pytest.raises(StopIteration) as end:
        loop.send(measure([SPACE[0]]))
    assert end.value.value.measured == 3


def test_another_configuration_starts_while_other_processes_hold_one():
    waiting = []
    loop = search(Counting(SPACE), Stopping(4), parallel=lambda: 1 + len(waiting))
    waiting += next(loop).start  # claimed elsewhere
    batch = loop.send([])
    assert (batch.start, batch.pending) == ((SPACE[1],), 2)
    batch = loop.send(measure(batch.start))
    assert batch.start == (SPACE[2],)
    batch = loop.send(measure([*batch.start, waiting.pop()]))
    assert (batch.start, batch.pending) == ((SPACE[3],), 1)


def test_likely_is_asked_for_no_more_than_the_budget_allows():
    asked = []

    def likely(n):
        asked.append(n)
        return [SPACE[19]]

    loop = search(Counting(SPACE), Stopping(3), parallel=2, likely=likely)
    batch = next(loop)
    assert (batch.likely, asked) == ((SPACE[19],), [1])
    batch = loop.send(measure(batch.start))
    assert (batch.likely, asked) == ((), [1])


def test_seconds_end_a_search_and_are_costs():
    clock = [100.0]

    def slow(configs):
        for config in configs:
            clock[0] += config["unroll"]
            yield measurement(config)

    searcher = Counting(SPACE)
    result = run(search(searcher, Stopping(seconds=10.0), clock=lambda: clock[0]), slow)
    assert result.reason == "seconds"
    assert len(searcher.told) == 4


def test_search_waits_for_running_measurements_at_time_limit():
    clock = [0.0]
    searcher = Counting(SPACE)
    loop = search(searcher, Stopping(seconds=1.0), parallel=2, clock=lambda: clock[0])
    first, second = next(loop).start
    clock[0] = 2.0
    batch = loop.send(measure([first]))
    assert (batch.start, batch.pending) == ((), 1)
    with pytest.raises(StopIteration) as end:
        loop.send(measure([second]))
    assert end.value.value.measured == len(searcher.told) == 2


def test_regret_is_not_computed_while_nothing_can_start():
    searcher = Counting(SPACE)
    loop = search(searcher, Stopping(5, regret=0.01), parallel=2)
    next(loop)
    before = searcher.times_asked
    loop.send([])
    assert searcher.times_asked == before


def test_search_driver_that_loses_or_invents_measurements_fails():
    with pytest.raises(UsageError, match="2 configurations have no measurement"):
        run(search(Counting(SPACE), Stopping(5), parallel=2), lambda configs: [])
    with pytest.raises(UsageError, match="report each started configuration once"):
        run(search(Counting(SPACE), Stopping(5)), lambda configs: measure([*configs, *configs]))
