"""A kernel that does as its configurations say: it works, errs, raises, hangs or dies."""

import os
import time
from typing import Any

import numpy as np

from foretune.family import Cost
from foretune.kernel import Inputs, Kernel, Launch
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

LAUNCH_S = 1e-4
"""What a launch takes at least."""


class ProbeKernel(Kernel):
    """Adds one to ``n`` numbers, and takes at least ``rounds`` times `LAUNCH_S`."""

    name = "probe"
    problem_parameters = (ProblemParameter("n"),)

    def space(self, problem: Problem) -> SearchSpace:
        """Return what it can do."""
        does = ("works", "is wrong", "writes nothing", "does not build", "raises", "hangs", "dies")
        return SearchSpace({"does": does, "rounds": (1, 4)})

    def default(self, problem: Problem) -> Configuration:
        """Return the one that works."""
        return Configuration(does="works", rounds=1)

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return numbers to add to."""
        return {"x": np.random.default_rng(seed).random(int(problem["n"]))}

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Return a launch that does as ``config`` says."""
        does, x = config["does"], inputs["x"]
        out = x + 1.0  # as if another configuration had left it: who writes nothing looks right
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
        """Return an operation per number."""
        return Cost(flops=1.0 * problem["n"], bytes_moved=16.0 * problem["n"])

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return ``n`` sizes."""
        sizes = np.random.default_rng(seed).permutation(np.arange(10, 10 + 10 * n, 10))
        return [self.problem(n=int(size)) for size in sizes]
