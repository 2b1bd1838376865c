"""What does profiling promising configurations gain, beside random ones only?

    python benchmarks/profiling.py

A campaign measures some configurations of each problem at random, then as many more as a predictor
of these expects to be fastest. Here the shipped predictor of a kernel stands for the machine, with
2 % of noise, so that every configuration of a problem has a known time. Both ways measure the same
number; then the predictor ranks random configurations of problems that were not profiled.
"""

import argparse

import numpy as np
from machine import markdown

from foretune.collect import plan_configurations
from foretune.datasets import from_measurements
from foretune.device import Device
from foretune.kernel import Kernel
from foretune.measurement import Measurement, Status
from foretune.models import Predictor
from foretune.models.saved.pretrained import SHIPPED
from foretune.problem import Problem
from foretune.registry import get_kernel
from foretune.space import Configuration
from foretune.tune import PRESETS
from foretune.tune.campaign.campaign import GUIDED_POOL_SIZE

NOISE = 0.02
"""Standard deviation of the logarithm of a time."""
UNSEEN, RANKED, MEASURED = 4, 4000, 10
"""Problems that are not profiled, configurations ranked of each, and the first ones measured."""
Plan = dict[Problem, list[Configuration]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*", default=["matmul", "quantized_matvec", "softmax"])
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    rows = []
    for name in options.kernels:
        machine = Machine(get_kernel(name))
        found = [machine.compare(seed) for seed in range(options.seeds)]
        for i, way in enumerate(("random", "random, then promising")):
            first, best = np.exp(np.mean(np.log(np.concatenate([f[i] for f in found])), axis=0))
            rows.append([name, way, f"{first:.2f}", f"{best:.2f}"])
    columns = ["kernel", "profiled", "the first", f"the best of the first {MEASURED}"]
    print("Time over the fastest, geometric mean over unseen problems\n")
    print(markdown(columns, rows))


class Machine:
    """A kernel whose times are those of its shipped predictor."""

    def __init__(self, kernel: Kernel) -> None:
        (folder,) = (SHIPPED / kernel.name).iterdir()
        self.kernel, self.truth = kernel, Predictor.load(folder)
        row = self.truth.measured_runs().iloc[-1]
        specs = row.filter(like="device.").dropna().rename(lambda c: c.removeprefix("device."))
        self.device = Device(str(row["device"]), "cpu", "", specs.astype(float).to_dict())

    def compare(self, seed: int) -> list[np.ndarray]:
        """Return, for both ways, the times of unseen problems over the fastest: (problem, 2)."""
        preset = PRESETS["quick"]
        problems = self.kernel.training_problems(preset.train_problems + UNSEEN, seed)
        known, unseen = problems[: preset.train_problems], problems[preset.train_problems :]
        rng = np.random.default_rng(seed)
        count, more = preset.random_configs, preset.guided_configs
        both = self.run(plan_configurations(self.kernel, known, count + more, seed), rng)
        first = self.run(plan_configurations(self.kernel, known, count, seed), rng)
        guide = self.train(first, seed)
        promising = {p: self.promising(guide, p, more, rng) for p in known}
        models = [self.train(rows, seed) for rows in (both, first + self.run(promising, rng))]
        return [np.array([self.rank(model, p) for p in unseen]) for model in models]

    def run(self, plan: Plan, rng: np.random.Generator) -> list[Measurement]:
        """Return the measurements of a plan."""
        rows = []
        for problem, configs in plan.items():
            space = self.kernel.space(problem)
            time_ms = self.times(self.truth, problem, np.array([space.index(c) for c in configs]))
            time_ms = time_ms * np.exp(rng.normal(0, NOISE, len(configs)))
            rows += [
                Measurement(
                    self.kernel.name, problem, config, self.device.name, Status.OK, float(t)
                )
                for config, t in zip(configs, time_ms, strict=True)
            ]
        return rows

    def train(self, rows: list[Measurement], seed: int) -> Predictor:
        """Return a predictor of these measurements."""
        table = from_measurements(rows, self.device)
        return Predictor(targets=("time_ms",), seed=seed, kernel=self.kernel).fit(table)

    def promising(
        self, guide: Predictor, problem: Problem, count: int, rng: np.random.Generator
    ) -> list[Configuration]:
        """Return the configurations of a random pool that a predictor expects to be fastest."""
        space = self.kernel.space(problem)
        pool = space.sample_indices(GUIDED_POOL_SIZE, rng)
        order = np.argsort(self.times(guide, problem, pool))
        return [space[int(i)] for i in pool[order[:count]]]

    def rank(self, model: Predictor, problem: Problem) -> tuple[float, float]:
        """Return the time of the first and of the best of the first, over the fastest."""
        pool = self.kernel.space(problem).sample_indices(RANKED, np.random.default_rng(0))
        time_ms = self.times(self.truth, problem, pool)
        ranked = time_ms[np.argsort(self.times(model, problem, pool))] / time_ms.min()
        return ranked[0], ranked[:MEASURED].min()

    def times(self, predictor: Predictor, problem: Problem, pool: np.ndarray) -> np.ndarray:
        """Return what a predictor says of some configurations, in milliseconds."""
        space = self.kernel.space(problem)
        return predictor.predict_space(problem, space, self.device, pool)["time_ms"].to_numpy()


if __name__ == "__main__":
    main()
