"""What does profiling promising configurations gain, beside random ones only?

    python benchmarks/profiling.py

A campaign measures some configurations of each problem at random, then as many more as a predictor
of these expects to be fastest. Here the shipped predictor of a kernel stands for the machine, with
2 % of noise, so that every configuration of a problem has a known time. Both ways measure the same
number; then the predictor ranks random configurations of problems that were not profiled.

A second table is of searches of these problems, in the whole space: one learns the predictor's
errors from the profiled runs, too, which the predictor knows; the other from its own runs only.
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
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.registry import get_kernel
from foretune.search import make_searcher
from foretune.search.prior import prior_from_predictor
from foretune.space import Configuration
from foretune.tune import PRESETS
from foretune.tune.campaign.campaign import GUIDED_POOL_SIZE

NOISE = 0.02
"""Standard deviation of the logarithm of a time."""
UNSEEN, RANKED, MEASURED = 4, 4000, 10
"""Problems that are not profiled, configurations ranked of each, and the first ones measured."""
TIMED = 60_000
"""Configurations among which the fastest of a problem is taken."""
SHOWN = (1, 3, 5, MEASURED)
"""Numbers of measurements after which searches are shown."""
Plan = dict[Problem, list[Configuration]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*", default=["matmul", "quantized_matvec", "softmax"])
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    rows, searches = [], []
    for name in options.kernels:
        machine = Machine(get_kernel(name))
        found = [machine.compare(seed) for seed in range(options.seeds)]
        tuned = np.log(np.concatenate([machine.search(seed) for seed in range(options.seeds)]))
        for way, logs in zip(
            ("profiled and own runs", "own runs"), np.swapaxes(tuned, 0, 1), strict=True
        ):
            cells = [f"{ratio:.3f}" for ratio in np.exp(logs.mean(axis=0))]
            searches.append([name, way, *cells, f"{np.exp(logs[:, -1].max()):.2f}"])
        for i, way in enumerate(("random", "random, then promising")):
            first, best = np.exp(np.mean(np.log(np.concatenate([f[i] for f in found])), axis=0))
            rows.append([name, way, f"{first:.2f}", f"{best:.2f}"])
    columns = ["kernel", "profiled", "the first", f"the best of the first {MEASURED}"]
    print("Time over the fastest, geometric mean over unseen problems\n")
    print(markdown(columns, rows))
    measured = [f"after {n}" for n in SHOWN]
    print(markdown(["kernel", "errors learned from", *measured, "worst"], searches))


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
        known, unseen = self.problems(seed)
        count = PRESETS["quick"].random_configs + PRESETS["quick"].guided_configs
        plan = plan_configurations(self.kernel, known, count, seed)
        both = self.run(plan, np.random.default_rng(seed))
        models = [self.train(rows, seed) for rows in (both, self.profile(seed))]
        return [np.array([self.rank(model, p) for p in unseen]) for model in models]

    def problems(self, seed: int) -> tuple[list[Problem], list[Problem]]:
        """Return the problems to profile and the others."""
        count = PRESETS["quick"].train_problems
        problems = self.kernel.training_problems(count + UNSEEN, seed)
        return problems[:count], problems[count:]

    def profile(self, seed: int) -> list[Measurement]:
        """Return the runs that a campaign trains on: random ones, then promising ones."""
        preset, rng = PRESETS["quick"], np.random.default_rng(seed)
        known, _ = self.problems(seed)
        first = self.run(plan_configurations(self.kernel, known, preset.random_configs, seed), rng)
        guide = self.train(first, seed)
        promising = {p: self.promising(guide, p, preset.guided_configs, rng) for p in known}
        return first + self.run(promising, rng)

    def search(self, seed: int) -> np.ndarray:
        """Return the best times of searches over the fastest: (problem, way, `SHOWN`)."""
        profiled = self.profile(seed)
        model, found = self.train(profiled, seed), []
        for problem in self.problems(seed)[1]:
            space = self.kernel.space(problem)
            prior = prior_from_predictor(model, problem, space, self.device)
            pool = space.sample_indices(min(len(space), TIMED), np.random.default_rng(0))
            fastest = self.times(self.truth, problem, pool).min()
            for others in (profiled, []):
                rng, times = np.random.default_rng(seed), list[float]()
                searcher = make_searcher(
                    "surrogate", space, Objective.TIME, seed, prior, problem, self.device, others
                )
                while len(times) < MEASURED:
                    (m,) = self.run({problem: searcher.ask(1)}, rng)
                    searcher.tell([m])
                    index = np.array([space.index(m.config)])
                    times.append(self.times(self.truth, problem, index)[0] / fastest)
                found.append(np.minimum.accumulate(times)[np.array(SHOWN) - 1])
        return np.array(found).reshape(-1, 2, len(SHOWN))

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
        """Return predicted milliseconds of the configurations in ``pool``."""
        space = self.kernel.space(problem)
        return predictor.predict_space(problem, space, self.device, pool)["time_ms"].to_numpy()


if __name__ == "__main__":
    main()
