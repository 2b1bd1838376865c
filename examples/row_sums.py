"""A kernel as a class in a file, without a package.

foretune tune examples/row_sums.py:RowSums --problem N=4096
"""

import numpy as np

import foretune as ft


class RowSums(ft.Kernel):
    """Sums the rows of ``X[N, 64]``, some at a time."""

    name = "row_sums"
    problem_parameters = (ft.ProblemParameter("N", meaning="rows"),)

    def space(self, problem):
        """Rows at a time."""
        return ft.SearchSpace({"block": (1, 16, 256, 4096)})

    def default(self, problem):
        """What one would write."""
        return ft.Configuration(block=16)

    def make_inputs(self, problem, seed=0):
        """Random numbers."""
        return {"x": np.random.default_rng(seed).random((problem["N"], 64))}

    def build(self, problem, config, inputs):
        """The timed call."""
        x, block = inputs["x"], config["block"]
        out = np.empty(len(x))

        def launch():
            for start in range(0, len(x), block):
                x[start : start + block].sum(axis=1, out=out[start : start + block])
            return out

        return launch

    def reference(self, inputs):
        """The right output."""
        return inputs["x"].sum(axis=1)

    def cost(self, problem, config):
        """One addition per number, each read once."""
        return ft.Cost(flops=64.0 * problem["N"], bytes_moved=8.0 * 65 * problem["N"], dtype="fp64")

    def training_problems(self, n, seed=0):
        """Problems that a predictor should see."""
        sizes = np.random.default_rng(seed).permutation(np.arange(256, 16384, 256))
        return [self.problem(N=int(size)) for size in sizes[:n]]
