"""Searching one problem, given what was measured of others."""

import dataclasses
import math

import numpy as np

from foretune import Configuration, Device, Measurement, Objective, Problem, SearchSpace
from foretune.measurement import Status
from foretune.search.encoding import nearest_first
from foretune.search.multitask import (
    CHECKED_MEASUREMENTS,
    MIN_FIT,
    MIN_SIMILAR_PROBLEMS,
    ORDER_ONLY_IF_SIMILAR,
    ORDER_ONLY_MEASUREMENTS,
    TransferSearcher,
)
from foretune.search.searcher import Prior
from foretune.search.stopping import Stopping
from foretune.space import ListedSpace

DEVICE = Device("NVIDIA H200", "gpu", specs={"cores": 132.0})
CONFIGS = [
    Configuration(BLOCK_M=m, BLOCK_N=n, num_warps=w)
    for m in (16, 32, 64, 128) for n in (32, 64, 128) for w in (2, 4, 8)
]  # fmt: skip


def time_of(size, config):
    """A valley whose bottom moves with the size."""
    wanted = math.log2(size) - 4
    off = (math.log2(config["BLOCK_M"]) - wanted) ** 2 + (math.log2(config["num_warps"]) - 2) ** 2
    return size**2 * 1e-5 * (1 + 0.2 * off + 0.05 * (math.log2(config["BLOCK_N"]) - 6) ** 2)


def run(size, config, status=Status.OK):
    time_ms = time_of(size, config) if status is Status.OK else math.nan
    return Measurement("k", Problem(M=size), config, DEVICE.name, status, time_ms)


def make(size, here=(), elsewhere=(), configs=CONFIGS, prior=None, **more):
    searcher = TransferSearcher(
        ListedSpace(configs), Objective.TIME, 0, prior, Problem(M=size), DEVICE, elsewhere, **more
    )
    searcher.tell(here)
    return searcher


def some_runs(sizes, each=12):
    rng = np.random.default_rng(0)
    return [
        run(size, CONFIGS[i])
        for size in sizes
        for i in rng.choice(len(CONFIGS), each, replace=False)
    ]


def search(searcher, size, stopping):
    """Measure until it is over; return the measurements."""
    runs = []
    while not stopping.is_over(searcher, len(runs)) and (asked := searcher.ask()):
        runs.append(run(size, asked[0]))
        searcher.tell(runs[-1:])
    return runs


def best_of(size):
    return min(time_of(size, c) for c in CONFIGS)


def test_nothing_known_is_much_to_lose():
    searcher = make(1024)
    assert searcher.search_posterior.expected_regret > 0.2
    assert searcher.best() is None
    assert searcher.choice() in CONFIGS


def test_nothing_is_promised_of_a_kernel_that_was_hardly_measured():
    few = make(1024, [run(1024, c) for c in CONFIGS[: MIN_FIT - 1]])
    assert few.expected_regret() == few.expected_improvement() == math.inf
    enough = make(1024, [run(1024, c) for c in CONFIGS[:MIN_FIT]])
    assert enough.expected_regret() < math.inf


def test_the_better_a_kernel_is_known_the_less_is_checked():
    known = some_runs([64 * i for i in range(1, 2 * MIN_SIMILAR_PROBLEMS + 1)], each=2)
    prior = Prior(np.zeros(len(CONFIGS)), 0.5, np.ones(len(CONFIGS)), foreign=False)
    least = [
        make(1000, **what).min_measurements
        for what in ({}, {"elsewhere": known[:4]}, {"elsewhere": known}, {"prior": prior})
    ]
    assert least == [MIN_FIT, CHECKED_MEASUREMENTS, 0, 0]


def of_type(runs, dtype):
    """The same runs of problems that differ in three types."""
    words = dict.fromkeys(("a", "b", "c"), dtype)
    return [dataclasses.replace(m, problem=Problem({**m.problem, **words})) for m in runs]


def test_problems_of_other_types_are_no_experience():
    known = some_runs([64 * i for i in range(1, 2 * MIN_SIMILAR_PROBLEMS + 1)], each=2)
    others = of_type(known, "bf16")
    assert make(1000, elsewhere=known).min_measurements == 0
    assert make(1000, elsewhere=others).min_measurements == CHECKED_MEASUREMENTS


def ordered(spread=0.1):
    """A prior that is no mere estimate, and wrong."""
    return Prior(np.linspace(0.0, 1.0, len(CONFIGS)), spread, np.ones(len(CONFIGS)))


def test_a_good_order_is_followed_first():
    searcher = make(1024, prior=ordered())
    asked = search(searcher, 1024, Stopping(ORDER_ONLY_MEASUREMENTS))
    assert [m.config for m in asked] == CONFIGS[:ORDER_ONLY_MEASUREMENTS]
    assert searcher.expected_regret() < math.inf
    rough = search(make(1024, prior=ordered(0.5)), 1024, Stopping(ORDER_ONLY_MEASUREMENTS))
    assert [m.config for m in rough] != CONFIGS[:ORDER_ONLY_MEASUREMENTS]


def test_experience_replaces_an_order_only_where_it_chooses_better():
    runs = some_runs([64 * i for i in range(1, 2 * MIN_SIMILAR_PROBLEMS + 1)], each=6)
    learned = make(1000, elsewhere=runs, prior=ordered())
    assert time_of(1000, learned.choice()) < time_of(1000, CONFIGS[0])
    few = make(1000, elsewhere=runs[:12], prior=ordered())
    assert few.choice() == CONFIGS[0]
    far = make(1000, elsewhere=of_type(runs, "bf16"), prior=ordered())
    assert far.choice() == CONFIGS[0]
    assert (learned.min_measurements, far.min_measurements) == (
        ORDER_ONLY_IF_SIMILAR,
        ORDER_ONLY_MEASUREMENTS,
    )


def test_the_more_is_measured_the_less_there_is_to_lose():
    searcher, regrets = make(1024), []
    for _ in range(20):
        regrets.append(searcher.search_posterior.expected_regret)
        searcher.tell([run(1024, searcher.ask()[0])])
    assert min(regrets[15:]) < 0.2 * regrets[0]
    assert time_of(1024, searcher.choice()) <= 1.05 * best_of(1024)


def test_it_stops_when_there_is_little_to_lose():
    searcher = make(1024)
    runs = search(searcher, 1024, Stopping(regret=0.03))
    assert MIN_FIT <= len(runs) < len(CONFIGS)
    assert time_of(1024, searcher.best()) <= 1.1 * best_of(1024)


def test_other_problems_teach():
    taught = make(1024, elsewhere=some_runs((256, 512, 2048, 4096)))
    assert time_of(1024, taught.choice()) <= 1.25 * best_of(1024)
    assert taught.search_posterior.expected_regret < make(1024).search_posterior.expected_regret


def test_they_teach_what_a_prior_got_wrong():
    """The prior is the same everywhere, and asked about other problems, too."""

    def believed(measurements):
        asked.extend(measurements)
        return np.array([float(m.config["BLOCK_N"]) for m in measurements])

    asked = []
    log_mean = np.array([float(c["BLOCK_N"]) for c in CONFIGS])
    prior = Prior(log_mean, 0.5, np.ones(len(CONFIGS)), log_mean_of=believed)
    elsewhere = some_runs((256, 512, 2048, 4096))
    taught = make(1024, elsewhere=elsewhere, prior=prior)
    assert time_of(1024, taught.choice()) < time_of(1024, make(1024, prior=prior).choice())
    assert asked == nearest_first(elsewhere, Problem(M=1024))


def test_a_prior_that_nobody_can_ask_elsewhere_still_serves():
    log_mean = np.log([time_of(1024, c) for c in CONFIGS])
    prior = Prior(log_mean, 0.1, np.ones(len(CONFIGS)))
    taught = make(1024, elsewhere=some_runs((512, 2048)), prior=prior)
    assert time_of(1024, taught.choice()) <= 1.25 * best_of(1024)


def test_all_measured_is_nothing_to_lose():
    searcher = make(1024, [run(1024, c) for c in CONFIGS])
    assert searcher.expected_regret() < 0.02
    assert searcher.expected_improvement() == 0.0
    assert searcher.ask() == []


def test_failures_are_avoided_and_never_chosen():
    failing = [c for c in CONFIGS if c["BLOCK_M"] == 64]
    elsewhere = [run(512, c, Status.INVALID) for c in failing[:5]]
    elsewhere += [run(512, c) for c in CONFIGS[:6]]
    searcher = make(1024, [run(1024, c, Status.INVALID) for c in failing[:5]], elsewhere)
    assert searcher.choice() not in failing[:5]
    assert np.isposinf(
        searcher.search_posterior.expected_regrets[[CONFIGS.index(c) for c in failing[:5]]]
    ).all()


def test_what_failed_elsewhere_is_less_likely_to_run():
    failing = CONFIGS[:5]
    searcher = make(1024, elsewhere=[run(512, c, Status.INVALID) for c in failing])
    p_valid = searcher.search_posterior.p_valid
    assert p_valid[:5].max() < p_valid[5:].min() == 1.0


def test_nothing_runs():
    searcher = make(1024, [run(1024, c, Status.INVALID) for c in CONFIGS])
    assert searcher.ask() == []
    assert searcher.expected_regret() == searcher.expected_improvement() == math.inf


def test_it_is_deterministic():
    runs = [run(size, c) for size in (512, 2048) for c in CONFIGS[::3]]
    one, other = make(1024, elsewhere=runs), make(1024, elsewhere=runs)
    assert np.array_equal(
        one.search_posterior.expected_regrets, other.search_posterior.expected_regrets
    )
    assert one.choice() == other.choice()


def test_one_knob_without_variation_and_one_configuration():
    assert make(64, configs=[Configuration(BLOCK=64)]).choice() == Configuration(BLOCK=64)


def test_searches_of_a_kernel_share_what_they_fitted():
    fits, runs = {}, some_runs((512, 2048))
    assert make(1024, elsewhere=runs, fits=fits).search_posterior.expected_regret > 0
    (before,) = fits.values()
    assert before[0] == len(runs)
    _ = make(4096, elsewhere=runs, fits=fits).search_posterior
    assert next(iter(fits.values())) is before


def test_of_a_large_space_only_some_are_looked_at():
    space = SearchSpace({name: list(range(1, 31)) for name in "abc"})
    runs = [
        Measurement("k", Problem(M=64), space[i], "d", Status.OK, 1.0 + space[i]["a"])
        for i in range(0, len(space), 900)
    ]
    searcher = TransferSearcher(space, problem=Problem(M=64))
    searcher.tell(runs)
    numbers = searcher.search_posterior.indices
    assert len(numbers) < len(space) / 5
    assert {space.index(m.config) for m in runs} <= set(numbers.tolist())
    assert space.index(Configuration(a=1, b=1, c=7)) in numbers  # like the best
