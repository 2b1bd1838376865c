"""Plans beside public reports of AMD's MI300X: time per output token.

    python benchmarks/plan_reports.py CASES

CASES holds ``planned_beside_measured.jsonl`` (public reports, each with its label, and what an
earlier plan said) and ``models/``. Times are those of the formulas alone: no deployment on these
systems was learned from, and no table of another maker's GPU is read.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from machine import heading, markdown

from foretune.collect import local_device
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.describe.catalog import find_system
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout, Workload
from foretune.plan.describe.model_catalog import describe_model
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.latency_formulas import formula_latencies

SYSTEMS = ("mi300x", "mi325x", "mi355x")
MODELS = {"gpt-oss-120b": "openai/gpt-oss-120b"}
"""Names in the reports -> names of the catalog."""
_TPOT = re.compile(r"tpot ([\d.]+)")
_EXPERTS = re.compile(r"\+(\w+) experts")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    cases = parser.parse_args().cases
    timers = StepTimerFactory(tables=None)
    cells = []
    for report in reports(cases):
        latencies = formula_latencies(analytic_times([deployment(report, cases)], timers))
        planned = float(latencies["tpot_ms"].iloc[0])
        measured = float(_TPOT.search(report["measured"])[1])  # type: ignore[index]
        ratios = [f"{value / measured:.2f}" for value in (report["tpot"], planned)]
        cells.append([report["label"], f"{measured:.1f}", f"{planned:.1f}", *ratios])
    print(heading("Plans beside public reports", local_device("cpu")))
    names = (
        "report",
        "measured, ms",
        "planned, ms",
        "earlier plan / measured",
        "planned / measured",
    )
    print(markdown(names, cells))


def reports(cases: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the reports of one GPU of `SYSTEMS` with a time per output token."""
    text = (cases / "planned_beside_measured.jsonl").read_text(encoding="utf-8")
    for line in text.splitlines():
        report = json.loads(line)
        if report["sys"] in SYSTEMS and _TPOT.search(report["measured"]):
            yield report


def deployment(report: Mapping[str, Any], cases: Path) -> Deployment:
    """Return the deployment of a report on one GPU."""
    weights, cache = report["fmt"].split(", ")
    experts = _EXPERTS.search(weights)
    return Deployment(
        model=model_of(report["model"], cases),
        system=find_system(report["sys"]),
        backend="vllm",
        layout=Layout(),
        formats=Formats(
            weights=weights.split("+")[0],
            kv=cache.removesuffix(" cache"),
            moe=experts[1] if experts else "",
        ),
        workload=Workload(isl=report["isl"], osl=report["osl"]),
        concurrency=report["conc"],
    )


def model_of(name: str, cases: Path) -> ModelDescription:
    """Return the model of a report: of the catalog, or a folder of the cases."""
    folder = cases / "models" / name
    return describe_model(str(folder) if folder.exists() else MODELS.get(name, name))


if __name__ == "__main__":
    main()
