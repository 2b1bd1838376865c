"""Searching one problem, given what was measured of others."""

import math

import numpy as np

from foretune import Configuration, Device, Measurement, Objective, Problem, SearchSpace
from foretune.measurement import Status
from foretune.search.encoding import nearest_first
from foretune.search.searcher import Prior
from foretune.search.surrogate import SurrogateSearcher
from foretune.search.surrogate_model import FitCache
from foretune.space import ListedSpace

DEVICE = Device("NVIDIA H200", "gpu", specs={"cores": 132.0})
CONFIGS = [
    Configuration(BLOCK_M=m, BLOCK_N=n, num_warps=w)
    for m in (16, 32, 64, 128)
    for n in (32, 64, 128)
    for w in (2, 4, 8)
]


def time_of(size, config):
    """A valley whose bottom moves with the size."""
    wanted = math.log2(size) - 4
    off = (math.log2(config["BLOCK_M"]) - wanted) ** 2 + (math.log2(config["num_warps"]) - 2) ** 2
    return size**2 * 1e-5 * (1 + 0.2 * off + 0.05 * (math.log2(config["BLOCK_N"]) - 6) ** 2)


def run(size, config, status=Status.OK):
    time_ms = time_of(size, config) if status is Status.OK else math.nan
    return Measurement("k", Problem(M=size), config, DEVICE.name, status, time_ms)


def make(size, here=(), elsewhere=(), configs=CONFIGS, prior=None, **more):
    searcher = SurrogateSearcher(
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


def best_of(size):
    return min(time_of(size, c) for c in CONFIGS)


def choice(searcher):
    """The configuration that is expected to lose least."""
    return CONFIGS[int(searcher.search_posterior().expected_regrets.argmin())]


def test_experience_of_other_problems_predicts_this_one():
    elsewhere = some_runs((256, 512, 2048, 4096))
    assert make(1024).search_posterior() is None
    taught = make(1024, elsewhere=elsewhere)
    assert time_of(1024, choice(taught)) <= 1.25 * best_of(1024)
    assert time_of(1024, taught.ask()[0]) <= 1.25 * best_of(1024)


def test_experience_outside_the_space_counts():
    elsewhere = some_runs((256, 512, 2048, 4096))
    half = [c for c in CONFIGS if c["num_warps"] > 2]
    assert any(m.config not in half for m in elsewhere)
    taught = make(1024, elsewhere=elsewhere, configs=half)
    assert time_of(1024, taught.ask()[0]) <= 1.25 * best_of(1024)


def test_experience_corrects_a_prior():
    """The prior is the same everywhere, and asked about other problems, too."""

    def believed(measurements):
        asked.extend(measurements)
        return np.array([float(m.config["BLOCK_N"]) for m in measurements])

    asked = []
    log_mean = np.array([float(c["BLOCK_N"]) for c in CONFIGS])
    prior = Prior(log_mean, 0.5, np.ones(len(CONFIGS)), log_mean_of=believed)
    elsewhere = some_runs((256, 512, 2048, 4096))
    taught = make(1024, elsewhere=elsewhere, prior=prior)
    assert time_of(1024, taught.ask()[0]) < time_of(1024, make(1024, prior=prior).ask()[0])
    assert asked == nearest_first(elsewhere, Problem(M=1024))


def test_experience_with_a_prior_of_this_problem_only():
    log_mean = np.log([time_of(1024, c) for c in CONFIGS])
    prior = Prior(log_mean, 0.1, np.ones(len(CONFIGS)))
    taught = make(1024, elsewhere=some_runs((512, 2048)), prior=prior)
    assert time_of(1024, taught.ask()[0]) <= 1.25 * best_of(1024)


def test_experience_that_misleads_is_overruled_by_measurements():
    wrong = [
        Measurement("k", Problem(M=2048), c, DEVICE.name, Status.OK, 1 / time_of(1024, c))
        for c in CONFIGS
    ]
    searcher = make(1024, elsewhere=wrong)
    for _ in range(16):
        searcher.tell([run(1024, searcher.ask()[0])])
    assert time_of(1024, searcher.best()) <= 1.05 * best_of(1024)


def test_experience_of_failures_is_avoided():
    failing = [c for c in CONFIGS if c["BLOCK_M"] == 64]
    elsewhere = [run(512, c, Status.INVALID if c in failing else Status.OK) for c in CONFIGS]
    assert make(1024, elsewhere=elsewhere).ask()[0] not in failing


def test_experience_of_failures_alone_estimates_nothing():
    elsewhere = [run(512, c, Status.INVALID) for c in CONFIGS]
    searcher = make(1024, [run(1024, c, Status.INVALID) for c in CONFIGS], elsewhere)
    assert searcher.ask() == []
    assert searcher.expected_regret() == searcher.expected_improvement() == math.inf


def test_searches_share_their_fits():
    fits = FitCache()
    runs = some_runs((512, 2048))
    make(1024, elsewhere=runs, fits=fits).ask()
    (before,) = fits.fits.values()
    assert before.n_measured == len(runs)
    make(4096, elsewhere=runs, fits=fits).ask()
    assert next(iter(fits.fits.values())) is before


def test_neighbor_of_a_permutation_swaps_two():
    orders = [(a, b, c) for a in range(3) for b in range(3) for c in range(3) if len({a, b, c}) > 2]
    space = SearchSpace.from_configs(
        Configuration(first=a, second=b, third=c) for a, b, c in orders
    )
    searcher = SurrogateSearcher(space)
    searcher.tell_values({0: 1.0})
    near = searcher._neighbor_of_best(np.arange(len(space)) > 0)
    assert sum(space[near][n] != space[0][n] for n in space.names) == 2
