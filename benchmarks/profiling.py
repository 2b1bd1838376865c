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
from foretune.search.searcher import Prior
from foretune.space import Configuration
from foretune.tune import PRESETS
from foretune.tune.campaign.campaign import GUIDED_POOL_SIZE

PRESET = PRESETS["quick"]
KERNELS = ["matmul", "quantized_matvec", "softmax"]
NOISE = 0.02
"""Standard deviation of the logarithm of a time."""
N_UNSEEN = 4
"""Problems that are not profiled."""
N_RANKED = 4000
"""Configurations of an unseen problem that a predictor ranks."""
N_MEASURED = 10
"""Measurements of an unseen problem: the first ones of a ranking, or those of a search."""
N_TIMED = 60_000
"""Configurations among which the fastest of a problem is taken."""
SHOWN = (1, 3, 5, N_MEASURED)
"""Numbers of measurements after which searches are shown."""
PROFILES = ("random", "random, then promising")
ERRORS_LEARNED_FROM = ("profiled and own runs", "own runs")

Plan = dict[Problem, list[Configuration]]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*", default=KERNELS)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    ranking_rows = []
    search_rows = []
    for name in options.kernels:
        machine = Machine(get_kernel(name))
        ranking_rows += _ranking_rows(name, machine, options.seeds)
        search_rows += _search_rows(name, machine, options.seeds)

    print("Time over the fastest, geometric mean over unseen problems\n")
    columns = ["kernel", "profiled", "the first", f"the best of the first {N_MEASURED}"]
    print(markdown(columns, ranking_rows))
    measured = [f"after {n}" for n in SHOWN]
    print(markdown(["kernel", "errors learned from", *measured, "worst"], search_rows))


def _ranking_rows(name: str, machine: "Machine", n_seeds: int) -> list[list[str]]:
    """Return a row per way of profiling."""
    ratios_of_seeds = [machine.compare(seed) for seed in range(n_seeds)]
    rows = []
    for i, profile in enumerate(PROFILES):
        ratios = np.concatenate([ratios_of_profiles[i] for ratios_of_profiles in ratios_of_seeds])
        first, best = np.exp(np.mean(np.log(ratios), axis=0))
        rows.append([name, profile, f"{first:.2f}", f"{best:.2f}"])
    return rows


def _search_rows(name: str, machine: "Machine", n_seeds: int) -> list[list[str]]:
    """Return a row per way of learning the predictor's errors."""
    ratios = np.concatenate([machine.search(seed) for seed in range(n_seeds)])
    log_ratios = np.log(ratios)
    rows = []
    for i, learned_from in enumerate(ERRORS_LEARNED_FROM):
        mean_ratios = np.exp(log_ratios[:, i].mean(axis=0))
        worst = np.exp(log_ratios[:, i, -1].max())
        cells = [f"{ratio:.3f}" for ratio in mean_ratios]
        rows.append([name, learned_from, *cells, f"{worst:.2f}"])
    return rows


class Machine:
    """A kernel whose times are those of its shipped predictor."""

    def __init__(self, kernel: Kernel) -> None:
        (folder,) = (SHIPPED / kernel.name).iterdir()
        self.kernel = kernel
        self.truth = Predictor.load(folder)

        # The device on which the predictor was trained.
        newest_run = self.truth.measured_runs().iloc[-1]
        specs = newest_run.filter(like="device.").dropna()
        specs = specs.rename(lambda column: column.removeprefix("device."))
        self.device = Device(str(newest_run["device"]), "cpu", "", specs.astype(float).to_dict())

    def problems(self, seed: int) -> tuple[list[Problem], list[Problem]]:
        """Return the problems to profile and the others."""
        n_profiled = PRESET.train_problems
        problems = self.kernel.training_problems(n_profiled + N_UNSEEN, seed)
        return problems[:n_profiled], problems[n_profiled:]

    def compare(self, seed: int) -> list[np.ndarray]:
        """Return, per way of profiling, unseen problems' times over the fastest: (problem, 2)."""
        profiled, unseen = self.problems(seed)
        n_configs = PRESET.random_configs + PRESET.guided_configs
        plan = plan_configurations(self.kernel, profiled, n_configs, seed)
        random_runs = self.run(plan, np.random.default_rng(seed))
        models = [self.train(random_runs, seed), self.train(self.profile(seed), seed)]
        return [np.array([self.rank(model, problem) for problem in unseen]) for model in models]

    def profile(self, seed: int) -> list[Measurement]:
        """Return the runs that a campaign trains on: random ones, then promising ones."""
        rng = np.random.default_rng(seed)
        profiled, _ = self.problems(seed)
        plan = plan_configurations(self.kernel, profiled, PRESET.random_configs, seed)
        random_runs = self.run(plan, rng)
        guide = self.train(random_runs, seed)
        promising = {
            problem: self.promising(guide, problem, PRESET.guided_configs, rng)
            for problem in profiled
        }
        return random_runs + self.run(promising, rng)

    def search(self, seed: int) -> np.ndarray:
        """Return best times of searches over the fastest: (problem, way, number of `SHOWN`)."""
        profiled_runs = self.profile(seed)
        predictor = self.train(profiled_runs, seed)
        _, unseen = self.problems(seed)
        ratios = []
        for problem in unseen:
            space = self.kernel.space(problem)
            prior = prior_from_predictor(predictor, problem, space, self.device)
            n_timed = min(len(space), N_TIMED)
            timed = space.sample_indices(n_timed, np.random.default_rng(0))
            fastest_ms = self.times(self.truth, problem, timed).min()
            for other_runs in (profiled_runs, []):
                best_ms = self._searched(problem, prior, other_runs, seed)
                ratios.append(best_ms[np.array(SHOWN) - 1] / fastest_ms)
        return np.array(ratios).reshape(-1, len(ERRORS_LEARNED_FROM), len(SHOWN))

    def _searched(
        self, problem: Problem, prior: Prior | None, other_runs: list[Measurement], seed: int
    ) -> np.ndarray:
        """Return the best time, without noise, after each measurement of a search."""
        space = self.kernel.space(problem)
        rng = np.random.default_rng(seed)
        searcher = make_searcher(
            "surrogate",
            space,
            Objective.TIME,
            seed=seed,
            prior=prior,
            problem=problem,
            device=self.device,
            other_measurements=other_runs,
        )
        times_ms = []
        for _ in range(N_MEASURED):
            (measurement,) = self.run({problem: searcher.ask(1)}, rng)
            searcher.tell([measurement])
            index = np.array([space.index(measurement.config)])
            times_ms.append(self.times(self.truth, problem, index)[0])
        return np.minimum.accumulate(times_ms)

    def run(self, plan: Plan, rng: np.random.Generator) -> list[Measurement]:
        """Return the measurements of a plan."""
        measurements = []
        for problem, configs in plan.items():
            space = self.kernel.space(problem)
            indices = np.array([space.index(config) for config in configs])
            noise = np.exp(rng.normal(0, NOISE, len(configs)))
            time_ms = self.times(self.truth, problem, indices) * noise
            measurements += [
                Measurement(
                    kernel=self.kernel.name,
                    problem=problem,
                    config=config,
                    device=self.device.name,
                    status=Status.OK,
                    time_ms=float(measured_ms),
                )
                for config, measured_ms in zip(configs, time_ms, strict=True)
            ]
        return measurements

    def train(self, measurements: list[Measurement], seed: int) -> Predictor:
        """Return a predictor of these measurements."""
        table = from_measurements(measurements, self.device)
        return Predictor(targets=("time_ms",), seed=seed, kernel=self.kernel).fit(table)

    def promising(
        self, guide: Predictor, problem: Problem, count: int, rng: np.random.Generator
    ) -> list[Configuration]:
        """Return the configurations of a random pool that a predictor expects to be fastest."""
        space = self.kernel.space(problem)
        pool = space.sample_indices(GUIDED_POOL_SIZE, rng)
        fastest_first = np.argsort(self.times(guide, problem, pool))
        return [space[int(index)] for index in pool[fastest_first[:count]]]

    def rank(self, model: Predictor, problem: Problem) -> tuple[float, float]:
        """Return the time of the first and of the best of the first, over the fastest."""
        pool = self.kernel.space(problem).sample_indices(N_RANKED, np.random.default_rng(0))
        time_ms = self.times(self.truth, problem, pool)
        order = np.argsort(self.times(model, problem, pool))
        ratios = time_ms[order] / time_ms.min()
        return ratios[0], ratios[:N_MEASURED].min()

    def times(self, predictor: Predictor, problem: Problem, indices: np.ndarray) -> np.ndarray:
        """Return predicted milliseconds of the configurations at ``indices``."""
        space = self.kernel.space(problem)
        predicted = predictor.predict_space(problem, space, self.device, indices)
        return predicted["time_ms"].to_numpy()


if __name__ == "__main__":
    main()
