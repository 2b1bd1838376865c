"""A kernel whose configurations take as long, or fail, as they say; and a fake runner."""

import dataclasses
import math
import os
import time

import numpy as np

from foretune.collect import Runner
from foretune.collect.benchmark import environment
from foretune.collect.comparison import DEFAULT_REPEATED, Rounds
from foretune.device import Device
from foretune.errors import MissingExtra
from foretune.family import Cost
from foretune.kernel import Kernel
from foretune.measurement import Measurement, Status
from foretune.problem import ProblemParameter
from foretune.space import Configuration, SearchSpace

DEVICE = Device("Toy CPU", "cpu", specs={"fp32_gflops": 100.0, "memory_gbps": 10.0, "cores": 2.0})


class Toy(Kernel):
    """Sums ``n`` numbers; waits ``n × work × skew`` microseconds."""

    name = "toy"
    problem_parameters = (
        ProblemParameter("n", maximum=2**40),
        ProblemParameter("dtype", "fp32", choices=("fp32", "fp64")),
    )

    def space(self, problem):
        return SearchSpace(
            {
                "work": (1, 2, 4, 8, 16),
                "skew": (1, 2, 3),
                "order": ("ab", "ba"),
                "behaviour": ("ok", "wrong", "no build", "no run", "hang", "die"),
            },
            ["behaviour == 'ok' or (work == 1 and skew == 1)"],
        )

    def default(self, problem):
        return Configuration(work=4, skew=2, order="ab", behaviour="ok")

    def make_inputs(self, problem, seed=0):
        rng = np.random.default_rng(seed)
        return {"x": rng.standard_normal(min(int(problem["n"]), 1000)) + 1}

    def build(self, problem, config, inputs):
        behaviour = config["behaviour"]
        if behaviour == "no build":
            raise RuntimeError("the compiler says no\nand goes on")
        if behaviour == "no extra":
            raise MissingExtra("toylib", "toy", "the toy kernel")
        seconds = time_ms(problem, config) * 1e-3

        def launch():
            if behaviour == "no run":
                raise ValueError("cannot run")
            if behaviour == "hang":
                time.sleep(60)
            if behaviour == "die":
                os._exit(7)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                pass
            print("a kernel that prints")
            return inputs["x"].sum() * (2 if behaviour == "wrong" else 1)

        return launch

    def reference(self, inputs):
        return inputs["x"].sum()

    def cost(self, problem, config):
        return Cost(flops=1.0 * problem["n"], bytes_moved=8.0 * problem["n"])

    def training_problems(self, n, seed=0):
        sizes = np.random.default_rng(seed).permutation(np.arange(20, 20 + 20 * n, 20))
        return [self.problem(n=int(size)) for size in sizes[:n]]

    def library(self, problem, inputs):
        return "NumPy", lambda: inputs["x"].sum()


def time_ms(problem, config):
    """Return how long a launch takes."""
    order = 1.2 if config["order"] == "ba" else 1.0
    return 1e-3 * problem["n"] * config["work"] * config["skew"] * order


def config(behaviour="ok", work=1, skew=1, order="ab"):
    """Return a configuration of `Toy`."""
    return Configuration(work=work, skew=skew, order=order, behaviour=behaviour)


class FakeRunner(Runner):
    """Answers from the law in `time_ms`; fails as configurations say; can be interrupted."""

    def __init__(self, device=DEVICE, interrupt_after=math.inf, noise=0.0):
        self.device = device
        self.interrupt_after = interrupt_after
        self.noise = noise
        self.measured = []
        self.rng = np.random.default_rng(0)

    def run(self, kernel, problem, configs, incumbent_ms=math.inf):
        for c in configs:
            if len(self.measured) >= self.interrupt_after:
                raise KeyboardInterrupt
            self.measured.append((problem, c))
            ok = c["behaviour"] == "ok"
            yield Measurement(
                kernel.name,
                problem,
                c,
                self.device.name,
                Status.OK if ok else Status.RUNTIME_ERROR,
                time_ms=time_ms(problem, c) if ok else math.nan,
                error="" if ok else "as it says",
                environment=environment(kernel),
            )

    def compare_interleaved(self, kernel, problem, configs, max_seconds=0.5, seed=0):
        times = {c.id: time_ms(problem, c) for c in configs}
        times |= {DEFAULT_REPEATED: time_ms(problem, configs[0]), "library:NumPy": 0.5}
        return self.rounds(times)

    def rounds(self, times, count=20):
        """Return rounds of such times; drift hits all alike."""
        drift = 1 + 0.3 * np.sin(np.arange(count) + self.rng.uniform(0, 6))
        return Rounds({key: self._noisy(ms * drift) for key, ms in times.items()})

    def _noisy(self, times):
        return times * self.rng.lognormal(0, self.noise, len(times))


class FlatRunner(FakeRunner):
    """Every configuration takes as long, give or take noise."""

    def compare_interleaved(self, kernel, problem, configs, max_seconds=0.5, seed=0):
        return self.rounds(dict.fromkeys([*(c.id for c in configs), DEFAULT_REPEATED], 1.0))


def power_w(config):
    """Return the watts that a `MeteredRunner` reads: the faster, the more.

    The quickest configuration is not the one of least energy.
    """
    return 100.0 / config["work"] ** 1.5


class MeteredRunner(FakeRunner):
    """Has a meter, too; time and power of every run have the noise."""

    def run(self, kernel, problem, configs, incumbent_ms=math.inf):
        for m in super().run(kernel, problem, configs, incumbent_ms):
            time_ms = m.time_ms
            watts = power_w(m.config)
            if self.noise:
                time_ms, watts = self._noisy(np.array([time_ms, watts]))
            yield dataclasses.replace(
                m, time_ms=time_ms, power_w=watts if m.ok else math.nan, energy_mj=watts * time_ms
            )
