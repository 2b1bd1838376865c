"""Foretune's strategy in Kernel Tuner: budgets, seeds, failures, both directions, its C backend."""

import numpy as np
import pytest

pytest.importorskip("kernel_tuner")

from doors import simulate, write_cache
from kernel_tuner import tune_kernel
from toy_space import space_runs

from foretune.errors import UsageError
from foretune.search.factory import make_searcher
from foretune.search.replay.recorded import recorded_spaces
from foretune.tune.doors.kernel_tuner import KernelTunerStrategy

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of block sizes
WORK = """
extern "C" float work(int n) {
    return block;
}
"""
"""Says that it takes as many milliseconds as its knob."""


@pytest.fixture(scope="module")
def recorded():
    (space,) = recorded_spaces(space_runs(), "toy")
    return space


@pytest.fixture(scope="module")
def cache(recorded, tmp_path_factory):
    path = tmp_path_factory.mktemp("cache") / "toy.json"
    write_cache(recorded, path)
    return path


def configs(recorded, results):
    return [[r[name] for name in recorded.space.names] for r in results]


def test_strategy_measures_proposals_of_the_searcher(recorded, cache):
    searcher = make_searcher("surrogate", recorded.space, seed=3)
    expected = []
    for _ in range(30):
        (config,) = searcher.ask()
        expected.append(list(config.values()))
        searcher.tell([recorded.measurements[recorded.space.index(config)]])
    results = simulate(recorded, cache, KernelTunerStrategy(), 3, 30)
    assert configs(recorded, results) == expected
    assert any("__error__" in r for r in results)


def test_strategy_repeats_with_a_seed_and_starts_at_x0(recorded, cache):
    first = list(recorded.space[7].values())
    strategy = KernelTunerStrategy("random")
    runs = [
        configs(recorded, simulate(recorded, cache, strategy, s, 8, x0=first)) for s in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] == runs[2][0] == first


def test_strategy_counts_failures_and_ends_with_the_space(recorded, cache):
    results = simulate(recorded, cache, KernelTunerStrategy("random"), 0, 10**6)
    assert len(results) == len(recorded)
    assert sum("__error__" in r for r in results) == 3


def tuned(parameters, **options):
    return tune_kernel(
        "work", WORK, 1, [np.int32(1)], parameters, lang="C", iterations=1, quiet=True, **options
    )


def test_strategy_with_the_c_backend():
    results, env = tuned({"block": [5, 3, 1, 2]}, strategy=KernelTunerStrategy())
    assert len(results) == 4
    assert env["best_config"]["block"] == 1


def test_strategy_maximizes():
    results, env = tuned(
        {"block": list(range(4, 44))},
        objective="rate",
        objective_higher_is_better=True,
        metrics={"rate": "1000 / abs(block - 30.5)"},
        strategy=KernelTunerStrategy(),
        strategy_options={"max_fevals": 15},
    )
    assert len(results) == 15
    assert env["best_config"]["block"] in (30, 31)


def test_strategy_several_objectives_are_an_error():
    with pytest.raises(UsageError, match="one objective"):
        tuned(
            {"block": [1, 2]},
            objective=["time", "block"],
            objective_higher_is_better=[False, False],
            strategy=KernelTunerStrategy(),
        )


@pytest.mark.parametrize("moved", ["strategies.common.CostFunc", "util.StopCriterionReached"])
def test_strategy_other_version_is_an_error(monkeypatch, moved):
    monkeypatch.delattr(f"kernel_tuner.{moved}")
    with pytest.raises(UsageError, match=r"needs Kernel Tuner 1\.5\.0"):
        tuned({"block": [1, 2]}, strategy=KernelTunerStrategy())
