"""A kernel whose configurations work, err, raise, hang or die, as told."""

import os
import time
from typing import Any

import numpy as np

from foretune.family import Cost
from foretune.kernel import Inputs, Kernel, Launch
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

LAUNCH_S = 1e-4
"""Minimum seconds of a launch."""


class MisbehavingKernel(Kernel):
    """Adds 1 to ``n`` numbers; takes at least ``rounds`` × `LAUNCH_S`."""

    name = "probe"
    problem_parameters = (ProblemParameter("n"),)

    def space(self, problem: Problem) -> SearchSpace:
        """Return the behaviors."""
        does = ("works", "is wrong", "writes nothing", "does not build", "raises", "hangs", "dies")
        return SearchSpace({"does": does, "rounds": (1, 4)})

    def default(self, problem: Problem) -> Configuration:
        """Return the configuration that works."""
        return Configuration(does="works", rounds=1)

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return numbers to add to."""
        return {"x": np.random.default_rng(seed).random(int(problem["n"]))}

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Return a launch that behaves as ``config`` says."""
        does, x = config["does"], inputs["x"]
        out = x + 1.0  # a correct output from before: a launch that writes nothing looks right
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
        """Return the sums."""
        return inputs["x"] + 1.0

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch]:
        """Return NumPy's addition."""
        return "NumPy", lambda: inputs["x"] + 1.0

    def cost(self, problem: Any, config: Any) -> Cost:
        """Return one operation per number."""
        return Cost(flops=1.0 * problem["n"], bytes_moved=16.0 * problem["n"])

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return ``n`` sizes."""
        sizes = np.random.default_rng(seed).permutation(np.arange(10, 10 + 10 * n, 10))
        return [self.problem(n=int(size)) for size in sizes]
