"""Plans beside public reports of servers: prints the planned over the measured of each.

    python benchmarks/plan_reports.py CASES

CASES holds ``planned_beside_measured.jsonl`` (public reports, each with its label, and what an
earlier plan said) and ``models/``. Plans are formulas over operators, without a correction by
measured deployments. Reports that state nothing measured, and models that no folder and no catalog
has, are named below the table.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from machine import heading, markdown

from foretune.collect import local_device
from foretune.errors import ForetuneError
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.describe.catalog import find_system
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout, Workload
from foretune.plan.describe.model_catalog import describe_model
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.latency_formulas import formula_latencies, tokens_per_s

ENGINES = ("sglang", "trtllm")
"""Engines that a report's label names; others are of vLLM."""
QUANTITIES = {"tpot_ms": r"tpot ([\d.]+)", "ttft_ms": r"ttft ([\d.]+)", "tok_s": r"tok/s ([\d.]+)"}
"""What reports state -> how."""
EARLIER = {"tpot_ms": "tpot", "ttft_ms": "ttft", "tok_s": "tok_s"}
"""What reports state -> the earlier plan's key."""
_EXPERTS = re.compile(r"\+(\w+) experts")
_DEGREE = re.compile(r"(tp|pp|dp|moe_tp|moe_ep)(\d+)")


@dataclass(frozen=True)
class Compared:
    """A stated quantity of a report.

    Attributes:
        label: the report.
        quantity: a key of `QUANTITIES`.
        measured: as stated.
        earlier: the earlier plan over it.
        planned: today's plan over it.
    """

    label: str
    quantity: str
    measured: float
    earlier: float
    planned: float


def main() -> None:
    """Print the table, and the median of each quantity."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--operators", type=Path, help="folder of measured operators")
    arguments = parser.parse_args()
    timers = StepTimerFactory(find_tables(arguments.operators))
    left_out: list[str] = []
    compared = list(compare(arguments.cases, timers, left_out))

    print(heading("Plans beside public reports", local_device("cpu")))
    names = ("report", "quantity", "measured", "earlier plan / measured", "planned / measured")
    cells = [
        [c.label, c.quantity, f"{c.measured:g}", f"{c.earlier:.2f}", f"{c.planned:.2f}"]
        for c in compared
    ]
    print(markdown(names, cells))
    for quantity in QUANTITIES:
        of_it = [c for c in compared if c.quantity == quantity]
        earlier = median(abs(c.earlier - 1) for c in of_it)
        planned = median(abs(c.planned - 1) for c in of_it)
        print(f"{quantity}: {len(of_it)}, median error {earlier:.0%} → {planned:.0%}")
    print(f"left out: {'; '.join(left_out)}")


def compare(cases: Path, timers: StepTimerFactory, left_out: list[str]) -> Iterator[Compared]:
    """Yield what reports state beside plans; append those that state nothing to ``left_out``."""
    text = (cases / "planned_beside_measured.jsonl").read_text(encoding="utf-8")
    for report in map(json.loads, text.splitlines()):
        stated = {
            quantity: float(match[1])
            for quantity, pattern in QUANTITIES.items()
            if (match := re.search(pattern, report["measured"]))
        }
        try:
            planned = plan(deployment(report, cases), timers) if stated else {}
        except ForetuneError as error:
            left_out.append(f"{report['label']} ({error})")
            continue
        if not stated:
            left_out.append(f"{report['label']} (nothing measured)")
        for quantity, measured in stated.items():
            yield Compared(
                report["label"],
                quantity,
                measured,
                earlier=report[EARLIER[quantity]] / measured,
                planned=planned[quantity] / measured,
            )


def plan(deployment: Deployment, timers: StepTimerFactory) -> dict[str, float]:
    """Return the planned quantities of a deployment."""
    rows = analytic_times([deployment], timers)
    latencies = formula_latencies(rows)
    throughput = tokens_per_s(
        rows["concurrency"].to_numpy(), rows["osl"].to_numpy(dtype=float), latencies
    )
    return {
        "tpot_ms": float(latencies["tpot_ms"].iloc[0]),
        "ttft_ms": float(latencies["ttft_ms"].iloc[0]),
        "tok_s": float(throughput[0]),
    }


def deployment(report: Mapping[str, Any], cases: Path) -> Deployment:
    """Return the deployment of a report."""
    weights, cache = report["fmt"].split(", ")
    experts = _EXPERTS.search(weights)
    degrees = {name: int(number) for name, number in _DEGREE.findall(report["lay"])}
    named = [engine for engine in ENGINES if engine in report["label"].lower()]
    return Deployment(
        model=model_of(report["model"], cases),
        system=find_system(report["sys"]),
        backend=named[0] if named else "vllm",
        layout=Layout(**degrees),
        formats=Formats(
            weights=weights.split("+")[0],
            kv=cache.removesuffix(" cache"),
            moe=experts[1] if experts else "",
        ),
        workload=Workload(isl=report["isl"], osl=report["osl"]),
        concurrency=report["conc"],
    )


def model_of(name: str, cases: Path) -> ModelDescription:
    """Return the model of a report: a folder of the cases, or one of the catalog."""
    folder = cases / "models" / name
    return describe_model(str(folder) if folder.exists() else name)


if __name__ == "__main__":
    main()
