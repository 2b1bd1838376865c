"""``foretune plan serve … --verify``: checks of a plan on this machine."""

from typing import TYPE_CHECKING

from foretune.cli.output import Output, percent

if TYPE_CHECKING:
    from foretune.plan import Plan
    from foretune.plan.check.operators import OperatorCheck
    from foretune.plan.cost.tables import OperatorTables

MAX_ROWS_SHOWN = 10
OPERATOR_COLUMNS = ("operator", "share", "predicted (90 %)", "measured")


def verify_operators(
    output: Output, plan: "Plan", tables: "OperatorTables | None", backend: str
) -> "OperatorCheck":
    """Measure the operators of the two best deployments on this machine, and show them."""
    from foretune.collect.devices import local_device, local_gpus
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
