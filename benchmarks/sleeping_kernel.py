"""A kernel that sleeps: two of them on one core do not disturb each other."""

import time
from typing import Any

import foretune as ft


class SleepingKernel(ft.Kernel):
    """Sleeps as many milliseconds as its configuration says."""

    name = "sleeping"
    problem_parameters = (ft.ProblemParameter("n"),)

    def space(self, problem: ft.Problem) -> ft.SearchSpace:
        """Return milliseconds."""
        return ft.SearchSpace({"ms": tuple(range(1, 101))})

    def default(self, problem: ft.Problem) -> ft.Configuration:
        """Return the shortest sleep."""
        return ft.Configuration(ms=1)

    def make_inputs(self, problem: ft.Problem, seed: int = 0) -> dict[str, Any]:
        """Return nothing to compute with."""
        return {}

    def build(self, problem: ft.Problem, config: ft.Configuration, inputs: Any) -> Any:
        """Return a launch that sleeps."""

        def launch() -> list[float]:
            time.sleep(float(config["ms"]) * 1e-3)
            return [1.0]

        return launch

    def reference(self, inputs: Any) -> list[float]:
        """Return what a launch returns."""
        return [1.0]

    def cost(self, problem: Any, config: Any) -> ft.Cost:
        """Return one operation."""
        return ft.Cost(flops=1.0, bytes_moved=1.0)

    def training_problems(self, n: int, seed: int = 0) -> list[ft.Problem]:
        """Return ``n`` different ones."""
        return [self.problem(n=i + 1) for i in range(n)]
