"""Plans of training against published runs: step times, ranks, memory, and best layouts.

Prints, per source of published runs, the median error of predicted step times: of the formulas as
they are; with the fitted constants; with the source's own ``slower`` (in sample: what the formulas
miss whatever that constant); of rooflines instead of measured operators; and of assuming 50 % of
peak. Two constants are fitted: ``exposed``, the one that makes errors within sources agree best, on
all of them; and ``slower``, per kind of software, on the one source that is marked, and tested on
the others. They are those the package ships (`SOFTWARE`). Then how well predictions rank a source's
runs, how many of them the memory formulas allow, and what the planner would choose.
``training_runs.csv`` holds the runs, typed in from:

- ``megatron-2021``: Narayanan et al., arXiv:2104.04473, table 1 (TFLOP/s per GPU, by their formula,
  recomputation included); layouts as in Megatron-LM's ``examples/sc21/run_table_1.sh``.
- ``megatron-2022``: Korthikanti et al., arXiv:2205.05198, table 5 (seconds); layouts of table 3.
- ``mosaic-…``: MosaicML LLM Foundry, ``scripts/train/benchmarking/README.md`` (Apache-2.0): FSDP,
  models of 1B parameters and more, sequences up to 16384.
- ``torchtitan``: PyTorch torchtitan, ``docs/performance.md`` (BSD-3): FSDP2 on 64 A100.
- ``bridge-…``: NVIDIA NeMo Megatron Bridge, ``docs/performance-summary-archive.md`` (Apache-2.0),
  containers 26.02 and 25.11. Dense models: nothing recomputed, gradients in bf16, as in its
  ``scripts/performance/configs``; what the two FSDP runs on GB200 and GB300 offload of activations
  is not modelled. Experts: the least recomputation that fits is assumed.

- ``zero-bubble``: Qi et al., arXiv:2401.10241, tables 3 and 4 (samples per GPU and second);
  attention and memory as in its table 1. No constant is fitted on it.

Of Frontier (Dash et al., arXiv:2312.12705) only the shares of peak are used, not the layouts, and
of "Efficient Parallelization Layouts" (Hagemann et al., arXiv:2311.05610) what its abstract says.
"""

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from machine import markdown
from scipy.optimize import minimize_scalar
from scipy.stats import spearmanr

from foretune.device import find_device, peak_rate
from foretune.plan import ModelDescription, System, describe_model, find_system
from foretune.plan.cost.memory import GIB
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.describe.huggingface import read_config
from foretune.plan.train import training_operators
from foretune.plan.train.recipe import RECOMPUTE, Recipe, TrainingLayout, TrainingTask
from foretune.plan.train.step import EXPOSED, SOFTWARE, Calibration, TimedSteps, model_flops
from foretune.plan.train.training_memory import USABLE_SHARE, training_memory
from foretune.plan.train.training_planner import BACKEND, plan_training

RUNS = Path(__file__).with_name("training_runs.csv")
GPT = {
    "1.7B": (2304, 24, 24),
    "3.6B": (3072, 32, 30),
    "7.5B": (4096, 32, 36),
    "18B": (6144, 48, 40),
    "22B": (6144, 64, 48),
    "39B": (8192, 64, 48),
    "76B": (10240, 80, 60),
    "145B": (12288, 96, 80),
    "175B": (12288, 96, 96),
    "310B": (16384, 128, 96),
    "530B": (20480, 128, 105),
    "1T": (25600, 160, 128),
    "1.5B": (2304, 24, 22),
    "6.2B": (4096, 32, 30),
    "14.6B": (5120, 40, 46),
    "28.3B": (6144, 48, 62),
}
"""Hidden width, heads, layers, as in the tables above."""
MPT = {
    "1b": (2048, 16, 24),
    "3b": (2560, 20, 32),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 56, 48),
    "70b": (8192, 64, 80),
}
LLAMA = {
    "llama-13b": (5120, 40, 40, 13824, 32000),
    "llama-2-13b": (5120, 40, 40, 13824, 32000),
    "llama-30b": (6656, 52, 60, 17920, 32000),
    "llama-65b": (8192, 64, 80, 22016, 32000),
}
"""Hidden width, heads, layers, MLP, vocabulary (arXiv:2302.13971, table 2)."""
OTHERS = {
    "llama-2-70b": "meta-llama/Llama-2-70b-hf",
    "llama-3-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.1-405b": "meta-llama/Meta-Llama-3.1-405B",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
}
SCHEDULES = ("1F1B", "interleaved", "zero bubble 1x", "zero bubble 2x")
PUBLISHED_GB = {
    "gpt-1.5B": (30, 40, 32, 59),
    "gpt-6.2B": (39, 48, 42, 70),
    "gpt-14.6B": (32, 39, 33, 51),
    "gpt-28.3B": (43, 58, 44, 74),
}
"""Memory with each of `SCHEDULES` (arXiv:2401.10241, table 4)."""
ROUGH_MFU = 0.5
PLAIN = Calibration(slowdown=1.0, exposed=EXPOSED)
FITTED_ON = {"megatron": "megatron-2021", "pytorch": "mosaic-a100-80"}
PYTORCH = ("mosaic", "torchtitan")
"""Sources of which kind; the others are Megatron-LM's."""


@dataclass(frozen=True)
class Run:
    """One published run.

    Attributes:
        source: Where it was published.
        model, system: The model and the GPU.
        task, recipe: Batch, sequence length, layout and formats.
        step_s: Published seconds per step, or computed from the published rate.
    """

    source: str
    model: ModelDescription
    system: System
    task: TrainingTask
    recipe: Recipe
    step_s: float

    def timed(self, clocks: StepTimerFactory) -> TimedSteps:
        """Return its operators' times."""
        clock = clocks(self.system, BACKEND)
        return TimedSteps(self.model, self.system, [self.recipe], self.task, clock)

    @property
    def software(self) -> str:
        """Which kind of software ran it."""
        return "pytorch" if self.source.startswith(PYTORCH) else "megatron"

    @property
    def question(self) -> tuple[object, ...]:
        """What its recipe answers."""
        return self.model, self.system.name, self.task, self.recipe.layout.gpus

    @property
    def rough_s(self) -> float:
        """Seconds per step at half of the peak rate."""
        return self.step_s * self.mfu / ROUGH_MFU

    @property
    def mfu(self) -> float:
        """Published model FLOPs utilisation."""
        rate = peak_rate(self.task.precision, self.system.device.specs)
        peak = 1e9 * float(rate) * self.recipe.layout.gpus
        return model_flops(self.model, self.task) / (peak * self.step_s)

    @property
    def fits(self) -> bool:
        """Whether the run fits memory by our formulas."""
        return _fits(self.model, self.system, self.task, self.recipe)


@dataclass(frozen=True)
class Timed:
    """Published runs whose operators were looked up."""

    runs: Sequence[Run]
    steps: Sequence[TimedSteps]

    @classmethod
    def of(cls, runs: Sequence[Run], clocks: StepTimerFactory) -> "Timed":
        """Return ``runs`` with their times."""
        return cls(runs, [run.timed(clocks) for run in runs])

    def predicted(self, calibration: Calibration) -> np.ndarray:
        """Return our seconds per step."""
        return np.array([t.parts(calibration)[0]["step_ms"] / 1e3 for t in self.steps])

    @property
    def published(self) -> np.ndarray:
        """The published seconds per step."""
        return np.array([run.step_s for run in self.runs])

    def where(self, wanted: Callable[[Run], bool]) -> "Timed":
        """Return some of them."""
        kept = [i for i, run in enumerate(self.runs) if wanted(run)]
        return Timed([self.runs[i] for i in kept], [self.steps[i] for i in kept])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=Path, help="folder of measured operators")
    parser.add_argument("--no-plans", action="store_true", help="leave out the planner's choices")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tables = find_tables(arguments.operators)
    clocks = StepTimerFactory(tables)
    runs = read_runs(RUNS)
    everything = Timed.of(runs, clocks)
    rooflines = Timed.of(runs, StepTimerFactory(None))
    exposed = fit_exposed(everything.where(lambda run: run.source != "zero-bubble"))
    fitted = {kind: fit(_of(everything, source), exposed) for kind, source in FITTED_ON.items()}
    result: dict[str, Any] = {
        "fitted": {kind: vars(constants) for kind, constants in fitted.items()},
        "shipped": {kind: vars(constants) for kind, constants in SOFTWARE.items()},
    }
    result["errors"] = {
        source + " (fitted on)" * (source in FITTED_ON.values()): errors(
            everything, rooflines, source, fitted
        )
        for source in dict.fromkeys(run.source for run in runs)
    }
    experts = [run for run in runs if run.source == "bridge-experts"]
    with patch.object(training_operators, "MAX_TABLE_TOKENS", float("inf")):
        beyond = Timed.of(experts, clocks)
    result["experts beyond the tables"] = _median(
        beyond.predicted(fitted["megatron"]), beyond.published
    )
    result["pairs"] = _pairs(everything)
    result["schedules"] = _schedules(_of(everything, "zero-bubble"))
    if not arguments.no_plans:
        result["choices"] = [_choice(run, clocks) for run in _one_of_each(runs)]
        result["Frontier"] = _frontier(clocks)
        result["micro-batch of LLaMA"] = _layouts_paper(clocks)
    if arguments.json:
        json.dump(result, sys.stdout)
        print()
    else:
        _print(result)


def read_runs(path: Path) -> list[Run]:
    """Return the published runs of a file."""
    with path.open(encoding="utf-8") as file:
        return [_run(row) for row in csv.DictReader(file)]


def fit_exposed(everything: Timed) -> float:
    """Return the share of exchanges between replicas with which sources are at one in themselves.

    How much slower than its tables each kind of software is does not matter to it.
    """
    sources = np.array([run.source for run in everything.runs])

    def spread(exposed: float) -> float:
        logs = np.log(everything.predicted(Calibration(1.0, exposed)) / everything.published)
        groups = [logs[sources == source] for source in np.unique(sources)]
        return float(sum(np.mean(np.abs(group - np.median(group))) for group in groups))

    return float(minimize_scalar(spread, bounds=(0.0, 1.0), method="bounded").x)


def fit(timed: Timed, exposed: float) -> Calibration:
    """Return the constants of least mean absolute log error, of which ``exposed`` is known."""

    def loss(slower: float) -> float:
        predicted = timed.predicted(Calibration(slower, exposed))
        return float(np.mean(np.abs(np.log(predicted / timed.published))))

    return Calibration(float(minimize_scalar(loss, bounds=(0.7, 1.6), method="bounded").x), exposed)


def errors(
    everything: Timed, rooflines: Timed, source: str, fitted: Mapping[str, Calibration]
) -> dict[str, float]:
    """Return median errors of step times, and what else the tables show of one source."""
    own = _of(everything, source)
    published = own.published
    ours = own.predicted(fitted[own.runs[0].software])
    utilisation = np.array([run.mfu for run in own.runs])
    plain = _of(rooflines, source)
    itself = fit(own, fitted["megatron"].exposed)
    return {
        "runs": len(own.runs),
        "fit in memory": sum(run.fits for run in own.runs),
        "published MFU": float(np.median(utilisation)),
        "as they are": _median(own.predicted(PLAIN), published),
        "constants": _median(ours, published),
        "bias": float(np.median(ours / published) - 1),
        "p90": float(np.quantile(np.abs(ours / published - 1), 0.9)),
        "own slower": itself.slowdown,
        "with it": _median(own.predicted(itself), published),
        "roofline": _median(plain.predicted(PLAIN), published),
        "half of peak": _median(np.array([run.rough_s for run in own.runs]), published),
        "rank": float(spearmanr(utilisation * published / ours, utilisation).statistic),
    }


def _of(timed: Timed, source: str) -> Timed:
    return timed.where(lambda run: run.source == source)


def _pairs(everything: Timed) -> dict[str, int]:
    """Return of how many pairs of recipes for the same task we say rightly which is faster."""
    ours = everything.predicted(SOFTWARE["megatron"])
    published = everything.published
    right = total = 0
    for i, j in combinations(range(len(everything.runs)), 2):
        one = everything.runs[i]
        other = everything.runs[j]
        if one.question == other.question and published[i] != published[j]:
            total += 1
            right += int((ours[i] < ours[j]) == (published[i] < published[j]))
    return {"right": right, "of": total}


def _schedules(own: Timed) -> list[dict[str, str]]:
    """Return throughput over that of one forward, one backward, and memory: ours / published."""
    ours = own.predicted(SOFTWARE["megatron"])
    plain: dict[object, tuple[float, float]] = {}
    rows: dict[tuple[str, int], dict[str, str]] = {}
    for run, mine in zip(own.runs, ours, strict=True):  # each task's plain schedule comes first
        layout = run.recipe.layout
        which = layout.zero_bubble + 1 if layout.zero_bubble else int(layout.chunks > 1)
        one, theirs = plain.setdefault(run.question, (mine, run.step_s))
        gb = training_memory(run.model, run.recipe, run.task).total / 1e9
        row = rows.setdefault(
            (run.model.name, which),
            {
                "model": run.model.name,
                "schedule": SCHEDULES[which],
                "GB": f"{gb:.0f} / {PUBLISHED_GB[run.model.name][which]}",
            },
        )
        ratio = f"{one / mine:.2f} / {theirs / run.step_s:.2f}"
        row[("few", "more", "many")[len(row) - 3] + " micro-batches"] = ratio
    return list(rows.values())


def _median(predicted: np.ndarray, measured: np.ndarray) -> float:
    return float(np.median(np.abs(predicted / measured - 1)))


def _run(row: dict[str, Any]) -> Run:
    model = _model(row["model"])
    system = _system(row["system"])
    degrees = ("tp", "pp", "cp", "ep", "chunks", "zero_bubble", "gpus")
    numbers = {k: int(row[k] or 0) for k in degrees}
    gpus = numbers.pop("gpus")
    replicas = gpus // (numbers["tp"] * numbers["pp"] * numbers["cp"])
    task = TrainingTask(
        int(row["batch"]),
        int(row["sequence"]),
        row["precision"],
        row["attention"],
        row["gradients"],
        row["overlap"] == "yes",
    )
    recipe = Recipe(
        TrainingLayout(dp=replicas, **numbers),
        int(row["micro_batch"]),
        int(row["zero"]),
        sequence_parallel=row["sequence_parallel"] == "yes",
    )
    if row["recompute"] == "least":
        choices = [replace(recipe, recompute=r) for r in RECOMPUTE]
        recipe = next((c for c in choices if _fits(model, system, task, c)), choices[-1])
    else:
        recipe = replace(recipe, recompute=row["recompute"])
    return Run(row["source"], model, system, task, recipe, _seconds(row, model, task, gpus))


def _seconds(row: dict[str, str], model: ModelDescription, task: TrainingTask, gpus: int) -> float:
    if row["step_s"]:
        return float(row["step_s"])
    if row["tokens_per_s_per_gpu"]:
        return task.tokens / (float(row["tokens_per_s_per_gpu"]) * gpus)
    h = model.hidden
    layers = model.layers
    s = task.sequence
    flops = 96 * task.tokens * layers * h**2 * (1 + s / (6 * h) + model.vocab / (16 * layers * h))
    return flops / (float(row["tflops"]) * 1e12 * gpus)


def _fits(model: ModelDescription, system: System, task: TrainingTask, recipe: Recipe) -> bool:
    return training_memory(model, recipe, task).total <= USABLE_SHARE * system.memory_gib * GIB


@cache
def _model(name: str) -> ModelDescription:
    if name in OTHERS:
        return describe_model(OTHERS[name])
    if name in LLAMA:
        hidden, heads, layers, mlp, vocab = LLAMA[name]
        kind = "llama"
        tied = False
    else:
        family, _, size = name.partition("-")
        hidden, heads, layers = (GPT if family == "gpt" else MPT)[size]
        kind = "gpt_neox"
        tied = True
        mlp = 4 * hidden
        vocab = 51200 if family == "gpt" else 50368
    config = {
        "model_type": kind,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "intermediate_size": mlp,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }
    return read_config(config, name)


@cache
def _system(name: str) -> System:
    if name == "a100_sxm_40gb":
        device = find_device("NVIDIA A100-SXM4-40GB")
        return replace(find_system("a100_sxm"), device=device, memory_gib=40.0)
    if name == "frontier":
        # Eight dies per node, four 25 GB/s adapters (OLCF Frontier user guide); 50 GB/s between
        # dies of different modules.
        device = find_device("AMD Instinct MI250X")
        return replace(
            System.from_device(device, 8, "mi250x"), intra_node_gbps=50.0, inter_node_gbps=12.5
        )
    return find_system(name)


def _one_of_each(runs: Sequence[Run]) -> list[Run]:
    """Return the fastest run of every task whose authors chose among many layouts."""
    best: dict[tuple[object, ...], Run] = {}
    for run in runs:
        if run.source in ("megatron-2022", "bridge-dense"):
            known = best.setdefault(run.question, run)
            best[run.question] = min(known, run, key=lambda each: each.step_s)
    return list(best.values())


def _choice(run: Run, clocks: StepTimerFactory) -> dict[str, object]:
    """Return what the planner would choose, and how far behind it thinks the published layout."""
    gpus = run.recipe.layout.gpus
    start = time.perf_counter()
    plan = plan_training(run.model, run.system, gpus, run.task, clocks)
    best = plan.best
    theirs = run.timed(clocks).parts(SOFTWARE["megatron"])[0]["step_ms"]
    return {
        "run": f"{run.model.name}, {gpus} × {run.system.name}, {run.task.precision}",
        "theirs": f"{run.recipe.layout} micro {run.recipe.micro_batch} {run.recipe.recompute}",
        "ours": f"{best['layout']} micro {best['micro_batch']} {best['recompute']}, "
        f"ZeRO {best['zero']}",
        "theirs behind ours, as predicted": round(float(theirs / best["step_ms"] - 1), 3),
        "seconds to plan": round(time.perf_counter() - start, 1),
    }


def _frontier(clocks: StepTimerFactory) -> list[dict[str, object]]:
    """Return the best share of peak predicted on Frontier beside the published one."""
    rows = []
    for size, gpus, batch, published in (
        ("22B", 64, 512, 0.3838),
        ("175B", 1024, 1024, 0.3614),
        ("1T", 3072, 3072, 0.3196),
    ):
        task = TrainingTask(batch, 2048)
        plan = plan_training(_model(f"gpt-{size}"), _system("frontier"), gpus, task, clocks)
        rows.append({"model": size, "published": published, "hfu": float(plan.best["hfu"])})
    return rows


def _layouts_paper(clocks: StepTimerFactory) -> list[dict[str, object]]:
    """Return the best micro-batch where the paper recommends 1, and the MFU where it states it."""
    rows = []
    for name, gpus, published in (
        ("llama-13b", 64, 0.705),
        ("llama-30b", 256, np.nan),
        ("llama-65b", 128, np.nan),
    ):
        plan = plan_training(
            _model(name), _system("a100_sxm"), gpus, TrainingTask(2048, 2048), clocks
        )
        table = plan.candidates[plan.candidates["zero"] == 1]  # as in the published runs
        best = table.iloc[0]
        rows.append(
            {
                "model": name,
                "layout": f"tp{best['tp']} pp{best['pp']} mb{best['micro_batch']} "
                f"{best['recompute']}",
                "mfu": float(best["mfu"]),
                "published": published,
            }
        )
    return rows


def _print(result: dict[str, Any]) -> None:
    for name in ("fitted", "shipped"):
        print(f"{name}: {json.dumps(result[name])}")
    print()
    errors_of: dict[str, dict[str, float]] = result["errors"]
    names = list(next(iter(errors_of.values())))
    rows = [
        [
            source,
            *(
                f"{v:.2f}"
                if n in ("rank", "own slower")
                else v
                if isinstance(v, int)
                else f"{100 * v:.1f} %"
                for n, v in values.items()
            ),
        ]
        for source, values in errors_of.items()
    ]
    print(markdown(["source", *names], [[str(cell) for cell in row] for row in rows]))
    beyond = result["experts beyond the tables"]
    print(f"\nexperts looked up beyond the tables: {100 * beyond:.1f} %")
    pairs = result["pairs"]
    print(
        f"\nof {pairs['of']} pairs of recipes for one task {pairs['right']} are ordered as measured"
    )
    for name in ("schedules", "choices", "Frontier", "micro-batch of LLaMA"):
        lines = result.get(name)
        if lines:
            cells = [[_cell(value) for value in line.values()] for line in lines]
            print(f"\n{name}\n\n{markdown(list(lines[0]), cells)}", end="")


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if value == value else "–"


if __name__ == "__main__":
    main()
