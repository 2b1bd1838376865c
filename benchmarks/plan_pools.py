"""What do prompts and answers on different kinds of GPUs save?

Run: ``python benchmarks/plan_pools.py`` (needs aiconfigurator-core, the extra ``llm``).

Llama-2-70b in 16 bits on 64 GPUs: A100, H100 or both, at the prices and in the spirit of Splitwise
(Patel et al., ISCA 2024, arXiv:2311.18677: a machine of eight H100 costs 2.16 times as much as one
of A100, and draws 1.75 times the power). The cheapest deployment of each kind under limits is
printed. The last column compares clusters of equal power, as their main result does: 70 machines
of A100 with separate pools against 40 of H100 with one.
"""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
from machine import markdown

from foretune.plan import (
    Formats,
    Plan,
    PlanRequest,
    Requirements,
    System,
    Workload,
    describe_model,
    find_system,
    plan,
)
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables

MODEL = "meta-llama/Llama-2-70b-hf"
USD_PER_GPU_HOUR = {"h100_sxm": 38.0 / 8, "a100_sxm": 17.6 / 8}
"""Prices of table 1 of the paper, per GPU of a machine with eight."""
LOADS = {
    "conversation": Workload(1020, 129),
    "coding": Workload(1500, 13),
    "long answers": Workload(500, 2000),
}
"""Lengths; the first two are medians of the paper's traces."""
LIMITS = Requirements(goal="cost", ttft_ms=1000.0, tpot_ms=60.0)
GPUS = 64
SAME_POWER = {"a100_sxm": 70, "h100_sxm": 40}
"""Machines that draw the same power, as the paper counts."""
HEADINGS = ("load", "prompts on", "answers on", "tokens/s per GPU", "USD per million tokens")


def main() -> None:
    """Print the cheapest deployment of each kind, by load."""
    timers = StepTimerFactory(find_tables())
    systems = tuple(
        replace(find_system(name), price_per_hour=usd) for name, usd in USD_PER_GPU_HOUR.items()
    )
    rows = []
    for load, workload in LOADS.items():
        made = _planned(workload, systems, timers)
        cheapest = dict(_cheapest(made))
        for (reading, decoding), row in cheapest.items():
            per_gpu = f"{row['tokens_per_s_per_gpu']:.0f}"
            usd = f"{row['usd_per_million_tokens']:.2f}"
            rows.append([load, reading or "the same", decoding, per_gpu, usd])
        gain = _gain_at_equal_power(cheapest)
        print(f"{load}: A100 with pools against H100 without, at equal power: {gain:.2f} x")
    print(markdown(HEADINGS, rows))


def _planned(workload: Workload, systems: tuple[System, ...], timers: StepTimerFactory) -> Plan:
    """Return the plan of one kind of requests."""
    request = PlanRequest(
        model=describe_model(MODEL),
        systems=systems,
        gpus=GPUS,
        workload=workload,
        formats=(Formats(),),
        pools=True,
        requirements=LIMITS,
    )
    return plan(request, timers)


def _cheapest(made: Plan) -> Iterator[tuple[tuple[str, str], "pd.Series"]]:
    """Yield the GPUs for prompts (empty with one pool) and answers, and the cheapest plan."""
    for kind, group in made.feasible.groupby(["prefill_system", "system"]):
        yield kind, group.loc[group["usd_per_million_tokens"].idxmin()]


def _gain_at_equal_power(cheapest: dict[tuple[str, str], "pd.Series"]) -> float:
    """Return the throughput of A100 with pools over that of H100 without, at equal power."""
    pools = cheapest["a100_sxm", "a100_sxm"]["tokens_per_s_per_gpu"] * SAME_POWER["a100_sxm"]
    one_pool = cheapest["", "h100_sxm"]["tokens_per_s_per_gpu"] * SAME_POWER["h100_sxm"]
    return float(pools / one_pool)


if __name__ == "__main__":
    main()
