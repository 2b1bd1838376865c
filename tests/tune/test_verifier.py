"""Verification of finalists: `tune/verifier.py`."""

import math
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats
from toy_kernel import DEVICE, FakeRunner, FlatRunner, MeteredRunner, Toy, config, time_ms

from foretune.collect.comparison import DEFAULT_REPEATED, Rounds
from foretune.collect.machine_load import MachineLoad
from foretune.errors import MeasurementError
from foretune.space import Configuration
from foretune.tune import verifier
from foretune.tune.job import TuningJob
from foretune.tune.results import Comparison
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.verifier import ERROR, LOOKS, Evidence, gather, measure_once, verify, while_busy

KERNEL = Toy()
PROBLEM = KERNEL.problem(n=100)
DEFAULT = KERNEL.default(PROBLEM)
BASE = "default"


@pytest.fixture(autouse=True)
def _all_processes(monkeypatch):
    monkeypatch.setattr(verifier, "LOOKS", LOOKS)


def verified(runner, *candidates, **options):
    cache = MeasurementCache.for_kernel(KERNEL, runner.device, store=False)
    return verify(TuningJob(KERNEL, runner, cache, **options), PROBLEM, candidates)


def test_verify_ratios_cancel_drift():
    outcome = verified(FakeRunner(), config(work=2))
    default, candidate, library = outcome.contenders
    assert len(outcome.evidence) == 5
    assert outcome.evidence.rounds == 100
    assert (default.name, candidate.name, library.name) == ("default", "candidate 1", "NumPy")
    assert candidate.ratio_low == pytest.approx(candidate.ratio_high)
    assert candidate.ratio == pytest.approx(
        time_ms(PROBLEM, DEFAULT) / time_ms(PROBLEM, config(work=2))
    )


def test_verify_default_alone_takes_one_process():
    outcome = verified(FakeRunner(), DEFAULT)
    assert [contender.name for contender in outcome.contenders] == ["default", "NumPy"]
    assert len(outcome.evidence) == 1


def test_verify_early_decision_fills_progress_bar():
    progress = Mock()
    verified(FakeRunner(), config(work=2), progress=progress)
    progress.start.assert_called_once_with("verifying", 12)
    assert progress.advance.call_count == 12


class ChangedRunner(FakeRunner):
    """Rounds that a function changes."""

    def __init__(self, change, **more):
        super().__init__(**more)
        self.change = change

    def compare_interleaved(self, kernel, problem, configs, max_seconds=0.5, seed=0):
        rounds = super().compare_interleaved(kernel, problem, configs, max_seconds, seed)
        times = {key: values.copy() for key, values in rounds.time_ms.items()}
        failures = {}
        self.change(times, failures)
        return Rounds(times, failures)


@pytest.mark.parametrize("key", [DEFAULT.id, DEFAULT_REPEATED])
def test_verify_wrong_default_raises(key):
    def change(times, failures):
        failures[key] = "relative error 2 is above 1"
        del times[key]

    with pytest.raises(MeasurementError, match=r"of toy does not run, gives wrong .* 2 is above 1"):
        verified(ChangedRunner(change), config())


@pytest.mark.parametrize("value", [np.inf, np.nan, 0.0, -1.0])
def test_verify_default_without_times_raises(value):
    def change(times, failures):
        times[DEFAULT.id][:] = value

    with pytest.raises(MeasurementError, match="configuration of toy does not run"):
        verified(ChangedRunner(change), config())


@pytest.mark.parametrize("value", [np.inf, 0.0, -1.0])
def test_verify_candidate_failing_in_one_round_does_not_win(value):
    processes = []

    def change(times, failures):
        processes.append(times)
        if len(processes) == 2:
            times[config().id][3] = value

    outcome = verified(ChangedRunner(change), config(), config(work=2))
    _, once_failed, sound, _ = outcome.contenders
    assert (once_failed.verdict, once_failed.value) == ("no_win", np.inf)
    assert once_failed.failure
    assert sound.wins


def test_verify_candidate_wrong_on_new_inputs_does_not_win():
    def change(times, failures):
        if config().id in times:
            failures[config().id] = "relative error 1 is above 0.1 on new inputs"
            del times[config().id]

    outcome = verified(ChangedRunner(change), config())
    candidate = outcome.contenders[1]
    assert candidate.verdict == "no_win"
    assert candidate.failure == "relative error 1 is above 0.1 on new inputs"
    assert len(outcome.evidence) == verifier.MIN_PROCESSES, "no candidate is left"


def test_verify_ignores_rounds_without_value():
    def change(times, failures):
        times[config().id][:17] = np.nan

    outcome = verified(ChangedRunner(change), config())
    assert outcome.contenders[1].wins


class FlakyRunner(FakeRunner):
    """A process with the fastest candidate dies."""

    def compare_interleaved(self, kernel, problem, configs, max_seconds=0.5, seed=0):
        if config() in configs:
            raise MeasurementError("it died")
        return super().compare_interleaved(kernel, problem, configs, max_seconds, seed)


def test_verify_candidate_that_ends_the_process_is_left_out():
    outcome = verified(FlakyRunner(), config(), config(work=2))
    _, dies, sound, _ = outcome.contenders
    assert (dies.failure, dies.verdict) == ("it died", "no_win")
    assert sound.wins


class Renewing(MeteredRunner):
    """Notes where a fresh process begins."""

    def renew(self):
        self.measured.append("fresh")


def test_measure_once_runs_each_configuration_in_random_order():
    runner = Renewing()
    listed = [DEFAULT, config(), config(work=2)]
    job = TuningJob(KERNEL, runner, MeasurementCache.for_kernel(KERNEL, DEVICE, store=False))
    orders = set()
    for seed in range(6):
        runner.measured.clear()
        runs = measure_once(job, PROBLEM, listed, seed)
        assert {key: m.config for key, m in runs.items()} == {
            **{c.id: c for c in listed},
            DEFAULT_REPEATED: DEFAULT,
        }
        fresh, *measured = runner.measured
        assert fresh == "fresh"
        assert len(measured) == 4
        orders.add(tuple(c for _, c in measured))
    assert len(orders) > 1


def sessions(ratios, noise, rng, rounds=30):
    """Return sessions whose launches are built with that relative noise."""

    def session(keys, seed):
        def times(ratio):
            build = ratio * np.exp(noise * rng.standard_normal())
            return build * rng.lognormal(0, 0.02, rounds)

        contenders = {BASE: 1.0, DEFAULT_REPEATED: 1.0} | {k: ratios[k] for k in keys}
        return Rounds({key: times(ratio) for key, ratio in contenders.items()})

    return session


def outcomes(ratios, noise, repeats, seed=0):
    rng = np.random.default_rng(seed)
    configs = {key: Configuration(x=i) for i, key in enumerate(ratios)}
    return [gather(sessions(ratios, noise, rng), BASE, configs, i) for i in range(repeats)]


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_gather_equal_candidates_win_at_most_one_percent(noise):
    found = outcomes(dict.fromkeys("abc", 1.0), noise, 300)
    assert sum(any(c.wins for c in compared) for _, compared in found) <= 300 * 0.01


def test_gather_finds_large_gain_early_and_small_gain():
    (easy, _), *_ = outcomes({"a": 0.5}, 0.005, 1)
    assert len(easy) == min(LOOKS)
    small = outcomes({"a": 0.97}, 0.003, 40)
    assert sum(compared[0].wins for _, compared in small) >= 38


def test_gather_leaves_out_losers():
    (evidence, (loser, winner)), *_ = outcomes({"a": 3.0, "b": 0.9}, 0.01, 1)
    assert (loser.verdict, winner.verdict) == ("slower", "win")
    assert loser.value == pytest.approx(3.0, rel=0.1)
    assert len(evidence) <= max(LOOKS)


def test_compare_uses_mean_of_both_defaults_and_student_interval():
    evidence = Evidence(BASE, DEFAULT_REPEATED)
    logs = np.array([0.1, 0.3, 0.2, 0.6])
    for log in logs:
        # 1.1 is the geometric mean of both defaults, 1.0 and 1.21.
        times = {BASE: 1.0, DEFAULT_REPEATED: 1.21, "a": 1.1 * np.exp(-log)}
        evidence.add(Rounds({key: np.full(5, ms) for key, ms in times.items()}))
    found = evidence.compare(BASE, "a", "a", None, 0.005)
    low, high = stats.t.interval(0.99, 3, logs.mean(), stats.sem(logs))
    assert np.log([found.ratio, found.ratio_low, found.ratio_high]) == pytest.approx(
        [logs.mean(), low, high]
    )


def test_gather_continues_until_best_candidate_wins():
    seeds = []

    def session(keys, seed):
        seeds.append(seed)
        sign = -1 if len(seeds) % 2 else 1
        times = {BASE: 1.0, DEFAULT_REPEATED: 1.0, "best": np.exp(sign * 0.15 - 0.3), "sure": 0.95}
        return Rounds({key: np.full(5, ms) for key, ms in times.items()})

    configs = {"best": Configuration(x=1), "sure": Configuration(x=2)}
    evidence, (best, sure) = gather(session, BASE, configs, 0)
    assert (best.verdict, sure.verdict, len(evidence)) == ("win", "win", sorted(LOOKS)[1])
    assert len(set(seeds)) == len(evidence)


def test_gather_interval_at_stopping_look_covers_truth():
    found = outcomes({"a": 0.99}, 0.01, 300)
    missed = sum(not c.ratio_low <= 1 / 0.99 <= c.ratio_high for _, (c,) in found)
    assert missed <= 300 * 4 * ERROR


def test_gather_candidates_and_looks_share_the_error():

    def session(keys, seed):
        rng = np.random.default_rng(seed)
        contenders = (BASE, DEFAULT_REPEATED, *keys)
        return Rounds({key: np.full(5, rng.lognormal(0, 0.01)) for key in contenders})

    def low(keys, share):
        configs = {key: Configuration(x=i) for i, key in enumerate(keys)}
        return gather(session, BASE, configs, 0, {5: share})[1][0].ratio_low

    assert low("abc", 1.0) == pytest.approx(low("a", 1 / 3))
    assert low("a", 1 / 3) < low("a", 1.0)


def test_compare_variance_is_at_least_that_of_equal_defaults():
    """The candidate's times agree in all processes, but the two defaults differ in each."""

    def session(keys, seed):
        sign = -1 if seed % 2 else 1
        times = {BASE: 1.0 + 0.05 * sign, DEFAULT_REPEATED: 1.0 - 0.05 * sign, "a": 0.99}
        return Rounds({key: np.full(5, ms) for key, ms in times.items()})

    _, (candidate,) = gather(session, BASE, {"a": Configuration(x=1)}, 0)
    assert candidate.verdict == "inconclusive"


class SlowSessions:
    """Sessions that take a second per launch, by a clock of their own."""

    def __init__(self, ratios):
        self.now = 0.0
        self.keys = []
        self._ratios = ratios
        self._rng = np.random.default_rng(0)

    def clock(self):
        return self.now

    def __call__(self, keys, seed):
        self.now += 2.0 + len(keys)
        self.keys.append(list(keys))
        ratios = {key: self._ratios[key] for key in keys}
        return sessions(ratios, 0.05, self._rng)(keys, seed)


def gather_slowly(ratios, seconds, **more):
    session = SlowSessions(ratios)
    configs = {key: Configuration(x=i) for i, key in enumerate(ratios)}
    evidence, compared = gather(
        session, BASE, configs, 0, seconds=seconds, clock=session.clock, **more
    )
    return session, evidence, compared


def test_gather_ends_when_budget_is_spent():
    # A process with one candidate takes 3 seconds: six end within 20 seconds.
    session, evidence, (candidate,) = gather_slowly({"a": 0.99}, seconds=20.0)
    assert len(evidence) == 6
    assert session.now <= 20.0
    assert candidate.verdict == "inconclusive"
    assert candidate.ratio_low < candidate.ratio < candidate.ratio_high


def test_gather_last_look_gets_error_that_is_left():
    """The look after five processes spent half of the error; six processes get the other half."""
    _, evidence, (candidate,) = gather_slowly({"a": 0.99}, seconds=20.0)
    expected = evidence.compare(BASE, "a", "a", None, ERROR * 0.5)
    assert candidate.ratio_low == pytest.approx(expected.ratio_low)


def test_gather_small_budget_keeps_most_promising_candidate():
    # With three candidates, a process takes 5 seconds, so 17 seconds are too few for five.
    session, evidence, _ = gather_slowly({"a": 1.2, "b": 0.9, "c": 1.1}, seconds=17.0)
    assert session.keys == [["a", "b", "c"], ["b"], ["b"], ["b"], ["b"]]
    assert len(evidence) == 5


def test_gather_expected_launch_time_limits_first_process():
    session, _, _ = gather_slowly({"a": 1.2, "b": 0.9}, seconds=15.0, launch_s=1.0)
    assert session.keys[0] == ["a"]


@pytest.mark.parametrize(("ratio", "processes"), [(0.99, 3), (0.5, 5)])
def test_gather_runs_a_few_processes_whatever_the_budget(ratio, processes):
    """A candidate that is expected to win at the next look gets those up to it."""
    _, evidence, (candidate,) = gather_slowly({"a": ratio}, seconds=0.0)
    assert len(evidence) == processes
    assert np.isfinite(candidate.ratio_low)


@pytest.mark.parametrize(("seconds", "processes"), [(7.4, 3), (7.6, 5), (20.0, 6)])
def test_gather_runs_five_processes_if_they_take_at_most_twice_the_budget(seconds, processes):
    # Five processes take 15 seconds.
    _, evidence, _ = gather_slowly({"a": 0.99}, seconds=seconds)
    assert len(evidence) == processes


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.005, 1.03, "win"),
        (1.001, 1.01, "no_win"),
        (1.001, 1.015, "inconclusive"),
        (0.995, 1.005, "no_win"),
        (0.5, 0.99, "slower"),
        (0.985, 0.9999, "no_win"),  # slower by less than 1 %
        (0.98, 1.005, "inconclusive"),
        (0.995, 1.02, "inconclusive"),
    ],
)
def test_comparison_verdict_follows_interval(low, high, verdict):
    assert Comparison("x", None, 1.0, math.sqrt(low * high), low, high).verdict == verdict


def test_verify_flat_space_has_no_winner():
    outcome = verified(FlatRunner(noise=0.002), config(), config(work=2))
    assert [c.verdict for c in outcome.contenders[1:]] == ["no_win", "no_win"]


@pytest.mark.parametrize(
    ("separate_ratios", "fails"),
    [
        ([1.0, 1.01, 0.99], True),  # the gain is gone
        ([1.9, 2.1, 2.0], False),
        ([0.8, 1.6, 1.3], False),  # too noisy to tell
        ([], False),  # this kernel cannot be forked
    ],
)
def test_evidence_gain_must_hold_in_separate_processes(separate_ratios, fails):
    evidence = Evidence("default", DEFAULT_REPEATED)
    for number in range(3):
        times = {"default": 2.0, DEFAULT_REPEATED: 2.0, "candidate": 1.0}
        separate = {}
        if separate_ratios:
            separate = times | {"candidate": 2.0 / separate_ratios[number]}
        evidence.add(
            Rounds(
                {key: np.array([ms]) for key, ms in times.items()},
                separate_ms={key: np.array([ms]) for key, ms in separate.items()},
            )
        )
    compared = evidence.compare("default", "candidate", "candidate", None, 0.01)
    assert compared.wins != fails
    assert ("in the same process" in compared.failure) == fails


BUSY = MachineLoad(slowdown="the container's share of the CPU was used up")
QUIET = MachineLoad()
WIN = Comparison("candidate 1", config(), 1.0, 2.0, 1.9, 2.1)


def used(default, candidate):
    """Return the evidence of contenders that use so many cores, and this share in other threads."""
    evidence = Evidence(BASE, DEFAULT_REPEATED)
    uses = {BASE: default, config().id: candidate}
    evidence.add(
        Rounds(
            {key: np.ones(5) for key in uses},
            cores={key: use[0] for key, use in uses.items()},
            other_threads={key: use[1] for key, use in uses.items()},
        )
    )
    return evidence


@pytest.mark.parametrize(
    ("default", "candidate"),
    [((1.9, 0.5), (1.0, 0.0)), ((1.2, 0.5), (1.0, 0.0)), ((1.0, 0.0), (0.4, 0.0))],
    ids=["two threads", "two threads that wait for a core", "it waits for a file"],
)
def test_while_busy_win_that_needs_less_of_the_machine_does_not_count(default, candidate):
    comparison = while_busy(WIN, used(default, candidate), BASE, BUSY)

    assert comparison.verdict == "inconclusive"
    assert not comparison.wins
    assert f"the default {default[0]:.1f} cores" in comparison.while_busy


@pytest.mark.parametrize(
    ("default", "candidate", "load"),
    [
        ((1.9, 0.5), (1.0, 0.0), QUIET),
        ((1.0, 0.0), (0.95, 0.0), BUSY),
        ((1.9, 0.5), (1.7, 0.48), BUSY),
        ((1.0, 0.0), (1.9, 0.5), BUSY),
        ((math.nan, math.nan), (math.nan, math.nan), BUSY),
    ],
    ids=["quiet", "both in one thread", "both in two threads", "more threads", "unknown"],
)
def test_while_busy_other_wins_count(default, candidate, load):
    assert while_busy(WIN, used(default, candidate), BASE, load).wins


def test_gather_does_not_measure_a_failed_candidate_again():
    asked = []

    def session(keys, seed):
        asked.append(list(keys))
        times = {key: np.array([1.0, 1.1]) for key in ("base", DEFAULT_REPEATED, "slow")}
        failures = {"wrong": "it is wrong"} if "wrong" in keys else {}
        return Rounds(times, failures)

    candidates = {"wrong": config(), "slow": config(work=2)}
    _, (wrong, slow) = verifier.gather(session, "base", candidates, 0)
    assert asked[0] == ["wrong", "slow"]
    assert all(keys == ["slow"] for keys in asked[1:])
    assert wrong.failure == "it is wrong"
    assert not slow.failure


def test_compare_with_another_contender_has_the_whole_noise():
    """A contender that was built once differs from another as two equals do."""
    evidence = Evidence(BASE, DEFAULT_REPEATED)
    for sign in (1, -1, 1, -1, 1):
        times = {BASE: 1.0 + 0.05 * sign, DEFAULT_REPEATED: 1.0 - 0.05 * sign, "a": 0.9, "b": 1.0}
        evidence.add(Rounds({key: np.full(5, ms) for key, ms in times.items()}))

    def width(base):
        compared = evidence.compare(base, "a", "a", None, 0.01)
        return np.log(compared.ratio_high / compared.ratio_low)

    assert width("b") == pytest.approx(width(BASE) / np.sqrt(verifier.NOISE_SHARE))


def test_evidence_separate_processes_that_agree_by_chance_refute_nothing():
    """Two equals differ by 30 % in processes of their own, so a lost gain says little there."""
    evidence = Evidence("default", DEFAULT_REPEATED)
    for sign in (1, -1, 1):
        times = {"default": 2.0, DEFAULT_REPEATED: 2.0, "candidate": 1.8}
        separate = {
            "default": 2.0 + 0.3 * sign,
            DEFAULT_REPEATED: 2.0 - 0.3 * sign,
            "candidate": 1.99,
        }
        evidence.add(
            Rounds(
                {key: np.array([ms]) for key, ms in times.items()},
                separate_ms={key: np.array([ms]) for key, ms in separate.items()},
            )
        )
    assert evidence.compare("default", "candidate", "candidate", None, 0.01).wins
