"""The judge: what is right and fast is accepted; what only looks so is refused, and why is said."""

import copy
import dataclasses
import json
import math
import re
from functools import partial
from pathlib import Path

import cheats
import numpy as np
import pytest
from fake_clock import FakeClock
from judged import SameProcess

from foretune.cli import main
from foretune.collect.isolated_implementation import (
    CallOutputs,
    IsolatedImplementation,
    Output,
    Timed,
)
from foretune.collect.machine_load import LoadMonitor
from foretune.collect.wrapped.output_comparison import SHIFTED
from foretune.collect.wrapped.special_values import KINDS_OF_SPECIAL_VALUES, TINY
from foretune.device import Device
from foretune.errors import MeasurementError, UsageError
from foretune.problem import Problem
from foretune.tune import judge as module
from foretune.tune.judge import CandidateRejected, JudgeBenchmark
from foretune.tune.judged_outputs import rounding_shift
from foretune.tune.results import Comparison, NoiseEstimate
from foretune.tune.verdict import ProblemVerdict, Verdict

CHEATS = Path(cheats.__file__)
PROBLEMS = [{"n": 64}, {"n": 48}]
PROBLEM = Problem(PROBLEMS[0])
LOOKS, CLOCK_NOISE_MS = module.LOOKS, module.CLOCK_NOISE_MS


@pytest.fixture(autouse=True)
def _any_load(monkeypatch):
    """Few processes, short bursts; a busy machine makes no honest process look like a liar."""
    monkeypatch.setattr(module, "LOOKS", {2: 1.0})
    monkeypatch.setattr(module, "BURST_S", 0.002)
    monkeypatch.setattr(module, "CLOCK_NOISE_MS", 5.0)


@pytest.fixture
def in_process(monkeypatch):
    """Judge in this process: what is judged attacks no other one."""
    monkeypatch.setattr(module, "WorkerProcess", SameProcess)


def judge(candidate, **options):
    given = {"inputs": "cheats:inputs", "reference": "cheats:reference", "problems": PROBLEMS}
    return module.judge(f"cheats:{candidate}", session_s=0.02, **{**given, **options})


@pytest.mark.usefixtures("in_process")
def test_judge_accepts_correct_candidate():
    verdict = judge("honest", rivals={"sleeper": "cheats:slower"})
    assert verdict.accepted
    assert verdict.refused == ""
    assert [r.problem for r in verdict.problem_verdicts] == PROBLEMS
    for ruling in verdict.problem_verdicts:
        assert {c.name for c in ruling.against} == {"reference", "sleeper"}
        assert ruling.time_ms.keys() == {"candidate", "reference", "sleeper"}
        assert ruling.rounds >= module.MIN_ROUNDS * ruling.processes
        assert ruling.relative_error <= 1e-12
        assert ruling.candidate.ratio_low <= ruling.candidate.ratio <= ruling.candidate.ratio_high
    low, high = verdict.interval
    assert low <= verdict.speedup <= high
    assert json.dumps(verdict.to_dict())


@pytest.mark.parametrize(
    ("cheat", "why"),
    [
        ("remembers_the_shape", "wrong: relative error"),
        ("remembers_the_address", "wrong: relative error"),
        ("remembers_after_the_check", "wrong: relative error"),
        (
            "knows_one_shape",
            "wrong: relative error .* is above 0.0001: the output.* instead of .*, on n=48",
        ),
        ("fills_in_later", "wrong: relative error"),
        ("is_lazy", "it gives cheats.Lazy of float64 instead of numpy.ndarray of float64"),
        ("is_forged", "it gives what calls itself numpy.ndarray of float64 instead of numpy.nda"),
        ("is_narrow", "numpy.ndarray of float32 instead of numpy.ndarray of float64"),
        ("is_rough", "wrong: relative error"),
        ("changes_its_input", "it changes its argument 0, which the reference does not change"),
        ("gives_too_much", "it gives tuple instead of numpy.ndarray of float64"),
        ("has_another_shape", r"it gives shape \(64, 1\) instead of \(64,\)"),
        ("raises", "ValueError: no such tile"),
    ],
)
@pytest.mark.usefixtures("in_process")
def test_judge_refuses_candidate_that_only_looks_correct(cheat, why):
    assert_refused(cheat, why)


@pytest.mark.parametrize(
    ("cheat", "why"),
    [
        ("gives_what_lies_in_memory", "wrong: relative error"),
        ("stops_the_clock", "its process says .* ms, the judge's clock .* ms"),
        ("ends_the_process", "the process died: exit code 0"),
        ("sends_a_pickle", "its answer cannot be read|the process died|wrong"),
        ("has_a_slow_clock", "its process says .* ms, the judge's clock .* ms"),
        (
            "has_a_very_slow_clock_and_remembers_the_last_input",
            "its process says .* ms, the judge's clock .* ms",
        ),
    ],
)
def test_judge_refuses_candidate_that_attacks_its_process(cheat, why, monkeypatch):
    compared = module.output_difference
    monkeypatch.setattr(module, "BURST_S", 0.1)  # much longer than it takes to ask
    monkeypatch.setattr(module, "CLOCK_NOISE_MS", CLOCK_NOISE_MS)
    assert_refused(cheat, why, problems=PROBLEMS[:1])
    assert module.output_difference is compared


def assert_refused(cheat, why, **options):
    verdict = judge(cheat, tolerance=1e-4, **options)
    assert not verdict.accepted
    assert not verdict.faster
    assert re.search(why, verdict.refused), verdict.refused


@pytest.mark.usefixtures("in_process")
def positive_inputs(n, seed):
    return (np.random.default_rng(seed).random((n, 8)) + 0.5,)


def roots(x):
    return np.sqrt(np.abs(x))


def roots_of_positive(x):
    return np.sqrt(x)


def test_judge_checks_special_values_that_the_reference_accepts(monkeypatch):
    monkeypatch.setattr(module, "WorkerProcess", SameProcess)
    judged = partial(module.judge, problems=PROBLEMS, inputs=positive_inputs, check_only=True)
    refused = judged(roots_of_positive, roots)
    assert "on inputs with " in refused.refused
    assert judged(roots_of_positive, roots, special_values=False).accepted
    assert judged(roots, roots_of_positive).accepted, "the reference does not accept them"


def test_judge_compares_outputs_written_into_arguments():
    given = {"inputs": "cheats:inputs_into", "reference": "cheats:reference_into"}
    given["problems"] = PROBLEMS[:1]
    assert judge("into", **given).accepted
    said = judge("forgets_to_write", **given).refused
    assert "it does not write into its argument 1" in said


def test_judge_takes_functions_of_script():
    def candidate(x):
        return np.add.reduce(x, axis=1)

    verdict = module.judge(
        candidate, cheats.reference, PROBLEMS[:1], inputs=cheats.inputs, session_s=0.01
    )
    assert verdict.accepted


def test_judge_compares_tensors():
    torch = pytest.importorskip("torch", reason="needs torch")

    def inputs(n, seed):
        return (torch.rand(n, 8, generator=torch.Generator().manual_seed(seed)),)

    def reference(x):
        return x.sum(dim=1)

    def check(candidate):
        codes = {"reference": reference, "candidate": candidate, "again": reference}
        processes = {
            name: SameProcess(partial(IsolatedImplementation, code, inputs))
            for name, code in codes.items()
        }
        bench = JudgeBenchmark(processes, tolerance=1e-4, limit_s=3.0)
        bench.check(Problem(n=16))
        return bench.compare(Problem(n=16), 0.0, LoadMonitor(Device("CPU", "cpu")))

    assert check(lambda x: x @ x.new_ones(8)).relative_error < 1e-6
    wrong_type = "torch.Tensor of float16 instead of torch.Tensor of float32"
    with pytest.raises(CandidateRejected, match=wrong_type):
        check(lambda x: reference(x).half())


@pytest.mark.usefixtures("in_process")
def test_judge_request_that_proves_nothing_raises():
    with pytest.raises(UsageError, match="gives the same for all inputs of n=64"):
        judge("honest", inputs="cheats:constant")
    with pytest.raises(UsageError, match="no problem is given"):
        judge("honest", problems=[])
    with pytest.raises(UsageError, match="names that the judge uses"):
        judge("honest", rivals={"candidate": "cheats:slower"})


@pytest.mark.usefixtures("in_process")
def test_judge_failing_inputs_raise():
    with pytest.raises(MeasurementError, match=r"reference cannot be compared .* TypeError"):
        judge("honest", inputs="cheats:raises")
    with pytest.raises(UsageError, match=r"there is no file new.py: give FILE.py:NAME"):
        module.judge("new.py:f", "cheats:reference", PROBLEMS, inputs="cheats:inputs")


@pytest.mark.usefixtures("in_process")
def test_judge_unknown_function_raises(capsys):
    words = [f"{CHEATS}:reference", "--problem", "n=64"]
    assert main(["judge", f"{CHEATS}:honestt", *words]) == 2
    err = capsys.readouterr().err
    assert "'honestt': did you mean 'honest'?" in err
    assert "checking" not in err
    assert main(["judge", f"{CHEATS}", *words]) == 2
    assert f"{CHEATS} names no function" in capsys.readouterr().err.replace("\n", "")
    with pytest.raises(UsageError, match="unknown function in cheats 'nowhere'"):
        judge("honest", rivals={"blas": "cheats:nowhere"})
    with pytest.raises(
        UsageError, match=r"cheats has no makes\(n, seed\): write one, or give --in"
    ):
        judge("honest", inputs="cheats:makes")
    assert main(["judge", "new.py:f", *words, "--beside", "blas"]) == 2
    assert "--beside 'blas' is not of the form NAME=FILE.py:NAME" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
def test_judge_failing_rival_raises():
    with pytest.raises(MeasurementError, match=r"reference cannot be compared on n=64: ValueError"):
        judge("honest", reference="cheats:raises")
    with pytest.raises(MeasurementError, match=r"blas cannot be compared on n=9: wrong"):
        judge("honest", rivals={"blas": "cheats:knows_one_shape"}, problems=[{"n": 64}, {"n": 9}])


def test_judge_draws_new_values_at_same_address():
    seen = []

    def look(x):
        seen.append((x.ctypes.data, x.copy()))
        return x.sum()

    contestant = IsolatedImplementation(look, cheats.inputs)
    for seed in (1, 2):
        contestant.prepare({"n": 8}, [seed])
        assert contestant.run().calls == 1
    (first, before), (second, after) = seen
    assert first == second
    assert not np.array_equal(before, after)
    assert contestant.outputs(0).returned[0].values == after.sum()


class FakeProcess:
    """Computes the right output; its clock claims one time, the judge's shows others."""

    def __init__(self, clock, claimed_ms, *times_ms):
        self.claimed_ms = claimed_ms
        self.launch = clock.launch(*(times_ms or (claimed_ms,)))
        self.seeds = []
        self.closed = 0

    def call(self, method, *arguments, limit_s):
        if method == "outputs":
            return self.output(arguments[0])
        if method == "all_outputs":
            return [self.output(number) for number in range(len(self.seeds))]
        if method == "prepare":
            self.seeds = arguments[1]
            return 8
        if method == "run":
            for _ in self.seeds:
                self.launch()
            return Timed(own_ms=self.claimed_ms * len(self.seeds), calls=len(self.seeds))
        return None

    def output(self, number):
        values = np.array([float(self.seeds[number])])
        return CallOutputs((Output("array", values, "the output"),), {})

    def close(self):
        self.closed += 1

    def pause(self):
        pass

    def resume(self):
        pass


class HangingProcess(FakeProcess):
    def call(self, method, *arguments, limit_s):
        raise TimeoutError


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(module, "LOOKS", LOOKS)
    monkeypatch.setattr(module, "CLOCK_NOISE_MS", CLOCK_NOISE_MS)
    clock = FakeClock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def compare(**processes):
    processes["again"] = copy.copy(processes["reference"])
    bench = JudgeBenchmark(processes, tolerance=1e-4, limit_s=3.0)
    bench.check(PROBLEM)
    return bench.compare(PROBLEM, 0.0, LoadMonitor(Device("CPU", "cpu")))


def test_judge_compares_with_best_rival(clock):
    candidate = FakeProcess(clock, 2.0)
    verdict = compare(
        reference=FakeProcess(clock, 3.0), candidate=candidate, tuned=FakeProcess(clock, 1.0)
    )
    assert [c.name for c in verdict.against] == ["tuned", "reference"]
    assert verdict.candidate.ratio == pytest.approx(0.5)
    assert verdict.candidate.verdict == "slower"
    assert (verdict.processes, verdict.rounds) == (5, 5 * module.MIN_ROUNDS)
    assert candidate.closed == verdict.processes, "each is a fresh one"


def test_judge_checks_outputs_at_end_of_each_process(clock, monkeypatch):
    monkeypatch.setattr(module, "OUTPUT_CHECK_SHARE", 0.0)

    class WrongLater(FakeProcess):
        checked = 0

        def call(self, method, *arguments, limit_s):
            self.checked += method == "outputs"
            if method == "outputs" and self.checked > module.CHECK_SEEDS:
                self.seeds = [-seed for seed in self.seeds]
            return super().call(method, *arguments, limit_s=limit_s)

    with pytest.raises(CandidateRejected, match="wrong: relative error"):
        compare(reference=FakeProcess(clock, 3.0), candidate=WrongLater(clock, 1.0))


def test_judge_refuses_candidate_that_hangs(clock):
    with pytest.raises(CandidateRejected, match="did not end within 3 s, on n=64"):
        compare(reference=FakeProcess(clock, 3.0), candidate=HangingProcess(clock, 1.0))


def test_judge_hanging_rival_raises(clock):
    with pytest.raises(MeasurementError, match="tuned cannot be compared on n=64: did not end"):
        compare(
            reference=FakeProcess(clock, 3.0),
            candidate=FakeProcess(clock, 1.0),
            tuned=HangingProcess(clock, 1.0),
        )


def test_judge_figures_are_from_its_own_clock(clock):
    # The claim differs by less than the noise, and counts for nothing.
    verdict = compare(reference=FakeProcess(clock, 3.0), candidate=FakeProcess(clock, 0.95, 1.0))
    assert verdict.time_ms["candidate"] == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(
    ("step", "words"),
    [("prepare", "makes its inputs"), ("all_outputs", "sends its outputs")],
)
def test_judge_refuses_work_in_another_step(clock, step, words):
    class Hiding(FakeProcess):
        def call(self, method, *arguments, limit_s):
            if method == step:
                clock.launch(3.0 * len(self.seeds))()
            return super().call(method, *arguments, limit_s=limit_s)

    with pytest.raises(CandidateRejected, match=f"while it {words}, on n=64"):
        compare(reference=FakeProcess(clock, 3.0), candidate=Hiding(clock, 0.5))


def test_judge_candidate_is_stopped_when_others_work(clock):
    class Stopped(FakeProcess):
        works = True

        def call(self, method, *arguments, limit_s):
            assert self.works
            return super().call(method, *arguments, limit_s=limit_s)

        def pause(self):
            self.works = False

        def resume(self):
            self.works = True

    class Other(FakeProcess):
        def call(self, method, *arguments, limit_s):
            assert not candidate.works
            return super().call(method, *arguments, limit_s=limit_s)

    candidate = Stopped(clock, 1.0)
    candidate.works = False
    compare(reference=Other(clock, 3.0), candidate=candidate)


@pytest.mark.parametrize("claimed_ms", [0.0, 0.01, 0.7, 1.4])
def test_judge_refuses_clock_that_is_off(clock, claimed_ms):
    candidate = FakeProcess(clock, claimed_ms, 1.0)
    with pytest.raises(CandidateRejected, match=r"ms, the judge's clock .* ms, on n=64"):
        compare(reference=FakeProcess(clock, 3.0), candidate=candidate)


def test_judge_calls_of_a_burst_have_different_inputs(clock):
    seeds = []

    class Recording(FakeProcess):
        def call(self, method, *arguments, limit_s):
            if method == "prepare":
                seeds.extend(arguments[1])
            return super().call(method, *arguments, limit_s=limit_s)

    compare(reference=FakeProcess(clock, 0.1), candidate=Recording(clock, 0.1))
    assert len(seeds) > 5 * module.MIN_ROUNDS * 16, "4 ms take 40 calls"
    assert len(set(seeds)) == len(seeds)


def test_judge_tolerance_rests_on_input_size_of_reference(clock):
    """The default tolerance grows up to ten times with the inputs; here, it is not 1e-8."""

    class Huge(FakeProcess):
        def call(self, method, *arguments, limit_s):
            answer = super().call(method, *arguments, limit_s=limit_s)
            if method == "prepare":
                return 1 << 60
            if method == "outputs":
                (output,) = answer.returned
                rough = dataclasses.replace(output, values=output.values * (1 + 5e-9))
                return CallOutputs((rough,), {})
            return answer

    processes = {"reference": FakeProcess(clock, 3.0), "candidate": Huge(clock, 1.0)}
    bench = JudgeBenchmark(processes, tolerance=None, limit_s=3.0)
    with pytest.raises(CandidateRejected, match="wrong: relative error"):
        bench.check(PROBLEM)


def test_judge_first_call_on_problem_does_not_set_length_of_burst(clock):
    class CompilesFirst(FakeProcess):
        compiled = ()

        def call(self, method, *arguments, limit_s):
            if method == "prepare":
                self.problem = arguments[0]
            if method == "run" and self.problem not in self.compiled:
                self.compiled = (*self.compiled, self.problem)
                clock.launch(1000.0)()
            return super().call(method, *arguments, limit_s=limit_s)

    reference = CompilesFirst(clock, 0.1)
    bench = JudgeBenchmark(
        {"reference": reference, "candidate": FakeProcess(clock, 0.1)}, tolerance=1e-4, limit_s=3.0
    )
    bench.check(PROBLEM)

    calls = bench._calls_per_burst(Problem(PROBLEMS[1]))

    assert calls * 0.1 >= 1e3 * module.BURST_S


@pytest.mark.usefixtures("in_process")
def test_command_judge(capsys):
    words = [f"{CHEATS}:reference", "--problem", "n=64", "--max-seconds", "0.01", "--json"]
    assert main(["judge", f"{CHEATS}:honest", *words]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["accepted"] is True
    assert "Times in ms" in captured.err
    assert re.search("correct, and (faster|inconclusive|not timed)", captured.err)  # a busy machine
    assert main(["judge", f"{CHEATS}:is_narrow", *words]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["refused"].startswith("it gives numpy.ndarray of float32")
    assert "refused: it gives" in captured.err


def verdict_of(ratio, low, high):
    """Return a verdict on one problem, with this speed-up and interval."""
    against = Comparison("reference", None, 1.0, ratio, low, high)
    ruling = ProblemVerdict(
        problem=PROBLEM,
        against=(against,),
        time_ms={"candidate": 1.0, "reference": ratio},
        processes=5,
        rounds=50,
        noise=NoiseEstimate(),
        relative_error=0.0,
        process_ratios={"reference": (ratio,)},
    )
    return Verdict("", (ruling,))


@pytest.mark.parametrize(
    ("interval", "options", "exit_code", "words"),
    [
        ((0.8, 0.7, 0.9), [], 1, "correct, and slower: 0.80×"),
        ((1.0, 0.5, 2.0), [], 0, "correct, and inconclusive"),
        ((1.0, 0.5, 2.0), ["--strict"], 2, "correct, and inconclusive"),
        ((1.5, 1.4, 1.6), ["--strict"], 0, "correct, and faster: 1.50×"),
        ((math.nan, math.nan, math.nan), ["--strict"], 2, "correct, and not timed: no round"),
    ],
)
def test_command_judge_exit_code_follows_verdict(
    interval, options, exit_code, words, monkeypatch, capsys
):
    monkeypatch.setattr(module, "judge", lambda *args, **kwargs: verdict_of(*interval))
    line = ["judge", "new.py:f", "old.py:f", "--problem", "n=64", *options]

    assert main(line) == exit_code
    assert words in capsys.readouterr().out


def outputs_of(*values):
    """Return outputs of a call, each an array in single precision."""
    return CallOutputs(tuple(Output("array", np.array(v, np.float32)) for v in values), {})


@pytest.mark.parametrize(
    ("special", "usual", "shift"),
    [
        ([1e-5, 0.0], [1.0, 0.0], 1e5 / SHIFTED),
        ([1.0], [2.0], 1.0),
        ([0.0], [1.0], 1 / TINY / SHIFTED),
    ],
)
def test_rounding_shift_is_how_much_smaller_the_output_is(special, usual, shift):
    kind = KINDS_OF_SPECIAL_VALUES["tiny values"]
    found = rounding_shift(kind, outputs_of(special), outputs_of(usual))
    assert found == pytest.approx(shift, rel=1e-3)
