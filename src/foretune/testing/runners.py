"""Checks the contract of a runner: every hang, crash, error or wrong result becomes a row."""

import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from foretune.collect.comparison import DEFAULT_REPEATED
from foretune.collect.runner import Runner
from foretune.errors import MeasurementError, UsageError
from foretune.family import Cost
from foretune.kernel import Inputs, Kernel, Launch
from foretune.measurement import Status
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace
from foretune.testing.contract import ContractViolation, ensure

LAUNCH_S = 1e-4
"""Minimum seconds of a launch."""
FAILURES = {
    "is wrong": Status.WRONG_RESULT,
    "writes nothing": Status.WRONG_RESULT,
    "does not build": Status.COMPILE_ERROR,
    "raises": Status.RUNTIME_ERROR,
}
FATAL = {"hangs": Status.TIMEOUT, "dies": Status.RUNTIME_ERROR}


class _MisbehavingKernel(Kernel):
    """Adds 1 to ``n`` numbers; takes at least ``rounds`` × `LAUNCH_S`."""

    name = "probe"
    problem_parameters = (ProblemParameter("n"),)

    def space(self, problem: Problem) -> SearchSpace:
        does = ("works", "is wrong", "writes nothing", "does not build", "raises", "hangs", "dies")
        return SearchSpace({"does": does, "rounds": (1, 4)})

    def default(self, problem: Problem) -> Configuration:
        return Configuration(does="works", rounds=1)

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        return {"x": np.random.default_rng(seed).random(int(problem["n"]))}

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        does = config["does"]
        x = inputs["x"]
        # A correct output from before: a launch that writes nothing looks right.
        out = x + 1.0
        if does == "does not build":
            raise RuntimeError("it does not build\nand says so in two lines")

        def launch() -> np.ndarray:
            end = time.perf_counter() + LAUNCH_S * int(config["rounds"])
            if does == "raises":
                raise ValueError("it raises")
            if does == "hangs":
                time.sleep(3600)
            if does == "dies":
                os._exit(7)
            if does != "writes nothing":
                np.add(x, 2.0 if does == "is wrong" else 1.0, out=out)
            while time.perf_counter() < end:
                pass
            return out

        return launch

    def reference(self, inputs: Inputs) -> Any:
        return inputs["x"] + 1.0

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch]:
        return "NumPy", lambda: inputs["x"] + 1.0

    def cost(self, problem: Any, config: Any) -> Cost:
        return Cost(flops=1.0 * problem["n"], bytes_moved=16.0 * problem["n"])

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        sizes = np.random.default_rng(seed).permutation(np.arange(10, 10 + 10 * n, 10))
        return [self.problem(n=int(size)) for size in sizes]


def check_runner(runner: Runner, isolates: bool = True) -> None:
    """Measure configurations that work, err, raise, hang and die.

    ``runner`` runs on a CPU, and is closed at the end. Give it a short time limit: the check waits
    that long for a hang. Unless it ``isolates``, as one in this process, nothing hangs or dies.
    Raises ContractViolation if the runner violates the contract of `Runner`.
    """
    kernel = _MisbehavingKernel()
    works = kernel.default(kernel.problem(n=100))
    with runner:
        _check_rows(runner, kernel, [works, *map(_does, FAILURES), _does("works", rounds=4)])
        if isolates:
            _check_rows(runner, kernel, [_does("dies"), works, _does("hangs"), works])
        configs = [works, _does("works", rounds=4), _does("raises")]
        problems = [kernel.problem(n=n) for n in (100, 200)]
        work = [(problem, config) for problem in problems for config in configs]
        done = [(m.problem, m.config) for m in runner.run_many(kernel, work)]
        ensure(Counter(done) == Counter(work), "not one measurement per problem and configuration")
        _check_comparison(runner, kernel, isolates)
        _check_refusal(runner)
    # Closing twice is fine.
    runner.close()


def _does(does: str, rounds: int = 1) -> Configuration:
    return Configuration(does=does, rounds=rounds)


def _check_rows(runner: Runner, kernel: Kernel, configs: Sequence[Configuration]) -> None:
    problem = kernel.problem(n=100)
    rows = list(runner.run(kernel, problem, configs))
    ensure([m.config for m in rows] == list(configs), "not one measurement per configuration")
    expected = {"works": Status.OK, **FAILURES, **FATAL}
    for m in rows:
        where = f"a configuration that {m.config['does']}"
        ensure((m.kernel, m.problem) == (kernel.name, problem), f"{where} is of another problem")
        ensure(m.device == runner.device.name, f"{where} is of device {m.device!r}")
        ensure(m.environment, f"{where} has no environment of versions")
        status = expected[str(m.config["does"])]
        ensure(m.status is status, f"{where} has status {m.status}, not {status}: {m.error}")
        if not m.ok:
            ensure(math.isnan(m.time_ms), f"{where} has a time")
            one_line = m.error and "\n" not in m.error
            ensure(one_line, f"{where} needs a one-line reason: {m.error!r}")
            continue
        min_ms = 1e3 * LAUNCH_S * int(m.config["rounds"])
        ensure(m.time_ms >= min_ms, f"{where} has {m.time_ms} ms, and cannot take below {min_ms}")
        close = math.isclose(m.time_ms, np.median(m.time_ms_samples or m.time_ms))
        ensure(close, f"time_ms of {where} is not the median of its samples")


def _check_comparison(runner: Runner, kernel: _MisbehavingKernel, isolates: bool) -> None:
    problem = kernel.problem(n=100)
    configs = [_does("works"), _does("works", rounds=4), _does("is wrong")]
    rounds = runner.compare_interleaved(kernel, problem, configs, max_seconds=0.02)
    times = rounds.time_ms
    expected = {*(config.id for config in configs[:2]), "library:NumPy"}
    ensure(
        {*times} - {DEFAULT_REPEATED} == expected,
        f"a comparison of two that work and one that errs has {set(times)}",
    )
    ensure(set(rounds.failures) == {configs[2].id}, f"a comparison fails {set(rounds.failures)}")
    ensure(len({len(t) for t in times.values()}) == 1, "not all ran in every round")
    for config in configs[:2]:
        min_ms = 1e3 * LAUNCH_S * int(config["rounds"])
        ensure(np.min(times[config.id]) >= min_ms, "a comparison has an impossible time")
    if isolates:
        try:
            runner.compare_interleaved(kernel, problem, [_does("dies")], max_seconds=0.01)
        except MeasurementError:
            return
        raise ContractViolation("a comparison in which one dies must raise MeasurementError")


def _check_refusal(runner: Runner) -> None:
    kernel = _MisbehavingKernel()
    kernel.device_kind = "gpu" if runner.device.kind == "cpu" else "cpu"
    otherwise = f"a kernel for a {kernel.device_kind} is not refused with a UsageError"
    try:
        next(iter(runner.run(kernel, kernel.problem(n=1), [_does("works")])))
    except UsageError:
        return
    except Exception as e:
        raise ContractViolation(f"{otherwise}, but with {e!r}") from e
    raise ContractViolation(otherwise)
