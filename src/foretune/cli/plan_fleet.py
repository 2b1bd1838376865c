"""``foretune plan fleet``: the cheapest mix of GPUs, and servers under a power budget."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options, plan_options
from foretune.cli.output import Output, percent
from foretune.console import progress_bar
from foretune.errors import UsageError

if TYPE_CHECKING:
    from foretune.plan import Requirements, System
    from foretune.plan.fleet.budget import Oversubscription
    from foretune.plan.fleet.demand import Demand
    from foretune.plan.fleet.mix import Fleet, Limits

NOTES = (
    "rates are predicted for Poisson arrivals: nine in ten requests are within the limits",
    "requests of different lengths on one instance are assumed to share its time",
)
POWER_HEADINGS = ("cap W", "of limit", "servers", "more", "slower", "tokens/s", "mean kW")
REQUESTS = typer.Option(None, help="CSV or Parquet file with columns isl, osl and requests_per_s.")
GPUS_PER_INSTANCE = typer.Option(
    "",
    help="GPUs that can be rented together. Default: 1,2,4,8; with --isl, 8.",
    show_default=False,
)
AVAILABLE = typer.Option([], help="Maximum GPUs of a system, like h100_sxm=8 (repeatable).")
ISL = typer.Option(
    None, help="Input tokens per request: fill --power-kw with servers of one system."
)


def fleet(
    context: typer.Context,
    model: str = plan_options.MODEL,
    requests: Path | None = REQUESTS,
    systems: str = typer.Option("", help="Like h100_sxm,l40s. Default: all that have a price."),
    gpus_per_instance: str = GPUS_PER_INSTANCE,
    available: list[str] = AVAILABLE,
    prices: Path = plan_options.PRICES,
    backend: str = plan_options.BACKEND,
    operators: Path = plan_options.OPERATORS,
    limit: list[str] = plan_options.LIMIT,
    power_kw: float | None = typer.Option(None, help="Maximum kilowatts of the site."),
    isl: int | None = ISL,
    osl: int | None = typer.Option(None, help="Output tokens per request, with --isl."),
) -> None:
    """Choose the cheapest mix of GPUs that serves all requests, and what serves which.

    The file of requests has a row per pair of lengths. A row 1024,256,5 means:
    five requests per second with 1024 input and 256 output tokens.

    With --isl and --osl instead, find how many servers of one system share --power-kw, and under
    which cap. GPUs draw less than their power limits and not all at once, so more servers fit than
    the limits suggest. A cap slows each server and fits even more.
    """
    from foretune.plan import find_system
    from foretune.plan.fleet.mix import Limits

    output = Output(options.root_options(context).as_json)
    plan_options.check_engine(backend)
    requirements = plan_options.parse_limits(limit)
    if power_kw is not None and not power_kw > 0:
        raise UsageError(f"--power-kw {power_kw:g} feeds nothing: give more than 0")
    if isl is not None or osl is not None:
        unused = ("requests", "available", "prices")
        options.reject_options(context, unused, "--isl and --osl plan one system, which excludes")
        server = _one_system(systems), _one_size(_sizes(gpus_per_instance or "8"))
        workload = _one_workload(isl, osl)
        _fill_power(output, model, server, workload, power_kw, backend, operators, requirements)
        return
    if requests is None:
        raise UsageError("give --requests FILE; or --isl, --osl and --power-kw")
    cost = plan_options.read_prices(prices)
    chosen = [find_system(name, cost) for name in (_names(systems) or cost)]
    watts = float("inf") if power_kw is None else 1e3 * power_kw
    limits = Limits(_available(available, [s.name for s in chosen]), watts)
    sizes = _sizes(gpus_per_instance or "1,2,4,8")
    _mix(output, model, requests, chosen, sizes, limits, backend, operators, requirements)


def _mix(
    output: Output,
    model: str,
    requests: Path,
    systems: "Sequence[System]",
    sizes: Sequence[int],
    limits: "Limits",
    backend: str,
    operators: Path | None,
    requirements: "Requirements",
) -> None:
    """Find the cheapest mix of GPUs that serves all requests."""
    from foretune.plan import describe_model
    from foretune.plan.fleet.capacity import instance_types
    from foretune.plan.fleet.demand import read_requests
    from foretune.plan.fleet.mix import cheapest_fleet, single_fleets

    demands = read_requests(requests)
    described = describe_model(model)
    clocks, _ = plan_options.load_operator_clocks(operators)
    with progress_bar() as progress:
        progress.start("predicting instances", len(systems))
        instances = instance_types(
            described, systems, sizes, demands, clocks, requirements, backend,
            on_system=progress.advance,
        )  # fmt: skip
    per_s = [demand.per_s for demand in demands]
    mix = cheapest_fleet(instances, per_s, limits)
    single = single_fleets(instances, per_s, limits)
    single_costs = {
        s.name: single[s.name].usd_per_hour if s.name in single else None for s in systems
    }
    _show(output, f"{described.name}, {backend}", demands, mix)
    for line in _sentences(mix, single_costs):
        output.say(line)
    output.result(_to_json(demands, mix, single_costs))


def _one_workload(isl: int | None, osl: int | None) -> tuple[int, int]:
    if isl is None or osl is None:
        raise UsageError("give --isl and --osl together")
    return (options.require_positive_int(isl, "--isl"), options.require_positive_int(osl, "--osl"))


def _one_system(systems: str) -> str:
    names = _names(systems)
    if len(names) != 1:
        raise UsageError("--isl and --osl plan one system: give --systems h100_sxm")
    return names[0]


def _one_size(sizes: list[int]) -> int:
    if len(sizes) != 1:
        raise UsageError("--isl and --osl plan one size of server: give --gpus-per-instance 8")
    return sizes[0]


def _fill_power(
    output: Output,
    model: str,
    server_kind: tuple[str, int],
    workload: tuple[int, int],
    power_kw: float | None,
    backend: str,
    operators: Path | None,
    requirements: "Requirements",
) -> None:
    """Find how many servers of the best deployment share a power budget, and under which cap."""
    from foretune.plan import Workload, describe_model, find_system, plan
    from foretune.plan.fleet.budget import best, oversubscriptions
    from foretune.plan.fleet.server import Server

    if power_kw is None:
        raise UsageError("--isl and --osl need --power-kw: add it")
    system, gpus = server_kind
    described, hardware = describe_model(model), find_system(system)
    if not hardware.power_limit_w > 0:
        raise UsageError(f"{hardware.name}: the power limit of its GPUs is not known")
    clocks, _ = plan_options.load_operator_clocks(operators)
    deployment_plan = plan(
        described, hardware, gpus, Workload(*workload), clocks, requirements, backend
    )
    chosen = deployment_plan.best
    server = Server.from_candidate(chosen, hardware)
    found = oversubscriptions(server, 1e3 * power_kw)
    slowest = min(
        requirements.tpot_ms / chosen["tpot_ms"], requirements.ttft_ms / chosen["ttft_ms"]
    )
    best_cap = best(found, slowest)
    output.table(
        f"{described.name}, {gpus} × {hardware.name} each, {power_kw:g} kW",
        POWER_HEADINGS,
        [_power_row(one, hardware.power_limit_w) for one in found],
    )
    output.say("")
    output.say(
        f"by the GPUs' power limits: {found[0].provisioned} servers; by predicted power, without "
        f"a cap: {found[0].servers}"
    )
    more, slower = best_cap.extra_share, max(best_cap.slowdown - 1.0, 0.0)
    output.say(
        f"most tokens within the limits: {best_cap.servers} servers, capped at "
        f"{best_cap.cap_w:.0f} W per GPU: {best_cap.tokens_per_s:.0f} tokens/s, "
        f"{percent(more)} more servers, each {percent(slower)} slower"
    )
    output.result(
        {
            "best": {**vars(best_cap), "more": best_cap.extra_share},
            "caps": [{**vars(one), "more": one.extra_share} for one in found],
            "server": {
                "formats": chosen["formats"],
                "provisioned_w": server.provisioned_w,
                "mean_w": server.mean_w,
                "tokens_per_s": server.tokens_per_s,
            },
        }
    )


def _power_row(one: "Oversubscription", limit_w: float) -> list[str]:
    return [
        f"{one.cap_w:.0f}",
        percent(one.cap_w / limit_w),
        str(one.servers),
        percent(one.extra_share),
        percent(max(one.slowdown - 1.0, 0.0)),
        f"{one.tokens_per_s:.0f}",
        f"{one.mean_w / 1e3:.1f}",
    ]


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


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
    from foretune.plan import find_system

    found = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not (equals and number.strip().isdigit()):
            raise UsageError(f"--available {text} is not of the form h100_sxm=8")
        system = find_system(name.strip()).name
        if system not in systems:
            raise UsageError(f"--available {text}: {system} is not among {', '.join(systems)}")
        found[system] = int(number)
    return found


def _show(output: Output, title: str, demands: Sequence["Demand"], mix: "Fleet") -> None:
    output.table(
        f"{title}: what to rent",
        ("#", "rent", "instance", "layout", "formats", "busy", "USD/h"),
        [
            [
                str(number),
                str(share.count),
                f"{share.kind.gpus} × {share.kind.system}",
                str(share.kind.layout),
                str(share.kind.formats),
                percent(share.utilization),
                f"{share.count * share.kind.usd_per_hour:.2f}",
            ]
            for number, share in enumerate(mix.shares, 1)
        ],
    )
    output.say("")
    output.table(
        "what serves which requests",
        ("isl", "osl", "requests/s", "served by"),
        [
            [
                str(demand.workload.isl),
                str(demand.workload.osl),
                f"{demand.per_s:g}",
                ", ".join(
                    f"#{number} {percent(share.served[i])}"
                    for number, share in enumerate(mix.shares, 1)
                    if share.served[i] > 0
                ),
            ]
            for i, demand in enumerate(demands)
        ],
    )
    output.say("")


def _sentences(mix: "Fleet", single_costs: Mapping[str, float | None]) -> list[str]:
    gpus = ", ".join(f"{count} × {system}" for system, count in mix.gpus.items())
    lines = [
        f"{mix.usd_per_hour:.2f} USD per hour for {gpus}; {mix.power_w / 1e3:.1f} kW provisioned"
    ]
    for system, cost in sorted(single_costs.items(), key=lambda item: item[1] or float("inf")):
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
    known = [cost for cost in single_costs.values() if cost is not None]
    return {
        "usd_per_hour": mix.usd_per_hour,
        "power_w": mix.power_w,
        "gpus": mix.gpus,
        "instances": [
            {
                "system": share.kind.system,
                "gpus": share.kind.gpus,
                "count": share.count,
                "layout": str(share.kind.layout),
                "replicas": share.kind.replicas,
                "formats": str(share.kind.formats),
                "usd_per_hour": share.kind.usd_per_hour,
                "busy": share.utilization,
                "serves": [
                    {
                        "isl": demand.workload.isl,
                        "osl": demand.workload.osl,
                        "requests_per_s": share.served[i] * demand.per_s,
                        "most_per_s": share.kind.rates[i],
                        "in_flight": share.kind.in_flight[i],
                    }
                    for i, demand in enumerate(demands)
                    if share.served[i] > 0
                ],
            }
            for share in mix.shares
        ],
        "single_usd_per_hour": dict(single_costs),
        "saved": 1.0 - mix.usd_per_hour / min(known) if known else None,
        "gap": mix.optimality_gap,
        "notes": list(NOTES),
    }
