"""``foretune plan fleet``: the cheapest mix of GPUs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options, plan_options
from foretune.cli.output import Output
from foretune.errors import UsageError
from foretune.support.console import progress_bar
from foretune.values import percent

if TYPE_CHECKING:
    from foretune.plan.fleet.capacity import Demand
    from foretune.plan.fleet.mix import Fleet, Share

NOTES = (
    "rates are for Poisson arrivals, with nine in ten requests within the limits",
    "requests of different lengths on one instance are assumed to share its time",
)
REQUESTS = typer.Option(..., help="CSV or Parquet file with columns isl, osl and requests_per_s.")
GPUS_PER_INSTANCE = typer.Option("1,2,4,8", help="GPUs that can be rented together.")
LIMITS = ("ttft", "tpot", "accuracy")
LIMIT = typer.Option(
    [],
    help="ttft=MS, tpot=MS, or accuracy=0.99 (minimum share of quality that formats keep). "
    "Repeatable.",
)
AVAILABLE = typer.Option([], help="Maximum GPUs of a system, like h100_sxm=8 (repeatable).")


def fleet(
    context: typer.Context,
    model: str = plan_options.MODEL,
    requests: Path = REQUESTS,
    systems: str = typer.Option("", help="Like h100_sxm,l40s. Default: all that have a price."),
    gpus_per_instance: str = GPUS_PER_INSTANCE,
    available: list[str] = AVAILABLE,
    prices: Path = plan_options.PRICES,
    backend: str = plan_options.BACKEND,
    operators: Path = plan_options.OPERATORS,
    limit: list[str] = LIMIT,
    power_kw: float | None = typer.Option(None, help="Maximum kilowatts of the site."),
) -> None:
    """Choose the cheapest mix of GPUs that serves all requests, and assign requests to them.

    The file of requests has a row per pair of lengths. A row 1024,256,5 means:
    five requests per second with 1024 input and 256 output tokens.
    """
    from foretune.plan import describe_model
    from foretune.plan.describe.catalog import resolve_system
    from foretune.plan.fleet import capacity
    from foretune.plan.fleet.mix import Limits, cheapest_fleet, single_fleets

    # What is asked.
    plan_options.check_engine(backend)
    requirements = plan_options.parse_limits(limit, known=LIMITS)
    prices_by_system = plan_options.read_prices(prices)
    names = [name.strip() for name in systems.split(",") if name.strip()]
    names = list(dict.fromkeys(names)) or list(prices_by_system)
    chosen = [resolve_system(name, prices_by_system) for name in names]
    limits = Limits(_available(available, [system.name for system in chosen]), _max_watts(power_kw))
    sizes = _sizes(gpus_per_instance)
    demands = capacity.read_requests(requests)
    described = describe_model(model)
    timers, _ = plan_options.load_timers(operators)

    # The instances that can be rented, and the rates that each sustains.
    output = Output(options.root_options(context).as_json)
    with progress_bar() as progress:
        progress.start("predicting instances", len(chosen))
        instances = capacity.instance_types(
            described,
            chosen,
            sizes=sizes,
            demands=demands,
            timers=timers,
            requirements=requirements,
            backend=backend,
            on_system=progress.advance,
        )

    # The cheapest mix of them, beside the cheapest fleet of each system alone.
    per_s = [demand.per_s for demand in demands]
    mix = cheapest_fleet(instances, per_s, limits)
    single = single_fleets(instances, per_s, limits)
    single_costs = {
        system.name: single[system.name].usd_per_hour if system.name in single else None
        for system in chosen
    }

    _show(output, f"{described.name}, {backend}", demands, mix)
    for line in _sentences(mix, single_costs):
        output.say(line)
    output.result(_to_json(demands, mix, single_costs))


def _max_watts(power_kw: float | None) -> float:
    """Parse ``--power-kw``; without it, power is not limited."""
    if power_kw is None:
        return float("inf")
    if not power_kw > 0:
        raise UsageError(f"--power-kw {power_kw:g} must be above 0")
    return 1e3 * power_kw


def _sizes(text: str) -> list[int]:
    """Parse ``--gpus-per-instance``, ascending."""
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError as e:
        raise UsageError(f"--gpus-per-instance {text} is not of the form 1,2,4,8") from e
    for size in sizes:
        options.require_positive_int(size, "--gpus-per-instance")
    return sizes


def _available(texts: Sequence[str], systems: Sequence[str]) -> dict[str, int]:
    """Parse ``--available``: system -> maximum GPUs."""
    from foretune.plan.describe.catalog import resolve_system

    max_gpus = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not (equals and number.strip().isdigit()):
            raise UsageError(f"--available {text} is not of the form h100_sxm=8")
        system = resolve_system(name.strip()).name
        if system not in systems:
            raise UsageError(f"--available {text}: {system} is not among {', '.join(systems)}")
        max_gpus[system] = int(number)
    return max_gpus


def _show(output: Output, title: str, demands: Sequence["Demand"], mix: "Fleet") -> None:
    """Print what to rent, and which instances serve which requests."""
    numbered = list(enumerate(mix.shares, start=1))
    rented = [
        [
            str(number),
            str(share.count),
            f"{share.kind.gpus} × {share.kind.system}",
            str(share.kind.layout),
            str(share.kind.formats),
            percent(share.utilization),
            f"{share.count * share.kind.usd_per_hour:.2f}",
        ]
        for number, share in numbered
    ]
    columns = ("#", "rent", "instance", "layout", "formats", "busy", "USD/h")
    output.table(f"{title}: what to rent", columns, rented)
    output.say("")

    served = []
    for i, demand in enumerate(demands):
        servers = [
            f"#{number} {percent(share.served[i])}"
            for number, share in numbered
            if share.served[i] > 0
        ]
        lengths = [str(demand.workload.isl), str(demand.workload.osl)]
        served.append([*lengths, f"{demand.per_s:g}", ", ".join(servers)])
    headings = ("isl", "osl", "requests/s", "served by")
    output.table("what serves which requests", headings, served)
    output.say("")


def _sentences(mix: "Fleet", single_costs: Mapping[str, float | None]) -> list[str]:
    """Return what the mix costs, what it saves beside one system alone, and how sure that is."""
    gpus = ", ".join(f"{count} × {system}" for system, count in mix.gpus.items())
    lines = [
        f"{mix.usd_per_hour:.2f} USD per hour for {gpus}; {mix.power_w / 1e3:.1f} kW provisioned"
    ]
    cheapest_first = sorted(single_costs, key=lambda system: single_costs[system] or math.inf)
    for system in cheapest_first:
        cost = single_costs[system]
        if cost is None:
            lines.append(f"{system} alone: not within the limits")
        else:
            saved = percent(1.0 - mix.usd_per_hour / cost)
            lines.append(f"{system} alone: {cost:.2f} USD per hour, the mix saves {saved}")
    if mix.optimality_gap > 0:
        lines.append(
            f"not proven optimal: a mix may exist that costs {percent(mix.optimality_gap)} less"
        )
    return lines + [f"note: {note}" for note in NOTES]


def _to_json(
    demands: Sequence["Demand"], mix: "Fleet", single_costs: Mapping[str, float | None]
) -> dict[str, Any]:
    known_costs = [cost for cost in single_costs.values() if cost is not None]
    return {
        "usd_per_hour": mix.usd_per_hour,
        "power_w": mix.power_w,
        "gpus": mix.gpus,
        "instances": [_instance_to_json(share, demands) for share in mix.shares],
        "single_usd_per_hour": dict(single_costs),
        "saved": 1.0 - mix.usd_per_hour / min(known_costs) if known_costs else None,
        "gap": mix.optimality_gap,
        "notes": list(NOTES),
    }


def _instance_to_json(share: "Share", demands: Sequence["Demand"]) -> dict[str, Any]:
    """Return one kind of instance, and the part of each demand that it serves."""
    serves = []
    for i, demand in enumerate(demands):
        if share.served[i] > 0:
            serves.append(
                {
                    "isl": demand.workload.isl,
                    "osl": demand.workload.osl,
                    "requests_per_s": share.served[i] * demand.per_s,
                    "most_per_s": share.kind.rates[i],
                    "in_flight": share.kind.in_flight[i],
                }
            )
    return {
        "system": share.kind.system,
        "gpus": share.kind.gpus,
        "count": share.count,
        "layout": str(share.kind.layout),
        "replicas": share.kind.replicas,
        "formats": str(share.kind.formats),
        "usd_per_hour": share.kind.usd_per_hour,
        "busy": share.utilization,
        "serves": serves,
    }
