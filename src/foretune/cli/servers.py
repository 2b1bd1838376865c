"""``foretune servers``: how many servers a power budget feeds, and what caps on power cost."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import Output, percent
from foretune.errors import UsageError

if TYPE_CHECKING:
    from foretune.plan.fleet import Oversubscription

HEADINGS = ("cap W", "of limit", "servers", "more", "slower", "tokens/s", "mean kW")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(servers)


def servers(
    model: str = typer.Argument(help="Hugging Face id, or a folder with its config.json."),
    system: str = typer.Option(..., help="Whose GPUs the servers have, like h100_sxm."),
    power_kw: float = typer.Option(..., help="Of the site."),
    isl: int = typer.Option(..., help="Tokens of a prompt."),
    osl: int = typer.Option(..., help="Tokens of an answer."),
    gpus: int = typer.Option(8, help="GPUs of a server."),
    host_w: float = typer.Option(412.5, help="Watts of a server besides its GPUs, per GPU."),
    ttft: float = typer.Option(float("inf"), help="Most milliseconds to the first token."),
    tpot: float = typer.Option(float("inf"), help="Most milliseconds per further token."),
    accuracy: float = typer.Option(0.0, help="Least share of quality that formats keep, 0 … 1."),
    backend: str = typer.Option("vllm", help="vllm, sglang or trtllm."),
    operators: Path = typer.Option(None, help="Folder of measured operators."),
    as_json: bool = options.JSON,
) -> None:
    """Find how many servers of the best deployment share a power budget, and under which cap.

    More servers fit than boards' limits suggest, because prompts and answers draw less, and not all
    at once; and more still under a cap, which slows each of them down.
    """
    from foretune.cli.fleet import clocks_of
    from foretune.plan import Wish, Workload, describe_model, find_system, plan
    from foretune.plan.fleet import Server, best, oversubscriptions

    for name, value in (("--gpus", gpus), ("--isl", isl), ("--osl", osl)):
        options.at_least_one(value, name)
    if not power_kw > 0 or not host_w >= 0:
        raise UsageError(f"--power-kw {power_kw:g}, --host-w {host_w:g}: power is above 0")
    described, hardware = describe_model(model), find_system(system)
    if not hardware.power_limit_w > 0:
        raise UsageError(f"{hardware.name}: nobody said what its boards draw at most")
    wish = Wish(ttft, tpot, accuracy)
    options.known_engine(backend)
    made = plan(described, hardware, gpus, Workload(isl, osl), clocks_of(operators), wish, backend)
    chosen = made.best
    server = Server.of_candidate(chosen, hardware, host_w)
    found = oversubscriptions(server, 1e3 * power_kw)
    slowest = min(tpot / chosen["tpot_ms"], ttft / chosen["ttft_ms"])
    most = best(found, slowest)
    output = Output(as_json)
    output.table(
        f"{described.name}, {gpus} × {hardware.name} each, {power_kw:g} kW",
        HEADINGS,
        [_row(one, hardware.power_limit_w) for one in found],
    )
    output.say("")
    free = found[0]
    output.say(
        f"boards' limits set aside: {free.provisioned} servers; as predicted, without a cap: "
        f"{free.servers}"
    )
    output.say(
        f"most tokens within the limits: {most.servers} servers, capped at {most.cap_w:.0f} W "
        f"per GPU: {most.tokens_per_s:.0f} tokens/s, {percent(most.more)} more servers, each "
        f"{percent(max(most.slowdown - 1.0, 0.0))} slower"
    )
    output.result(
        {
            "best": {**vars(most), "more": most.more},
            "caps": [{**vars(one), "more": one.more} for one in found],
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
        percent(one.more),
        percent(max(one.slowdown - 1.0, 0.0)),
        f"{one.tokens_per_s:.0f}",
        f"{one.mean_w / 1e3:.1f}",
    ]
