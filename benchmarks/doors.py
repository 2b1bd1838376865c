"""What does Foretune gain inside other tuners? Each runs with and without it.

    python benchmarks/doors.py kernel-tuner SPACES [--only NAMES] [--repeats 5]
    python benchmarks/doors.py flashinfer TABLE
    HELION_BACKEND=pallas HELION_PALLAS_INTERPRET=1 python benchmarks/doors.py helion

``kernel-tuner``: Kernel Tuner's simulation mode replays the recorded spaces of SPACES (run tables)
with Foretune's strategy, two of Kernel Tuner's and random sampling. A space's share after n
evaluations is the fastest time / the fastest of the first n; the table has geometric means over
spaces and seeds.

``flashinfer``: FlashInfer's own AutoTuner tunes the three layers of TABLE (a run table of products)
that have most values of M; each value is a bucket. The recorded times replace its clock. Beside
Foretune: all tactics, random ones, and the best ones of the nearest bucket that is timed in full.
A second table adds noise to the clock: the choice by estimates beside that of the least time.

``helion``: a product of 64 × 64 matrices in interpreted Pallas, by Foretune, by Helion's own
search with little effort and at random. To the target: configurations measured, with failures,
until one is within 10 % of the fastest of all, for five seeds. The interpreter's times say nothing
about other machines.
"""

import argparse
import itertools
import json
import os
import random
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import heading, markdown
from scipy.stats import gmean
from spaces import complete_spaces

from foretune.collect import local_device
from foretune.datasets import read_runs
from foretune.search.replay.recorded import RecordedSpace
from foretune.tune.doors.kernel_tuner import KernelTunerStrategy

Bucket = tuple[int, int, int]
EVALUATIONS = (10, 20, 50, 100)
SEEDS = 5
"""Searches in Helion, each with other random configurations."""
STRATEGIES: dict[str, Callable[[], Any]] = {
    "Foretune": KernelTunerStrategy,
    "hybrid_vndx": lambda: "hybrid_vndx",
    "adaptive_tabu_greywolf": lambda: "adaptive_tabu_greywolf",
    "random_sample": lambda: "random_sample",
}


def write_cache(space: RecordedSpace, path: Path) -> None:
    """Write a recorded space as a cache file of Kernel Tuner."""
    cache = {}
    for m in space.measurements:
        time = m.time_ms if m.ok else "RuntimeFailedConfig"
        zeros = dict.fromkeys(("compile_time", "verification_time", "benchmark_time"), 0.0)
        cache[",".join(map(str, m.config.values()))] = {**m.config, "time": time, **zeros}
    content = {
        "device_name": space.device.name,
        "kernel_name": space.kernel,
        "problem_size": 1,
        "tune_params_keys": space.space.names,
        "tune_params": space.space.parameters,
        "objective": "time",
        "cache": cache,
    }
    path.write_text(json.dumps(content), encoding="utf-8")


def simulate(
    space: RecordedSpace, cache: Path, strategy: Any, seed: int, evaluations: int, **options: Any
) -> list[dict[str, Any]]:
    """Return the distinct results of Kernel Tuner's simulation mode, in their order."""
    from constraint import FunctionConstraint
    from kernel_tuner import tune_kernel

    warnings.simplefilter("ignore", UserWarning)  # the source in the call is empty
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  Kernel Tuner draws from it
    names = space.space.names
    recorded = {tuple(config.values()) for config in space.space}
    results, _ = tune_kernel(
        space.kernel,
        f"void {space.kernel}() {{}}",
        1,
        [],
        {name: list(values) for name, values in space.space.parameters.items()},
        lang="C",
        restrictions=[FunctionConstraint(lambda *values: values in recorded)],
        strategy=strategy,
        strategy_options={"max_fevals": evaluations, **options},
        seed=seed,
        simulation_mode=True,
        cache=str(cache),
        quiet=True,
    )
    return list({tuple(r[n] for n in names): r for r in reversed(results)}.values())[::-1]


def shares(space: RecordedSpace, results: list[dict[str, Any]]) -> list[float]:
    """Return the share of the optimum after each number of `EVALUATIONS`."""
    times = [np.inf if "__error__" in r else r["time"] for r in results]
    # Before anything has run, the median counts.
    usual = float(np.median(space.values))
    return [space.optimum / min([*times[:n], usual]) for n in EVALUATIONS]


def kernel_tuner(spaces: list[RecordedSpace], repeats: int) -> str:
    """Return the table of Kernel Tuner's simulation mode."""
    found: dict[str, list[list[float]]] = {name: [] for name in STRATEGIES}
    with tempfile.TemporaryDirectory() as folder:
        for space in spaces:
            cache = Path(folder, "cache.json")
            write_cache(space, cache)
            for name, make in STRATEGIES.items():
                runs = (simulate(space, cache, make(), s, max(EVALUATIONS)) for s in range(repeats))
                found[name] += [shares(space, results) for results in runs]
    rows = [
        [
            name,
            *(f"{gmean(column):.3f}" for column in zip(*runs, strict=True)),
            f"{min(run[-1] for run in runs):.3f}",
        ]
        for name, runs in found.items()
    ]
    return markdown(["strategy", *map(str, EVALUATIONS), f"worst at {EVALUATIONS[-1]}"], rows)


def layers_of(table: Path, count: int = 3) -> list[dict[Bucket, dict[Any, float]]]:
    """Return layers: (M, K, N) -> tactic -> milliseconds; those with most values of M."""
    runs = read_runs(table)
    runs = runs[runs["status"] == "ok"]
    sizes = ["problem.M", "problem.K", "problem.N"]
    others = [c for c in runs if c.startswith("problem.") and c != "problem.M"]
    knobs = [c for c in runs if c.startswith("config.")]
    groups = sorted(
        (g for _, g in runs.groupby(others, dropna=False)), key=lambda g: -g["problem.M"].nunique()
    )
    found = []
    for group in groups[:count]:
        buckets: dict[Bucket, dict[Any, float]] = {}
        rows = zip(group[sizes].to_numpy(), group[knobs].to_numpy(), group["time_ms"], strict=True)
        for size, tactic, time in rows:
            m, k, n = map(int, size)
            buckets.setdefault((m, k, n), {})[tuple(map(int, tactic))] = float(time)
        found.append(buckets)
    return found


class RecordedFlashInfer:
    """FlashInfer's AutoTuner on recorded times; `timed` has those that it asked for.

    ``noise`` is the standard deviation of the clock's log errors.
    """

    def __init__(
        self, layers: list[dict[Bucket, dict[Any, float]]], noise: float = 0.0, seed: int = 0
    ) -> None:
        import torch
        from flashinfer.autotuner import autotuner

        self.layers = layers
        self.timed: dict[Bucket, dict[Any, float]] = {}
        self.tool = autotuner
        torch.cuda.is_current_stream_capturing = lambda: False
        times = {k: v for layer in layers for k, v in layer.items()}
        timed = self.timed
        rng = np.random.default_rng(seed)

        def time_of(tuner: Any, runner: Any, inputs: Any, tactic: Any, *args: Any, **k: Any) -> Any:
            size = (*inputs[0].shape, inputs[1].shape[1])
            tactic = next(iter(times[size])) if tactic == -1 else tactic
            time = times[size][tactic] * np.exp(noise * rng.standard_normal())
            return timed.setdefault(size, {}).setdefault(tactic, time)

        class Recorded(autotuner.TunableRunner):  # type: ignore[misc, name-defined]
            def get_valid_tactics(self, inputs: Any, profile: Any) -> list[Any]:
                return list(times[(*inputs[0].shape, inputs[1].shape[1])])

            def forward(self, inputs: Any, tactic: int = -1, **kwargs: Any) -> Any:
                raise NotImplementedError

        autotuner.AutoTuner._profile_single_kernel = time_of
        self.runner = Recorded()

    @property
    def count(self) -> int:
        """Number of times that FlashInfer asked for."""
        return sum(map(len, self.timed.values()))

    def tune(self) -> dict[Bucket, float]:
        """Tune all layers; return bucket -> recorded milliseconds of FlashInfer's choice."""
        return {size: self.of(size)[tactic] for size, tactic in self.choices().items()}

    def of(self, size: Bucket) -> dict[Any, float]:
        """Return the recorded times of a bucket."""
        return next(layer[size] for layer in self.layers if size in layer)

    def choices(self) -> dict[Bucket, Any]:
        """Tune all layers; return bucket -> FlashInfer's choice."""
        import torch

        self.timed.clear()
        found = {}
        tuner = self.tool.AutoTuner()
        tuner.is_tuning_mode = True
        for layer in self.layers:
            _, k, n = next(iter(layer))
            buckets = tuple(sorted(m for m, _, _ in layer))
            config = self.tool.TuningConfig(
                dynamic_tensor_specs=(
                    self.tool.DynamicTensorSpec((0,), (0,), buckets, lambda m: m),
                )
            )
            for m in buckets:
                inputs = [torch.empty(m, k, device="meta"), torch.empty(k, n, device="meta")]
                _, tactic = tuner.choose_one("gemm", [self.runner], config, inputs)
                found[m, k, n] = next(iter(layer[m, k, n])) if tactic == -1 else tactic
        return found


def cut_by(tool: RecordedFlashInfer, budget: int, seed: int | None) -> Callable[[], None]:
    """Replace FlashInfer's filter by random choice, or with no seed the nearest bucket's best.

    The default and the same two buckets are timed as with Foretune. Returns what undoes it.
    """
    from flashinfer.tactics_blocklist import TacticsBlocklist

    rng = np.random.default_rng(seed)
    automatic = tool.tool.AutoTuner
    real = TacticsBlocklist.filter
    profiles = automatic._generate_optimization_profiles
    prepare = automatic._prepare_input_tensors
    rows = [0]

    def generate(*args: Any, **named: Any) -> list[Any]:
        found = profiles(*args, **named)
        return [found[-1], *found[:-1]]

    def remember(tuner: Any, profile: Any, inputs: Any) -> Any:
        rows[0] = profile.get_opt_shapes()[0][0]
        return prepare(tuner, profile, inputs)

    def choose(blocklist: Any, custom_op: str, runner: Any, tactics: list[Any]) -> list[Any]:
        if len(tool.timed) < 2:
            return tactics
        full = list(tool.timed)[:2]
        near = tool.timed[min(full, key=lambda size: abs(np.log(size[0] / rows[0])))]
        others = tactics[1:]
        if seed is None:
            ranked = sorted(others, key=lambda t: near.get(t, np.inf))
        else:
            ranked = [others[i] for i in rng.permutation(len(others))]
        return [tactics[0], *ranked[: budget - 1]]

    def undo() -> None:
        TacticsBlocklist.filter, automatic._generate_optimization_profiles = real, profiles
        automatic._prepare_input_tensors = prepare

    TacticsBlocklist.filter = choose
    automatic._generate_optimization_profiles = generate
    automatic._prepare_input_tensors = remember
    return undo


def flashinfer(table: Path, budgets: Sequence[int] = (2, 3, 4, 6)) -> str:
    """Return the table of FlashInfer's AutoTuner, alone and cut, over all orders of the layers."""
    from foretune.tune.doors.flashinfer import MIN_BUDGET, patch_flashinfer

    found: dict[tuple[str, int], list[tuple[int, list[float], int]]] = {}
    for seed, order in enumerate(itertools.permutations(layers_of(table))):
        tool = RecordedFlashInfer(list(order))
        alone = tool.tune()
        default = {size: next(iter(tool.of(size).values())) for size in alone}
        found.setdefault(("all tactics", 0), []).append((tool.count, [1.0] * len(alone), 0))
        for budget in budgets:
            for name in ("Foretune", "best of the nearest", "random"):
                if name == "Foretune" and budget < MIN_BUDGET:
                    continue
                if name == "Foretune":
                    undo = patch_flashinfer(budget, store=False)
                else:
                    undo = cut_by(tool, budget, seed if name == "random" else None)
                ours = tool.tune()
                undo()
                kept = [alone[size] / ours[size] for size in alone]
                below = sum(ours[size] > default[size] for size in alone)
                found.setdefault((name, budget), []).append((tool.count, kept, below))
    rows = []
    for (name, budget), runs in sorted(found.items(), key=lambda item: item[0][1]):
        kept = [gmean(shares) for _, shares, _ in runs]
        every = [share for _, shares, _ in runs for share in shares]
        near = np.mean([share >= 0.95 for share in every])
        rows.append(
            [
                name,
                str(budget or ""),
                f"{np.mean([n for n, *_ in runs]):.0f}",
                f"{gmean(every):.3f} ({min(kept):.3f}–{max(kept):.3f})",
                f"{near:.0%}",
                f"{min(every):.2f}",
                str(sum(below for *_, below in runs)),
            ]
        )
    titles = ["tactics", "budget", "timed", "kept", "within 5 %", "worst bucket", "below default"]
    return markdown(titles, rows)


def flashinfer_noise(table: Path, levels: Sequence[float] = (0.01, 0.02, 0.05)) -> str:
    """Return the table of choices by a noisy clock, and how often two runs choose the same."""
    from foretune.tune.doors.flashinfer import TacticTimes, patch_flashinfer

    estimates = TacticTimes.estimates
    rows = list[list[str]]()
    for noise in levels:
        for name, choose in (
            ("least time", lambda times, bucket, timed: timed),
            ("Foretune", estimates),
        ):
            TacticTimes.estimates = choose  # type: ignore[assignment, method-assign]
            every = list[float]()
            same = list[bool]()
            for order in itertools.permutations(layers_of(table)):
                runs = []
                for seed in (0, 1):
                    tool = RecordedFlashInfer(list(order), noise, seed)
                    undo = patch_flashinfer(4, store=False)
                    runs.append(tool.choices())
                    undo()
                    every += [min(tool.of(s).values()) / tool.of(s)[t] for s, t in runs[-1].items()]
                same += [runs[0][size] == runs[1][size] for size in runs[0]]
            rows.append([f"{noise:.0%}", name, f"{gmean(every):.4f}", f"{np.mean(same):.0%}"])
    TacticTimes.estimates = estimates  # type: ignore[method-assign]
    return markdown(["noise", "chosen by", "kept", "two runs agree"], rows)


def helion(budget: int = 16) -> str:
    """Return the table of Helion's searches on one interpreted product."""
    import helion as tool
    import torch
    from helion.autotuner.base_search import BaseSearch, PopulationBasedSearch
    from helion_product import product

    from foretune.tune.doors.helion import helion_autotuner

    measured: list[float] = []
    real = BaseSearch.benchmark_batch

    def counted(search: Any, configs: Any, **named: Any) -> Any:
        results = real(search, configs, **named)
        measured.extend(result.perf for result in results)
        return results

    os.environ["HELION_SKIP_CACHE"] = "1"
    BaseSearch.benchmark_batch = counted
    # On a TPU it compares the finalists by their device times; in the interpreter it takes hours.
    PopulationBasedSearch._final_pick_supported = lambda search: False
    runs: dict[str, list[list[float]]] = {}
    x = torch.randn(64, 64)
    y = torch.randn(64, 64)
    for seed in range(SEEDS):
        for name, options in (
            ("Foretune", {"autotuner_fn": helion_autotuner(budget)}),
            ("Helion's, quick", {"autotune_effort": "quick"}),
            ("random", {"autotuner_fn": helion_autotuner(budget, "random")}),
        ):
            measured.clear()
            tool.kernel(product, static_shapes=True, autotune_random_seed=seed, **options)(x, y)
            runs.setdefault(name, []).append(list(measured))
    target = 1.1 * min(min(times) for found in runs.values() for times in found)
    rows = []
    for name, found in runs.items():
        within = [next((i for i, t in enumerate(times, 1) if t <= target), 0) for times in found]
        rows.append(
            [
                name,
                f"{np.mean([len(times) for times in found]):.0f}",
                f"{np.mean([np.isinf(times).sum() for times in found]):.0f}",
                ", ".join(str(n) if n else "never" for n in within),
                f"{np.median([times[0] for times in found]):.3g}",
                f"{np.median([min(times) for times in found]):.3g}",
            ]
        )
    titles = ["search", "measured", "failed", "to the target", "default, ms", "best, ms"]
    return markdown(titles, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", choices=["kernel-tuner", "flashinfer", "helion"])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(heading(f"Foretune in {options.tool}", local_device("cpu")))
    if options.tool == "helion":
        print(helion())
        return
    if options.data is None:
        parser.error(f"{options.tool} needs recorded times: name their folder or table")
    if options.tool == "flashinfer":
        print(flashinfer(options.data), flashinfer_noise(options.data), sep="\n\n")
        return
    spaces = complete_spaces(options.data, options.only)
    print(f"{', '.join(s.name for s in spaces)}; {options.repeats} seeds\n")
    print(kernel_tuner(spaces, options.repeats))


if __name__ == "__main__":
    main()
