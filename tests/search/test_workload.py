"""One budget over many problems."""

import math

import numpy as np
import pytest

from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.search.loop import run, search
from foretune.search.stopping import Stopping
from foretune.search.workload import WorkloadProblem, WorkloadSearcher
from foretune.space import Configuration, SearchSpace

SPACE = SearchSpace({"tile": (8, 16, 32, 64, 128), "warps": (1, 2, 4, 8)})
DEFAULT = Configuration(tile=8, warps=1)


def time_ms(size, config):
    """Return a time that is least at a tile of a sixteenth of the size, and four warps."""
    off = abs(math.log2(config["tile"] / (size / 16))) + abs(math.log2(config["warps"] / 4))
    return size / 1000 * (1 + 0.5 * off)


def part(size, calls, kernel="toy", default=DEFAULT):
    return WorkloadProblem(kernel, Problem(n=size), SPACE, calls, size, default)


def measure(items, slower=1.0):
    for item, config in items:
        time = slower * time_ms(item.problem["n"], config)
        yield Measurement(item.kernel, item.problem, config, "Toy CPU", Status.OK, time_ms=time)


def spend(workload, budget, parallel=1):
    """Return how often each part was measured."""
    spent = [0] * len(workload.parts)

    def count(items):
        for item, _ in items:
            spent[workload.parts.index(item)] += 1
        return measure(items)

    run(search(workload, Stopping(budget), parallel=parallel), count)
    return spent


def total(workload):
    return sum(
        p.calls * time_ms(p.problem["n"], workload.choice(i)) for i, p in enumerate(workload.parts)
    )


def test_workload_measures_frequent_problems_more():
    workload = WorkloadSearcher(
        [part(256, 1.0), part(512, 1000.0), part(1024, 1.0), part(2048, 1.0)]
    )
    spent = spend(workload, 12)
    assert sum(spent) == 12
    assert spent[1] == max(spent)
    assert spent[1] >= 6


def test_workload_gains_more_than_equal_shares():
    sizes = 2 ** np.arange(7, 12)
    parts = [part(int(n), 1000.0 if n == 512 else 1.0) for n in sizes]
    workload = WorkloadSearcher(parts)
    spend(workload, 10)
    alike = WorkloadSearcher([part(int(n), 1.0) for n in sizes])
    spend(alike, 10)
    alike.parts = parts
    best = sum(p.calls * min(time_ms(p.problem["n"], c) for c in SPACE) for p in parts)
    assert total(workload) <= total(alike)
    assert total(workload) < 1.1 * best


def test_workload_measures_everything_once():
    workload = WorkloadSearcher([part(256, 1.0), part(512, 3.0)])
    assert spend(workload, 100) == [len(SPACE), len(SPACE)]
    assert workload.ask() == []
    for i, p in enumerate(workload.parts):
        assert workload.choice(i) == min(SPACE, key=lambda c, p=p: time_ms(p.problem["n"], c))


def test_workload_starts_with_the_default():
    workload = WorkloadSearcher([part(256, 1.0), part(512, 3.0)])
    assert workload.choice(0) == DEFAULT
    assert workload.ask() == [(workload.parts[1], DEFAULT)]


def test_workload_kernels_do_not_inform_each_other():
    def loss(*others):
        workload = WorkloadSearcher([part(256, 1.0), part(512, 1.0), *others])
        for number, item in enumerate(workload.parts):
            if number != 1:
                workload.tell(measure([(item, DEFAULT)], slower=1.0 if number == 0 else 99.0))
        assert {m.kernel for m in workload.searcher(1).other_measurements} == {"toy"}
        return workload.expected_loss_ms(1)

    assert loss(part(512, 1.0, "other"), part(1024, 1.0, "other")) == loss()


def test_workload_default_outside_the_space_is_chosen_but_not_measured():
    outside = Configuration(tile=7, warps=1)
    workload = WorkloadSearcher([part(256, 1.0, default=outside), part(512, 1.0, default=outside)])
    ((item, config),) = workload.ask()
    assert config in SPACE
    workload.tell(measure([(item, config)]))
    (unmeasured,) = (i for i, p in enumerate(workload.parts) if p is not item)
    assert workload.choice(unmeasured) == outside


def test_workload_batch_is_shared_among_problems():
    workload = WorkloadSearcher([part(256, 4.0), part(512, 2.5), part(1024, 1.0)])
    asked = workload.ask(6)
    assert len(set(asked)) == 6
    assert {item.problem["n"] for item, _ in asked} == {256, 512, 1024}
    assert spend(workload, 10, parallel=4) != [10, 0, 0]
    assert sum(map(len, workload.measured)) == 10


@pytest.mark.parametrize("calls", [0.0, -1.0, math.nan, math.inf])
def test_workload_problem_needs_positive_calls(calls):
    with pytest.raises(UsageError, match="calls of toy, n=256"):
        part(256, calls)
