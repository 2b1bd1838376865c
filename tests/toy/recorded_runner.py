"""A kernel and a runner that answer from a recorded space."""

import math

import numpy as np

from foretune.collect import Runner
from foretune.collect.comparison import Rounds
from foretune.family import Cost
from foretune.kernel import Kernel
from foretune.problem import ProblemParameter


class RecordedKernel(Kernel):
    """The kernel of a recorded space; its default is the first configuration that runs."""

    def __init__(self, recorded):
        self.name = recorded.kernel
        self.problem_parameters = tuple(ProblemParameter(name) for name in recorded.problem)
        self.device_kind = recorded.device.kind
        self._recorded = recorded

    def space(self, problem):
        return self._recorded.space

    def default(self, problem):
        return self._recorded.space[int(np.argmax(np.isfinite(self._recorded.values)))]

    def make_inputs(self, problem, seed=0):
        return {}

    def build(self, problem, config, inputs):
        raise NotImplementedError("a recorded kernel does not run")

    def reference(self, inputs):
        raise NotImplementedError("a recorded kernel does not run")

    def cost(self, problem, config):
        return Cost(1.0, 1.0)

    def training_problems(self, n, seed=0):
        return [self._recorded.problem]


class RecordedRunner(Runner):
    """Measures by looking it up; ``measured`` has the numbers of the configurations, in order."""

    def __init__(self, recorded):
        self.device = recorded.device
        self.measured = []
        self._recorded = recorded

    def run(self, kernel, problem, configs, incumbent_ms=math.inf):
        for config in configs:
            number = self._recorded.space.index(config)
            self.measured.append(number)
            yield self._recorded.measurements[number]

    def compare_interleaved(self, kernel, problem, configs, max_seconds=0.5, seed=0):
        values = self._recorded.values
        return Rounds({c.id: np.full(20, values[self._recorded.space.index(c)]) for c in configs})
