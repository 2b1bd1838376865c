"""How fast plans are: every deployment on 8 GPUs in every format; prints a table.

Run: ``python benchmarks/plan_speed.py [--measured FILE]``. The first plan of a system reads its
tables; the ones after that ask for other lengths of requests, so that nothing is known already.
Operators' times come from aiconfigurator-core, else from rooflines.
"""

import argparse
import statistics
import time

from machine import heading, markdown

from foretune.collect import local_device
from foretune.plan import (
    MeasuredLatencies,
    PlanRequest,
    Workload,
    describe_model,
    find_system,
    plan,
)
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.serve.deployments.correction_cache import fit_or_load_correction

MODELS = ("meta-llama/Llama-3.1-70B", "Qwen/Qwen3-235B-A22B", "deepseek-ai/DeepSeek-V3")
SYSTEMS = ("h100_sxm", "b200_sxm")
LENGTHS = ((2048, 300), (4096, 500), (1000, 1000))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", help="as of `foretune plan`: with the correction, too")
    measured = parser.parse_args().measured
    correction = fit_or_load_correction(measured) if measured else None
    rows = []
    for system in map(find_system, SYSTEMS):
        for name in MODELS:
            for pools in (False, True):
                model = describe_model(name)
                clocks = StepTimerFactory(find_tables())
                took = []
                counts = []
                for lengths in ((4096, 512), *LENGTHS):
                    start = time.perf_counter()
                    request = PlanRequest(
                        model=model,
                        systems=(system,),
                        gpus=8,
                        workload=Workload(*lengths),
                        pools=pools,
                    )
                    made = plan(request, clocks, MeasuredLatencies(correction))
                    took.append(time.perf_counter() - start)
                    counts.append(len(made.candidates))
                later = statistics.median(took[1:])
                speed = statistics.median(c / t for c, t in zip(counts[1:], took[1:], strict=True))
                cells = (f"{took[0]:.1f}", f"{later:.2f}", f"{speed:,.0f}")
                pooled = "yes" if pools else "no"
                rows.append([name, system.name, pooled, str(counts[-1]), *cells])
    print(heading("Plans", local_device("cpu")))
    columns = ("model", "system", "pools", "candidates", "first plan, s", "later, s", "per second")
    print(markdown(columns, rows))


if __name__ == "__main__":
    main()
