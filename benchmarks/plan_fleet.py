"""Fleets against published ones: prints tables, or JSON.

Run: ``python benchmarks/plan_fleet.py [--operators DIR] [--json]``.

*Mixes* (Mélange, arXiv:2404.14527): Llama-2-7b in 16 bits on one GPU each of L4, A10G, A100 and
H100, limits of 120 and 40 ms per token, chats, documents, and four of five chats. Printed are the
savings over fleets of one type, their least and most over all request rates and types, beside
those that the authors' own account gives (blog/index.md of tyler-griggs/melange-release). Not the
same: their rates were measured with the vLLM of early 2024, ours are predicted for today's from
tables of other GPUs (neither L4 nor A10 is measured in them; A10, of the same memory, stands for
A10G); their histograms are not published, ours have the published mean lengths; their limit holds
for the mean time per token, ours for nine in ten requests. Our rates are higher, so that few
requests per second need one GPU and no mix.
"""

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import markdown
from scipy.stats import lognorm

from foretune.plan import Formats, Requirements, Workload, describe_model, find_system
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.fleet.capacity import Demand, instance_types
from foretune.plan.fleet.mix import cheapest_fleet, single_fleets

MODEL = "meta-llama/Llama-2-7b-hf"
PRICES = {"l4": 0.70, "a10": 1.01, "a100_sxm": 3.67, "h100_sxm": 7.516}
"""USD per hour as in the paper's table of GPUs. Those of A10G and A100 are also in the authors'
example (melange/main.py)."""
MEANS = {"chats": (69.5, 214.5), "documents": (3016 * 1.3, 203 * 1.3)}
"""Mean tokens of prompts and answers: LMSYS-Chat-1M (arXiv:2309.11998, table 1); PubMed in words
(Cohan et al., arXiv:1804.05685, table 1), 1.3 tokens each."""
MIXED = 0.8
"""Share of chats in the mixed setting (the authors' file names say 80_20)."""
SPREAD = 1.0
"""Standard deviation of lengths, in means: assumed."""
CONTEXT = 4096
EDGES = (1, 25, 100, 250, 500, 1000, 2000, 4000)
LEAST = 0.005
"""Share of requests below which a length is left out."""
RATES = (1, 2, 4, 8, 16, 32)
PUBLISHED = {
    ("chats", 120): "15-77",
    ("chats", 40): "9-68",
    ("documents", 120): "15-33",
    ("documents", 40): "2-22",
    ("mixed", 120): "13-51",
    ("mixed", 40): "4-51",
}
"""Percent saved over fleets of one type, over rates and types."""


def histogram(setting: str) -> dict[tuple[int, int], float]:
    """Return shares of requests by tokens of prompt and answer."""
    if setting == "mixed":
        chats = histogram("chats")
        documents = histogram("documents")
        return {
            size: MIXED * chats.get(size, 0.0) + (1 - MIXED) * documents.get(size, 0.0)
            for size in {**chats, **documents}
        }
    prompts, answers = (_shares(mean) for mean in MEANS[setting])
    found = {
        (isl, osl): p * q
        for isl, p in prompts.items()
        for osl, q in answers.items()
        if isl + osl <= CONTEXT and p * q >= LEAST
    }
    total = sum(found.values())
    return {size: share / total for size, share in found.items()}


def _shares(mean: float) -> dict[int, float]:
    """Return a lognormal distribution over the middles of `EDGES`."""
    sigma = np.sqrt(np.log(1.0 + SPREAD**2))
    spread = lognorm(sigma, scale=mean / np.exp(sigma**2 / 2))
    middles = [round(np.sqrt(a * b)) for a, b in itertools.pairwise(EDGES)]
    return dict(zip(middles, np.diff(spread.cdf(EDGES)).tolist(), strict=True))


def mixes(setting: str, tpot_ms: float, clocks: StepTimerFactory) -> dict[str, Any]:
    """Return savings over all rates, and the mix at each."""
    shares = histogram(setting)
    demands = [Demand(Workload(*size), share) for size, share in shares.items()]
    kinds = instance_types(
        describe_model(MODEL),
        [find_system(name, PRICES) for name in PRICES],
        [1],
        demands,
        clocks,
        Requirements(tpot_ms=tpot_ms),
        formats=[Formats()],
    )
    rows: list[dict[str, Any]] = []
    for rate in RATES:
        per_s = [rate * share for share in shares.values()]
        mix = cheapest_fleet(kinds, per_s)
        alone = single_fleets(kinds, per_s)
        rows.append(
            {
                "rate": rate,
                "gpus": mix.gpus,
                "usd_per_hour": mix.usd_per_hour,
                "saved": {n: 1 - mix.usd_per_hour / one.usd_per_hour for n, one in alone.items()},
                "gap": mix.optimality_gap,
            }
        )
    saved = [value for row in rows for value in row["saved"].values()]
    return {
        "setting": setting,
        "tpot_ms": tpot_ms,
        "lengths": len(shares),
        "rates": rows,
        "least": min(saved),
        "most": max(saved),
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--operators", type=Path, help="folder of measured operators")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tables = find_tables(options.operators)
    clocks = StepTimerFactory(tables)
    found = [mixes(setting, tpot_ms, clocks) for setting, tpot_ms in PUBLISHED]
    if options.json:
        print(json.dumps({"mixes": found}))
        return
    _print_mixes(found)


def _print_mixes(found: Sequence[dict[str, Any]]) -> None:
    rows = [
        [
            one["setting"],
            str(one["tpot_ms"]),
            f"{100 * one['least']:.0f}-{100 * one['most']:.0f}",
            PUBLISHED[one["setting"], one["tpot_ms"]],
        ]
        for one in found
    ]
    print(markdown(["requests", "ms per token", "saved, %", "published"], rows))
    columns = ["requests/s", "mix", "USD/h", *(f"vs {n}, %" for n in PRICES)]
    for one in found:
        print(f"{one['setting']}, {one['tpot_ms']} ms per token, {one['lengths']} lengths\n")
        rows = [
            [
                str(row["rate"]),
                ", ".join(f"{count} {name}" for name, count in row["gpus"].items()),
                f"{row['usd_per_hour']:.2f}",
                *(f"{100 * row['saved'][n]:.0f}" if n in row["saved"] else "–" for n in PRICES),
            ]
            for row in one["rates"]
        ]
        print(markdown(columns, rows))


if __name__ == "__main__":
    main()
