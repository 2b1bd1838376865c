"""Stored verifications: `tune/verification.py`, and when `tune_problem` reuses them."""

import dataclasses
import math
import re

import numpy as np
import pytest
from toy_kernel import DEVICE, FakeRunner, FlatRunner, Toy, config

from foretune.cli.campaign import show_results
from foretune.cli.output import Output
from foretune.collect.comparison import Rounds
from foretune.collect.machine_load import MachineLoad
from foretune.objective import ConstrainedObjective, Objective
from foretune.tune import tune_problem, verifier
from foretune.tune.results import Comparison, NoiseEstimate
from foretune.tune.store import Store
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.verification import StoredVerification
from foretune.values import short_number

KERNEL = Toy()
PROBLEM = KERNEL.problem(n=100)
DEFAULT = KERNEL.default(PROBLEM)
SIZE = len(KERNEL.space(PROBLEM))
TIME = ConstrainedObjective(Objective.TIME, ())

STORED = StoredVerification(
    contenders=(
        Comparison("default", DEFAULT, 2.0, 1.0, 1.0, 1.0),
        Comparison("candidate 1", config(), 1.0, 2.0, 1.9, 2.1),
        Comparison("candidate 2", config(work=2), np.inf, np.nan, np.nan, np.nan, "it died"),
        Comparison("NumPy", None, 1.5, 1.3, 1.2, 1.4),
    ),
    processes=5,
    rounds=100,
    noise=NoiseEstimate(again_low=0.99, again_high=math.nan, disturbed="a load"),
    default_breaks="",
    allowed_s=12.5,
)


class CountingRunner(FakeRunner):
    """Counts the comparisons, and may change their times."""

    def __init__(self, change=lambda times: None):
        super().__init__()
        self.comparisons = 0
        self.change = change

    def compare_interleaved(self, kernel, problem, configs, max_seconds=0.5, seed=0):
        self.comparisons += 1
        rounds = super().compare_interleaved(kernel, problem, configs, max_seconds, seed)
        times = {key: values.copy() for key, values in rounds.time_ms.items()}
        self.change(times)
        return Rounds(times, rounds.failures)


def tune(runner, budget=SIZE, **how):
    return tune_problem(KERNEL, PROBLEM, runner, budget=budget, searcher="exhaustive", **how)


def test_stored_verification_survives_record():
    again = StoredVerification.from_record(STORED.to_record())
    assert again.contenders == STORED.contenders
    assert again.noise == STORED.noise
    assert (again.processes, again.rounds, again.allowed_s) == (5, 100, 12.5)


@pytest.mark.parametrize("name", ["contenders", "failed", "noise", "processes", "allowed_s"])
@pytest.mark.parametrize("value", [[], "x", {}, [None]])
def test_stored_verification_damaged_record_is_none(name, value):
    record = STORED.to_record() | {name: value}
    assert StoredVerification.from_record(record) is None


@pytest.mark.parametrize(
    ("verdicts", "is_decided"),
    [
        (["win", "inconclusive"], True),
        (["no_win", "slower"], True),
        (["inconclusive"], False),
    ],
)
def test_stored_verification_is_decided_unless_inconclusive(verdicts, is_decided):
    interval = {
        "win": (1.5, 1.4, 1.6),
        "no_win": (1.0, 0.999, 1.001),
        "slower": (0.8, 0.7, 0.9),
        "inconclusive": (1.0, 0.5, 2.0),
    }
    candidates = [Comparison("candidate", config(), 1.0, *interval[v]) for v in verdicts]
    found = dataclasses.replace(STORED, contenders=(STORED.contenders[0], *candidates))
    assert found.is_decided == is_decided


def test_tune_problem_reuses_verification():
    first = tune(FakeRunner())
    runner = CountingRunner()
    second = tune(runner)
    assert runner.comparisons == 0
    assert second.contenders == first.contenders
    assert (second.processes, second.rounds) == (first.processes, first.rounds)
    assert first.reused_because == ""
    assert f"code ({KERNEL.source_hash[:8]}), device" in second.reused_because


def test_tune_problem_verifies_again_if_asked():
    tune(FakeRunner())
    runner = CountingRunner()
    result = tune(runner, verify_again=True)
    assert runner.comparisons == min(verifier.LOOKS)
    assert result.winner.config == config()


def test_tune_problem_verified_again_keeps_winner_against_near_rival():
    """The rival's measurement is as good, and in the new comparison it would be faster."""
    tune(FakeRunner())
    rival = config(order="ba")

    def favor_rival(times):
        if rival.id in times:
            times[rival.id] *= 0.5

    result = tune(CountingRunner(favor_rival), verify_again=True)
    assert result.winner.config == config()
    assert [c.config for c in result.candidates] == [config()]


def test_tune_problem_verified_again_replaces_refuted_winner():
    tune(FakeRunner())

    def slow_down(times):
        times[config().id] *= 100.0

    refuted = tune(CountingRunner(slow_down), verify_again=True)
    assert refuted.verdict == "no_win"
    assert "the earlier winner, work=1" in refuted.not_confirmed
    assert "is not confirmed" in refuted.not_confirmed
    again = CountingRunner()
    assert tune(again).winner.config == DEFAULT
    assert again.comparisons == 0


def test_tune_problem_verifies_new_measurements():
    tune(FakeRunner(), budget=5)
    runner = CountingRunner()
    tune(runner)
    assert runner.comparisons == min(verifier.LOOKS)


def test_tune_problem_inconclusive_verification_is_repeated_with_larger_budget_only():
    first = tune(FlatRunner(noise=0.5), verify_s=10.0)
    assert first.verdict == "inconclusive"

    for verify_s, comparisons in ((None, 0), (10.0, 0), (11.0, max(verifier.LOOKS))):
        runner = CountingRunner(lambda times: None)
        noisy = FlatRunner(noise=0.5)
        runner.compare_interleaved = counted(runner, noisy)
        tune(runner, verify_s=verify_s)
        assert runner.comparisons == comparisons


def counted(runner, other):
    def compare(*arguments):
        runner.comparisons += 1
        return other.compare_interleaved(*arguments)

    return compare


class OtherDefault(Toy):
    """The same code with another default."""

    source_hash = KERNEL.source_hash

    def default(self, problem):
        return config(work=8)


def test_tune_problem_verifies_against_new_default():
    tune(FakeRunner())
    runner = CountingRunner()
    result = tune_problem(OtherDefault(), PROBLEM, runner, budget=SIZE)
    assert runner.comparisons == min(verifier.LOOKS)
    assert result.baseline.config == config(work=8)


def test_tune_problem_damaged_verification_is_repeated():
    tune(FakeRunner())
    (subject,) = Store().subjects()
    choice = Store().choice(subject, PROBLEM)
    damaged = dataclasses.replace(choice, verification={"contenders": 3})
    MeasurementCache.for_kernel(KERNEL, DEVICE).choose(PROBLEM, TIME, damaged, replacing=choice)
    runner = CountingRunner()
    assert tune(runner).winner.config == config()
    assert runner.comparisons == min(verifier.LOOKS)


class Watch:
    """Observes a given load."""

    def __init__(self, load):
        self.load = load

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


BUSY = MachineLoad(slowdown="others were busy")
QUIET = MachineLoad()


class ThreadsRunner(CountingRunner):
    """All candidates run in one thread, the default in two, on a machine with a given load."""

    def __init__(self, load):
        super().__init__()
        self.load = load

    def watch(self):
        return Watch(self.load)

    def compare_interleaved(self, kernel, problem, configs, max_seconds=0.5, seed=0):
        rounds = super().compare_interleaved(kernel, problem, configs, max_seconds, seed)
        in_threads = {key: float(key == configs[0].id) for key in rounds.time_ms}
        return dataclasses.replace(
            rounds,
            cores={key: 1.0 + other for key, other in in_threads.items()},
            other_threads={key: other / 2 for key, other in in_threads.items()},
        )


@pytest.fixture
def _short_look(monkeypatch):
    monkeypatch.setattr("foretune.tune.tuner.OBSERVE_S", 0.0)


@pytest.mark.usefixtures("_short_look")
def test_tune_problem_win_while_busy_is_not_verified():
    result = tune(ThreadsRunner(BUSY))

    assert result.verdict == "inconclusive"
    assert result.winner.config == DEFAULT
    assert "a win on this busy machine, not verified" in result.headline
    assert "while others were busy" in result.headline
    store = MeasurementCache.for_kernel(KERNEL, DEVICE)
    assert store.choice(PROBLEM, TIME).how == "measured"


@pytest.mark.usefixtures("_short_look")
def test_table_shows_the_time_of_the_win_while_busy(capsys):
    result = tune(ThreadsRunner(BUSY))
    show_results(Output(as_json=False), [result])
    shown = capsys.readouterr().out
    assert "while busy" in shown
    times = [short_number(contender.value) for contender in (result.baseline, result.busy_win)]
    assert times[0] != times[1]
    assert re.search(r"\s+".join(map(re.escape, times)), shown)


@pytest.mark.usefixtures("_short_look")
def test_tune_problem_win_while_busy_is_verified_again_when_quiet():
    tune(ThreadsRunner(BUSY))

    still_busy = ThreadsRunner(BUSY)
    assert tune(still_busy).busy_win is not None
    assert still_busy.comparisons == 0

    quiet = ThreadsRunner(QUIET)
    assert tune(quiet).verified
    assert quiet.comparisons == min(verifier.LOOKS)


def test_tune_problem_headline_of_a_win_names_the_load():
    class BusyRunner(FakeRunner):
        def watch(self):
            return Watch(BUSY)

    result = tune(BusyRunner())

    assert result.verified
    assert "while others were busy" in result.headline


def test_tune_problem_winner_that_is_inconclusive_again_is_named():
    tune(FakeRunner())

    again = tune(FlatRunner(noise=0.5), verify_again=True)

    assert again.verdict == "inconclusive"
    assert "is not confirmed (inconclusive" in again.not_confirmed
    assert tune(CountingRunner()).not_confirmed == ""
