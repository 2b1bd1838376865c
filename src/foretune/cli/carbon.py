"""``--carbon G_PER_KWH``: grams of CO2 of energy that was measured or planned."""

import math
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli.output import Output
from foretune.errors import UsageError

if TYPE_CHECKING:
    from foretune.tune.results import TuneResult

MJ_PER_KWH = 3.6e9
MILLION = 1e6
CARBON = typer.Option(
    None, help="Show emissions, at this many grams of CO2 per kWh.", show_default=False
)


def check_carbon(per_kwh: float | None) -> None:
    """Raise UsageError unless ``per_kwh`` is a finite number from 0 on, or None."""
    if per_kwh is not None and not 0 <= per_kwh < math.inf:
        raise UsageError(f"--carbon {per_kwh:g}: give grams of CO2 per kWh, 0 or more")


def show_carbon(
    output: Output, per_kwh: float | None, energies_mj: dict[str, float], unit: str
) -> dict[str, Any]:
    """Print the grams for a million of each energy in millijoules; return them for the JSON."""
    if per_kwh is None:
        return {}
    grams = {name: mj * MILLION / MJ_PER_KWH * per_kwh for name, mj in energies_mj.items()}
    source = f"{per_kwh:g} g/kWh, as given"
    known = [f"{name} {g:.3g} g" for name, g in grams.items() if math.isfinite(g)]
    text = ", ".join(known) or "unknown, because their power is unknown"
    output.say(f"CO2 of a million {unit}: {text} ({source})")
    return {"carbon": {"g_per_kwh": per_kwh, "source": source, f"g_per_million_{unit}": grams}}


def launch_energies(results: "list[TuneResult]") -> dict[str, float]:
    """Return the millijoules of one launch of each problem's default and winner, if metered."""
    energies = {}
    for result in results:
        for role, contender in (("default", result.baseline), ("best", result.winner)):
            # The last measurement with a meter counts.
            energy_mj = math.nan
            for step in result.trace:
                measured_mj = step.time_ms * step.power_w
                if step.config == contender.config and math.isfinite(measured_mj):
                    energy_mj = measured_mj
            energies[f"{result.problem.shown} {role}"] = energy_mj
    return energies
