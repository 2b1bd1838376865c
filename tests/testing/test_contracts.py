"""Tests that the contract checks find violations: each implementation here breaks one rule."""

import dataclasses
import math

import numpy as np
import pytest

from foretune.collect import InProcessRunner, Timing
from foretune.collect.power import PowerMeter
from foretune.device import Device
from foretune.family import Cost
from foretune.models.trees.forest import ForestModel
from foretune.search.loop import run, run_concurrently
from foretune.search.searcher import RandomSearcher
from foretune.space import Configuration, SearchSpace
from foretune.testing import (
    ContractViolation,
    check_kernel,
    check_loop_driver,
    check_meter,
    check_regressor,
    check_runner,
    check_searcher,
)
from foretune.testing.runners import _MisbehavingKernel


class Kernel(_MisbehavingKernel):
    """Adds one, in blocks of numbers."""

    def space(self, problem):
        return SearchSpace({"block": (1, 2, 3)})

    def default(self, problem):
        return Configuration(block=2)

    def build(self, problem, config, inputs):
        return super().build(problem, {"does": "works", "rounds": 1}, inputs)


class OutsideItsSpace(Kernel):
    def default(self, problem):
        return Configuration(block=4)


class ForgetsTheRest(Kernel):
    def build(self, problem, config, inputs):
        whole = int(problem["n"]) // config["block"] * config["block"]

        out = np.empty(int(problem["n"]))

        def launch():
            out[:whole] = inputs["x"][:whole] + 1
            return out

        return launch


class CannotBuild(Kernel):
    def build(self, problem, config, inputs):
        if config["block"] == 3:
            raise RuntimeError("out of registers")
        return super().build(problem, config, inputs)


class ChangesItsInputs(Kernel):
    def build(self, problem, config, inputs):
        launch = super().build(problem, config, inputs)

        def change():
            output = launch().copy()
            inputs["x"] += 1e-9
            return output

        return change


class IgnoresTheSeed(Kernel):
    def make_inputs(self, problem, seed=0):
        return super().make_inputs(problem, 1)


class CostOfScalars(Kernel):
    def cost(self, problem, config):
        return Cost(flops=float(np.max(problem["n"])), bytes_moved=1.0)


class ManyTrainingProblems(Kernel):
    def training_problems(self, n, seed=0):
        return super().training_problems(n, seed) * 2


class SlowLibrary(Kernel):
    def library(self, problem, inputs):
        return "NumPy", lambda: inputs["x"] + 2


class LibraryWritesIntoInputs(Kernel):
    def library(self, problem, inputs):
        return "NumPy", lambda: np.add(inputs["x"], 1, out=inputs["x"]).copy()


class ReferenceWritesIntoInputs(Kernel):
    def reference(self, inputs):
        inputs["x"] += 1
        return inputs["x"].copy()


class InputsWithoutNames(Kernel):
    def make_inputs(self, problem, seed=0):
        return tuple(super().make_inputs(problem, seed).values())


class ErrorOfItsOwn(Kernel):
    """Is NaN for NaN, which `invalidate_output` writes."""

    def relative_error(self, output, expected):
        return np.abs(output - expected).max() / np.abs(expected).max()


def test_check_kernel_accepts_valid_kernel():
    check_kernel(ErrorOfItsOwn(), [{"n": 7}])
    check_kernel(Kernel(), [{"n": 7}, {"n": 1}])
    check_kernel(Kernel())
    check_kernel(CannotBuild(), [{"n": 7}], may_fail=True)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OutsideItsSpace, "default of .* is not in the space"),
        (ForgetsTheRest, "is off by inf"),
        (CannotBuild, "block=3.* raises RuntimeError: out of registers"),
        (ChangesItsInputs, "block=.* changes its inputs"),
        (IgnoresTheSeed, "make_inputs is the same for every seed"),
        (CostOfScalars, "cost.flops of .* by itself and"),
        (ManyTrainingProblems, "training_problems repeat"),
        (SlowLibrary, "library NumPy is off by"),
        (LibraryWritesIntoInputs, "library NumPy changes its inputs"),
        (ReferenceWritesIntoInputs, "reference changes the inputs"),
        (InputsWithoutNames, "make_inputs returns no dict"),
    ],
)
def test_check_kernel_refuses_violation(kind, message):
    with pytest.raises(ContractViolation, match=message):
        check_kernel(kind(), [{"n": 7}, {"n": 5}])


def test_check_kernel_of_script_is_refused():
    class Local(Kernel):
        pass

    with pytest.raises(ContractViolation, match="cannot be sent to a measuring process"):
        check_kernel(Local())


CPU = Device("made up", "cpu")


class Runner(InProcessRunner):
    """Changes what is measured before it hands it on."""

    change: dict = {}  # noqa: RUF012

    def __init__(self):
        super().__init__(CPU, Timing(max_seconds=0.01, warmup_s=0.0), power=False)

    def run(self, *args, **named):
        for m in super().run(*args, **named):
            yield dataclasses.replace(m, **self.change) if m.ok else m


class SwallowsFailures(Runner):
    def run(self, *args, **named):
        return (m for m in super().run(*args, **named) if m.ok)


class TooFast(Runner):
    change = {"time_ms": 1e-6, "time_ms_samples": (1e-6,)}  # noqa: RUF012


class OfNowhere(Runner):
    change = {"device": "another"}  # noqa: RUF012


class DoesTwice(Runner):
    def run_many(self, kernel, work, incumbent_ms=math.inf):
        work = list(work)
        return super().run_many(kernel, work + work[:1], incumbent_ms)


class TakesAnything(Runner):
    def check(self, kernel):
        pass


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (SwallowsFailures, "not one measurement per configuration"),
        (TooFast, "cannot take below"),
        (OfNowhere, "is of device 'another'"),
        (DoesTwice, "not one measurement per problem and configuration"),
        (TakesAnything, "kernel for a gpu is not refused"),
    ],
)
def test_check_runner_refuses_violation(kind, message):
    with pytest.raises(ContractViolation, match=message):
        check_runner(kind(), isolates=False)


class Meter(PowerMeter):
    name = "made up"
    device_kind = "cpu"
    joules = 1.0

    def __init__(self, index):
        pass

    def unavailable_because(self):
        return None

    def start(self):
        pass

    def stop(self):
        return self.joules


class NoWatts(Meter):
    joules = 0.0


class Talkative(Meter):
    def unavailable_because(self):
        return "no\ncounter"


class FailsEarly(Meter):
    def __init__(self, index):
        if index:
            raise OSError("no such device")


class NoReason(Meter):
    def unavailable_because(self):
        raise PermissionError("energy_uj")


class NoNumber(Meter):
    joules = None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (NoReason, "return the reason"),
        (NoNumber, "stop without start"),
        (NoWatts, "stop without start"),
        (Talkative, "not None or one line"),
        (FailsEarly, "must not fail"),
    ],
)
def test_check_meter_refuses_violation(kind, message):
    check_meter(Meter, seconds=0.0)
    with pytest.raises(ContractViolation, match=message):
        check_meter(kind, seconds=0.0)


class Forgetful(ForestModel):
    @classmethod
    def load(cls, path):
        loaded = super().load(path)
        loaded.n_features_in_ = 0
        return loaded


class Constant(ForestModel):
    def _predict(self, X):
        return np.zeros(len(X))


@pytest.mark.parametrize("kind", [Forgetful, Constant])
def test_check_regressor_refuses_violation(kind):
    with pytest.raises(ContractViolation):
        check_regressor(kind(trees=3))


class Repeats(RandomSearcher):
    def ask(self, n=1):
        return [self.space[0]] * n


class Unseeded(RandomSearcher):
    def _prepare(self):
        self.rng = np.random.default_rng()


class Boastful(RandomSearcher):
    def best(self):
        return super().best() or self.space[0]


class TakesAllObjectives(RandomSearcher):
    def tell(self, measurements):
        super().tell(
            dataclasses.replace(m, power_w=math.nan, energy_mj=math.nan) if m.ok else m
            for m in measurements
        )


class Endless(RandomSearcher):
    def ask(self, n=1):
        return super().ask(n) or [self.space[0]]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Repeats, "ask\\(0\\)|proposed twice"),
        (Unseeded, "the same seed gives other proposals"),
        (Boastful, "best\\(\\) is a configuration"),
        (TakesAllObjectives, "not have the least energy"),
        (Endless, "ask\\(0\\) proposes something"),
    ],
)
def test_check_searcher_refuses_violation(kind, message):
    with pytest.raises(ContractViolation, match=message):
        check_searcher(kind)


def one_by_one(loop, measure):
    return run(loop, lambda configs: map(measure, configs))


def newest_first(loop, measure):
    waiting = []
    return run_concurrently(loop, waiting.append, lambda: measure(waiting.pop()))


@pytest.mark.parametrize("drive", [one_by_one, newest_first])
def test_check_loop_driver_accepts_own_drivers(drive):
    check_loop_driver(drive)


def stops_early(loop, measure):
    return next(loop)


def loses_one(loop, measure):
    return run(loop, lambda configs: map(measure, configs[:1]))


def measures_twice(loop, measure):
    return run(loop, lambda configs: [measure(c) for c in configs for _ in range(2)][::2])


def reports_twice(loop, measure):
    return run(loop, lambda configs: [measure(c) for c in configs] * 2)


def never_reports(loop, measure):
    batch = next(loop)
    while True:
        for config in batch.start:
            measure(config)
        batch = loop.send([])


def keeps_the_result(loop, measure):
    one_by_one(loop, measure)


def mistakes_one_for_another(loop, measure):
    return run(loop, lambda configs: [measure(configs[0])] * len(configs))


def expects_a_batch(loop, measure):
    batch = next(loop)  # a loop without budget ends here
    while True:
        try:
            batch = loop.send([measure(config) for config in batch.start])
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize(
    ("drive", "message"),
    [
        (expects_a_batch, "a loop that ends at once"),
        (stops_early, "is measured 0 times"),
        (loses_one, "have no measurement"),
        (measures_twice, "is measured 2 times"),
        (reports_twice, "report each started configuration once"),
        (never_reports, "not reported"),
        (keeps_the_result, "return the loop's result"),
        (mistakes_one_for_another, "is measured 0 times"),
    ],
)
def test_check_loop_driver_refuses_violation(drive, message):
    with pytest.raises(ContractViolation, match=message):
        check_loop_driver(drive)
