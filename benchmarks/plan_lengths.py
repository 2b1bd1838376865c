"""What does a plan gain from a histogram of lengths, beside the mean lengths?

Run: ``python benchmarks/plan_lengths.py [--chosen]``; operators come from aiconfigurator-core.

The simulated engine serves requests whose lengths are drawn from four histograms that are made
here: two (``--chosen``) on which the formulas were chosen, and two that are reported. The plan's
formulas predict the means of the same figures, from the mean lengths and from the histogram.

The second table has the requests that run at once when memory is full: as planned, over those that
are simulated with twice as many in flight as the plan from the mean lengths says.
"""

import argparse
from dataclasses import replace

import numpy as np
import pandas as pd
from machine import heading, markdown

from foretune.collect import local_device
from foretune.plan import Formats, Layout, Workload, describe_model, find_system
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.describe.lengths import LengthMix
from foretune.plan.engine.requests import Requests
from foretune.plan.serve.candidates import predict
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.simulation import _GroupSimulator

SERVED = (
    ("meta-llama/Llama-3.1-8B", "l40s", Layout(), Formats("bf16", kv="bf16")),
    ("Qwen/Qwen3-32B", "h100_sxm", Layout(), Formats("fp8", kv="fp8")),
    ("openai/gpt-oss-120b", "h100_sxm", Layout(tp=2, moe_tp=2), Formats("bf16", moe="mxfp4")),
)
COLUMNS = {"TPOT": "tpot_ms", "TTFT": "ttft_ms", "tokens/s": "tokens_per_s_per_gpu"}
"""Figure -> column of a plan."""
LOADS = (8, 32)
DRAWN = 5000
"""Requests of a histogram that is drawn from a distribution."""
TURNS = 12
"""Simulated requests per request in flight."""
MIN_REQUESTS = 400


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chosen", action="store_true", help="the histograms of the choice")
    chosen = parser.parse_args().chosen
    timers = StepTimerFactory(find_tables())
    print(heading("Histograms of lengths", local_device("cpu")))

    figures = []
    fits = []
    for name, mix in (chosen_mixes() if chosen else reported_mixes()).items():
        for model, system, layout, formats in SERVED:
            deployment = Deployment(
                model=describe_model(model),
                system=find_system(system),
                backend="vllm",
                layout=layout,
                formats=formats,
                workload=Workload.of_mix(mix),
                concurrency=1,
            )
            for load in LOADS:
                if load <= deployment.max_requests:
                    at_load = replace(deployment, concurrency=load)
                    figures.append({"mix": name, **_figures(at_load, timers)})
            fits.append({"mix": name, **_requests_that_fit(deployment, timers)})
    _print_figures(pd.DataFrame(figures))
    _print_fits(pd.DataFrame(fits))


def chosen_mixes() -> dict[str, LengthMix]:
    """Return the histograms on which the formulas were chosen."""
    return {
        "questions and documents": LengthMix.from_counts([512, 12_000], [256, 400], [0.7, 0.3]),
        "conversations": _lognormal(isl=(1020, 1.0), osl=(129, 0.9), seed=1),
    }


def reported_mixes() -> dict[str, LengthMix]:
    """Return histograms that nothing was chosen on."""
    short = _lognormal(isl=(300, 0.8), osl=(60, 0.7), seed=2)
    reasoning = _lognormal(isl=(400, 0.9), osl=(2500, 0.8), seed=3)
    return {
        "code completions": _lognormal(isl=(1500, 1.1), osl=(40, 1.2), seed=4),
        "chats, some with reasoning": LengthMix.from_counts(
            short.isl + reasoning.isl,
            short.osl + reasoning.osl,
            [0.7 * share for share in short.shares] + [0.3 * share for share in reasoning.shares],
        ),
    }


def _lognormal(isl: tuple[float, float], osl: tuple[float, float], seed: int) -> LengthMix:
    """Return lengths around medians; the second numbers are deviations of the logarithms."""
    rng = np.random.default_rng(seed)
    prompts = np.exp(rng.normal(np.log(isl[0]), isl[1], DRAWN))
    answers = np.exp(rng.normal(np.log(osl[0]), osl[1], DRAWN))
    return LengthMix.from_counts(
        np.clip(prompts, 8, 32_000).astype(int).tolist(),
        np.clip(answers, 2, 8_000).astype(int).tolist(),
        [1.0] * DRAWN,
    )


def _figures(deployment: Deployment, timers: StepTimerFactory) -> dict[str, float]:
    """Return what a plan says over what is simulated: of the mean lengths, and of the histogram."""
    equal = replace(deployment, workload=replace(deployment.workload, mix=None))
    planned = predict([equal, deployment], timers)
    served = _simulated(deployment, timers)
    figures = {}
    for name, column in COLUMNS.items():
        mean, histogram = planned[column].tolist()
        figures[f"{name}.mean"] = mean / served[name]
        figures[f"{name}.histogram"] = histogram / served[name]
    return figures


def _simulated(deployment: Deployment, timers: StepTimerFactory) -> dict[str, float]:
    """Return means over simulated requests, with the deployment's requests in flight."""
    in_flight = int(deployment.concurrency)
    count = max(TURNS * in_flight, MIN_REQUESTS)
    requests = Requests.in_flight_of(deployment.workload, count, in_flight=in_flight)
    table = _GroupSimulator(deployment, timers).run(requests)

    # Neither the first nor the last requests: the engine is filling up, and emptying.
    settled = table.iloc[in_flight : len(table) - in_flight]
    further_tokens = settled["osl"] - 1
    answer_ms = settled["last_ms"] - settled["first_ms"]
    request_ms = settled["last_ms"] - settled["arrived_ms"]
    seconds = float(request_ms.sum()) / in_flight / 1e3
    return {
        "TPOT": float(answer_ms.sum() / further_tokens.sum()),
        "TTFT": float(settled["ttft_ms"].mean()),
        "tokens/s": float(settled["osl"].sum()) / seconds / deployment.gpus,
        "running": in_flight * float(answer_ms.sum() / request_ms.sum()),
    }


def _requests_that_fit(deployment: Deployment, timers: StepTimerFactory) -> dict[str, float]:
    """Return the requests that run at once when memory is full: simulated, and planned."""
    equal = replace(deployment, workload=replace(deployment.workload, mix=None))
    too_many = replace(deployment, concurrency=2 * equal.max_requests)
    return {
        "simulated": _simulated(too_many, timers)["running"],
        "mean": float(equal.max_requests),
        "histogram": float(deployment.max_requests),
    }


def _print_figures(table: pd.DataFrame) -> None:
    """Print how far off both plans are: the mean error, and the mean ratio."""
    rows = []
    for name, group in table.groupby("mix", sort=False):
        row = [str(name), str(len(group))]
        for figure in COLUMNS:
            for lengths in ("mean", "histogram"):
                ratio = group[f"{figure}.{lengths}"]
                error = 100 * np.abs(ratio - 1.0).mean()
                row.append(f"{error:.1f} ({ratio.mean():.2f})")
        rows.append(row)
    headings = [f"{figure}, {kind}" for figure in COLUMNS for kind in ("mean lengths", "histogram")]
    print(markdown(["error in % (ratio)", "plans", *headings], rows))


def _print_fits(table: pd.DataFrame) -> None:
    """Print the requests that fit, as simulated and as planned."""
    rows = []
    for name, group in table.groupby("mix", sort=False):
        ratios = [group[plan] / group["simulated"] for plan in ("mean", "histogram")]
        ranges = [f"{ratio.min():.2f} … {ratio.max():.2f}" for ratio in ratios]
        rows.append([str(name), str(len(group)), *ranges])
    print(markdown(["lengths", "plans", "mean lengths / simulated", "histogram / simulated"], rows))


if __name__ == "__main__":
    main()
