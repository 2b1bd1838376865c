"""Searching a list in the order of a prior, corrected by earlier runs of the kernel."""

import dataclasses
import math

import numpy as np
import pytest

from foretune import Configuration, Device, Measurement, Objective, Problem
from foretune.measurement import Status
from foretune.search.ordered import (
    FIRST_MEASUREMENTS,
    KNOWN_PROBLEMS,
    LATER_MEASUREMENTS,
    OrderedSearcher,
)
from foretune.search.searcher import Prior
from foretune.search.stopping import Stopping
from foretune.space import ListedSpace

DEVICE = Device("NVIDIA H200", "gpu", specs={"cores": 132.0})
CONFIGS = [
    Configuration(BLOCK_M=m, BLOCK_N=n, num_warps=w)
    for m in (16, 32, 64, 128)
    for n in (32, 64, 128)
    for w in (2, 4, 8)
]


def log_time(size, config):
    """A valley whose bottom moves with the size."""
    off = (math.log2(config["BLOCK_M"]) - math.log2(size) + 4) ** 2
    off += (math.log2(config["num_warps"]) - 2) ** 2
    return 2 * math.log(size) + 0.3 * off + 0.1 * (math.log2(config["BLOCK_N"]) - 6) ** 2


def run(size, config, status=Status.OK):
    time_ms = math.exp(log_time(size, config)) if status is Status.OK else math.nan
    return Measurement("k", Problem(M=size), config, DEVICE.name, status, time_ms)


def true_order(size, noise=0.0, seed=0):
    """A prior that knows the valley up to noise."""
    rng = np.random.default_rng(seed)
    means = np.array([log_time(size, c) for c in CONFIGS]) + noise * rng.standard_normal(
        len(CONFIGS)
    )
    return Prior(
        means,
        0.1,
        np.ones(len(CONFIGS)),
        log_mean_of=lambda ms: np.array([log_time(m.problem["M"], m.config) for m in ms]),
    )


def blind_order(spread=0.1):
    """A prior that knows nothing but follows the list."""
    rising = np.linspace(0.0, 0.1, len(CONFIGS))
    return Prior(rising, spread, np.ones(len(CONFIGS)), log_mean_of=lambda ms: np.zeros(len(ms)))


def make(size, elsewhere=(), prior=None, configs=CONFIGS):
    return OrderedSearcher(
        ListedSpace(configs), Objective.TIME, 0, prior, Problem(M=size), DEVICE, elsewhere
    )


def search(searcher, size, stopping):
    runs = []
    while stopping.reason(searcher, len(runs)) is None and (asked := searcher.ask()):
        runs.append(run(size, asked[0]))
        searcher.tell(runs[-1:])
    return runs


def tuned(sizes, each=4):
    """Runs of other problems: the configurations that are best there, and some random ones."""
    found = []
    for size in sizes:
        rng = np.random.default_rng(size)
        some = rng.choice(len(CONFIGS), each, replace=False)
        found += [run(size, CONFIGS[i]) for i in some]
    return found


def lost(size, runs):
    best = min(log_time(size, c) for c in CONFIGS)
    return math.expm1(min(log_time(size, m.config) for m in runs) - best)


def test_ordered_search_starts_in_the_order_of_its_prior():
    prior = true_order(1024, noise=0.3)
    runs = search(make(1024, prior=prior), 1024, Stopping(2))
    assert [m.config for m in runs] == [CONFIGS[i] for i in np.argsort(prior.log_mean)[:2]]


def test_ordered_search_does_not_follow_ties_of_a_rough_rule():
    def second(ranks):
        rule = dataclasses.replace(blind_order(), log_mean=np.zeros(len(CONFIGS)), ranks=ranks)
        return search(make(1024, prior=rule), 1024, Stopping(2))[1].config

    assert second(True) == CONFIGS[1]  # the next of the list
    assert second(False)["BLOCK_M"] == 128  # far from the first


def test_ordered_search_with_right_prior_stops_early():
    searcher = make(1024, prior=true_order(1024))
    runs = search(searcher, 1024, Stopping(regret=0.03))
    assert len(runs) < 8
    assert lost(1024, runs) == 0


def test_ordered_search_observed_errors_scale_its_spread():
    def spread(prior):
        searcher = make(1024, prior=prior)
        searcher.tell([run(1024, config) for config in CONFIGS[::3]])
        return searcher.search_posterior.posterior.scale

    right = true_order(1024)
    assert spread(right) < right.log_spread
    assert spread(Prior(-right.log_mean, 0.1, right.p_valid)) > 2 * right.log_spread


def test_ordered_search_few_degrees_of_freedom_promise_less():
    def promised(freedom):
        prior = dataclasses.replace(true_order(1024, noise=0.3), error_freedom=freedom)
        searcher = make(1024, prior=prior)
        search(searcher, 1024, Stopping(FIRST_MEASUREMENTS))
        return searcher.expected_regret()

    assert promised(2.5) > promised(100.0)


def with_orders(**orders):
    """A prior that is the mean of several orders; a run stores what each said of it."""
    log_mean = np.mean(list(orders.values()), axis=0)

    def orders_of(measurements):
        rows = [CONFIGS.index(m.config) for m in measurements]
        return {name: order[rows] for name, order in orders.items()}

    return Prior(log_mean, 0.1, np.ones(len(CONFIGS)), orders=orders, orders_of=orders_of)


def test_ordered_search_orders_take_turns():
    forwards = np.linspace(0.0, 1.0, len(CONFIGS))
    middle = np.abs(forwards - 0.5)
    prior = with_orders(first=forwards, last=forwards[::-1], middle=middle)

    runs = search(make(1024, prior=prior), 1024, Stopping(3))

    assert [m.config for m in runs] == [CONFIGS[0], CONFIGS[-1], CONFIGS[int(middle.argmin())]]


@pytest.mark.parametrize(("wrong_problems", "has_turn"), [(1, True), (2, False)])
def test_ordered_search_order_that_was_wrong_twice_loses_its_turn(wrong_problems, has_turn):
    right = np.array([log_time(1024, config) for config in CONFIGS])
    prior = with_orders(wrong=-right, right=right)
    known = []
    for size in [1000, 1010][:wrong_problems]:
        known += [run(size, CONFIGS[i]) for i in (int(right.argmin()), int(right.argmax()))]

    first = make(1024, known, prior).ask(1)

    expected = right.argmax() if has_turn else right.argmin()
    assert first == [CONFIGS[int(expected)]]


def test_ordered_search_order_whose_favorite_failed_was_wrong():
    right = np.array([log_time(1024, config) for config in CONFIGS])
    prior = with_orders(wrong=-right, right=right)
    slowest = CONFIGS[int(right.argmax())]
    known = []
    for size in (1000, 1010):
        known += [run(size, slowest, Status.RUNTIME_ERROR), run(size, CONFIGS[20])]

    assert make(1024, known, prior).ask(1) == [CONFIGS[int(right.argmin())]]


def test_ordered_search_learns_from_other_problems():
    known = tuned([2**i * j for i in (7, 8, 9, 10, 11) for j in (2, 3)])
    cold = search(make(1024, prior=blind_order()), 1024, Stopping(4))
    learned = search(make(1024, known, blind_order()), 1024, Stopping(4))
    assert lost(1024, learned) < 0.5 * lost(1024, cold)


def test_ordered_search_keeps_a_prior_that_other_problems_confirm():
    known = tuned([2**i * j for i in (7, 8, 9, 10, 11) for j in (2, 3)])
    asked = make(1024, known, true_order(1024)).ask(4)
    assert asked == make(1024, prior=true_order(1024)).ask(4)


def test_ordered_search_without_prior_starts_with_first_of_list():
    kept = []
    for size in (256, 1024, 2048):
        runs = search(make(size), size, Stopping(regret=0.03))
        assert len(runs) < len(CONFIGS)
        assert runs[0].config == CONFIGS[0]  # the author's default
        kept.append(lost(size, runs))
    assert max(kept) < 0.05


def test_min_measurements_shrinks_with_known_problems():
    known = tuned([64 * i for i in range(1, KNOWN_PROBLEMS + 1)])
    assert make(1000, prior=blind_order()).min_measurements == FIRST_MEASUREMENTS
    assert make(1000, known[:8], blind_order()).min_measurements == FIRST_MEASUREMENTS
    assert make(1000, known, blind_order()).min_measurements == LATER_MEASUREMENTS
    failed = [run(64 * KNOWN_PROBLEMS, c, Status.COMPILE_ERROR) for c in CONFIGS]
    for size, some in ((64, known), (1000, [*known[:-4], *failed])):  # its own, and what never ran
        assert make(size, some, blind_order()).min_measurements == FIRST_MEASUREMENTS
    own = Prior(np.zeros(len(CONFIGS)), 0.1, np.ones(len(CONFIGS)), foreign=False)
    assert make(1000, prior=own).min_measurements == 0


def test_ordered_search_ignores_runs_without_value():
    known = tuned([64 * i for i in range(1, KNOWN_PROBLEMS + 1)])
    searcher = OrderedSearcher(
        ListedSpace(CONFIGS), Objective.ENERGY, 0, blind_order(), Problem(M=1000), DEVICE, known
    )
    assert searcher.min_measurements == FIRST_MEASUREMENTS
    searcher.tell([run(1000, c) for c in CONFIGS[:FIRST_MEASUREMENTS]])
    assert searcher.expected_regret() == math.inf
    assert searcher.search_posterior.p_valid.min() == 1.0


def test_ordered_search_ignores_problems_of_other_types():
    other = Problem(M=1024, x="fp16", y="fp16")
    known = [dataclasses.replace(m, problem=other) for m in tuned([1024], each=20)]
    here = OrderedSearcher(
        ListedSpace(CONFIGS),
        Objective.TIME,
        0,
        blind_order(),
        Problem(M=1024, x="i8", y="i8"),
        DEVICE,
        known,
    )
    assert here.ask(4) == make(1024, prior=blind_order()).ask(4)


def test_expected_regret_is_infinite_below_min_measurements():
    searcher = make(1024, prior=true_order(1024))
    assert searcher.expected_regret() == searcher.expected_improvement() == math.inf
    searcher.tell([run(1024, c) for c in CONFIGS[:FIRST_MEASUREMENTS]])
    assert searcher.expected_regret() < math.inf


def test_expected_regret_is_about_the_loss():
    promised = []
    losses = []
    for seed in range(20):
        size = 256 + 64 * seed
        searcher = make(size, prior=true_order(size, noise=0.1, seed=seed))
        losses.append(lost(size, search(searcher, size, Stopping(regret=0.03))))
        promised.append(searcher.expected_regret())
    assert np.mean(losses) < 1.5 * np.mean(promised)


def test_ordered_search_measures_late_what_failed_elsewhere():
    failed = [run(512 * i, CONFIGS[0], Status.COMPILE_ERROR) for i in (1, 3)]
    prior = blind_order()
    assert make(1024, prior=prior).ask() == CONFIGS[:1]
    assert make(1024, failed, prior).ask() != CONFIGS[:1]


def test_ordered_search_never_chooses_a_failure():
    searcher = make(1024, prior=blind_order())
    searcher.tell([run(1024, CONFIGS[0], Status.RUNTIME_ERROR)])
    assert searcher.best() is None
    assert searcher.choice() != CONFIGS[0]


@pytest.mark.parametrize("prior", [None, blind_order()])
def test_ordered_search_measures_the_last_if_all_others_failed(prior):
    searcher = make(1024, prior=prior)
    searcher.tell([run(1024, c, Status.WRONG_RESULT) for c in CONFIGS[1:]])
    assert Stopping(regret=0.03).reason(searcher, len(CONFIGS) - 1) is None
    assert searcher.ask() == CONFIGS[:1]


@pytest.mark.parametrize("prior", [None, blind_order()])
def test_ordered_search_of_one_or_two_configurations(prior):
    one = [Configuration(num_warps=4)]
    short = None if prior is None else Prior(np.zeros(1), 0.1, np.ones(1))
    assert make(64, prior=short, configs=one).ask(3) == one
    two = [Configuration(num_warps=w) for w in (4, 8)]
    short = None if prior is None else Prior(np.zeros(2), 0.1, np.ones(2))
    assert make(64, prior=short, configs=two).ask(3) == two
