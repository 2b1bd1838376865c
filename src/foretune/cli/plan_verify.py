"""``foretune plan serve … --verify``: checks of a plan on this machine."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foretune.cli.output import Output, percent
from foretune.console import progress_bar

if TYPE_CHECKING:
    from foretune.plan import Plan
    from foretune.plan.check.operators import OperatorCheck
    from foretune.plan.cost.tables import OperatorTables
    from foretune.plan.serve.deployments.deployment import Deployment

MAX_ROWS_SHOWN = 10
OPERATOR_COLUMNS = ("operator", "share", "predicted (90 %)", "measured")


def verify_operators(
    output: Output, plan: "Plan", tables: "OperatorTables | None", backend: str
) -> "OperatorCheck":
    """Measure the operators of the two best deployments on this machine, and show them."""
    from foretune.collect import local_device
    from foretune.collect.devices import local_gpus
    from foretune.plan.check import operators

    rows = [row for row in (plan.best, plan.runner_up) if row is not None]
    deployments = [plan.deployment(row) for row in rows]
    device = local_device("cuda" if local_gpus() else "cpu")
    clock = operators.local_timer(device, tables, backend)
    requested = operators.request_operators(deployments)
    check = operators.verify_operators(requested, clock, planned=deployments[0].system)
    show_operators(output, check)
    return check


def show_operators(output: Output, check: "OperatorCheck") -> None:
    """Show predicted and measured times of the most expensive operators."""
    rows = [
        [
            f"{row['name']} {row['problem']} {row['format']}".strip(),
            percent(row["share"]),
            f"{row['predicted_ms']:.3g} ({row['low_ms']:.3g} … {row['high_ms']:.3g})",
            "–" if row["note"] else f"{row['measured_ms']:.3g}",
        ]
        for row in check.table.head(MAX_ROWS_SHOWN).to_dict("records")
    ]
    output.say(check.description)
    output.table("most expensive operators of a request, in ms", OPERATOR_COLUMNS, rows)
    notes = check.table["note"]
    for note, count in notes[notes != ""].value_counts().items():
        output.say(f"note: {count} not measured: {note}")
    if check.measured.empty:
        output.say("no operator was measured")
        return
    output.say(
        f"{len(check.measured)} of {len(check.table)} operators were measured, "
        f"{percent(check.measured_share)} of the time; they take {check.step_ratio:.2f} times the "
        f"predicted time, {percent(check.coverage)} are in their interval"
    )


def verify_vllm(
    output: Output, deployment: "Deployment", best: Mapping[str, Any]
) -> dict[str, Any]:
    """Serve the plan with vLLM on this machine, compare its benchmark; return it for JSON."""
    from foretune.collect.devices import local_gpus
    from foretune.plan.check.vllm_bench import check_vllm, require_vllm

    require_vllm()
    names = {gpu.name for gpu in local_gpus()}
    if deployment.system.device.name not in names:
        here = ", ".join(sorted(names)) or "no NVIDIA GPU"
        output.say(f"note: this machine has {here}, the plan is for {deployment.system.name}")
    with progress_bar() as progress:
        check = check_vllm(deployment, best, progress)
    output.table(
        "the plan, and vLLM's benchmark of it",
        ("figure", "predicted", "90 % interval", "measured"),
        [
            [
                str(row["figure"]),
                f"{row['predicted']:.4g}",
                "–" if row["inside"] is None else f"{row['low']:.4g} … {row['high']:.4g}",
                f"{row['measured']:.4g}",
            ]
            for row in check.table.to_dict("records")
        ],
    )
    return check.to_json()
