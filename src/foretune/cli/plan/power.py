"""``foretune plan power``: how many servers a power budget feeds, and what caps on power cost."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import Output, percent
from foretune.cli.plan import inputs
from foretune.errors import UsageError

if TYPE_CHECKING:
    from foretune.plan.fleet import Oversubscription

HEADINGS = ("cap W", "of limit", "servers", "more", "slower", "tokens/s", "mean kW")


def power(
    model: str = inputs.MODEL,
    system: str = inputs.SYSTEM,
    power_kw: float = typer.Option(..., help="Kilowatts of the site."),
    isl: int = inputs.ISL,
    osl: int = inputs.OSL,
    gpus: int = typer.Option(8, help="GPUs per server."),
    host_w: float = typer.Option(412.5, help="Watts per GPU for the rest of the server."),
    backend: str = inputs.BACKEND,
    operators: Path = inputs.OPERATORS,
    ttft: float = inputs.TTFT,
    tpot: float = inputs.TPOT,
    accuracy: float = inputs.ACCURACY,
    as_json: bool = options.JSON,
) -> None:
    """Find how many servers of the best deployment share a power budget, and under which cap.

    More servers fit than the boards' power limits suggest: GPUs draw less, and
    not all at once. Even more fit under a cap, which slows each of them down.
    """
    from foretune.plan import Requirements, Workload, describe_model, find_system, plan
    from foretune.plan.fleet import Server, best, oversubscriptions

    for name, value in (("--gpus", gpus), ("--isl", isl), ("--osl", osl)):
        options.require_positive_int(value, name)
    if not power_kw > 0 or not host_w >= 0:
        raise UsageError(f"--power-kw {power_kw:g}, --host-w {host_w:g}: power is above 0")
    described, hardware = describe_model(model), find_system(system)
    if not hardware.power_limit_w > 0:
        raise UsageError(f"{hardware.name}: nobody said what its boards draw at most")
    requirements = Requirements(ttft, tpot, accuracy)
    inputs.check_engine(backend)
    clocks, _ = inputs.load_operator_clocks(operators)
    deployment_plan = plan(
        described, hardware, gpus, Workload(isl, osl), clocks, requirements, backend
    )
    chosen = deployment_plan.best
    server = Server.from_candidate(chosen, hardware, host_w)
    found = oversubscriptions(server, 1e3 * power_kw)
    slowest = min(tpot / chosen["tpot_ms"], ttft / chosen["ttft_ms"])
    best_cap = best(found, slowest)
    output = Output(as_json)
    output.table(
        f"{described.name}, {gpus} × {hardware.name} each, {power_kw:g} kW",
        HEADINGS,
        [_row(one, hardware.power_limit_w) for one in found],
    )
    output.say("")
    uncapped = found[0]
    output.say(
        f"boards' limits set aside: {uncapped.provisioned} servers; as predicted, without a cap: "
        f"{uncapped.servers}"
    )
    output.say(
        f"most tokens within the limits: {best_cap.servers} servers, capped at {best_cap.cap_w:.0f} W "
        f"per GPU: {best_cap.tokens_per_s:.0f} tokens/s, {percent(best_cap.extra_share)} more servers, each "
        f"{percent(max(best_cap.slowdown - 1.0, 0.0))} slower"
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


def _row(one: "Oversubscription", limit_w: float) -> list[str]:
    return [
        f"{one.cap_w:.0f}",
        percent(one.cap_w / limit_w),
        str(one.servers),
        percent(one.extra_share),
        percent(max(one.slowdown - 1.0, 0.0)),
        f"{one.tokens_per_s:.0f}",
        f"{one.mean_w / 1e3:.1f}",
    ]
