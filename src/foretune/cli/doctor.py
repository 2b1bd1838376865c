"""``foretune devices`` and ``foretune doctor``: what is here, what is missing, how to get it."""

import json

import typer

from foretune.cli import options
from foretune.cli.output import Output


def devices(
    known: bool = typer.Option(False, "--known", help="List the known devices instead."),
    ray: bool = typer.Option(False, "--ray", help="Print them for 'ray start --resources'."),
    as_json: bool = options.JSON,
) -> None:
    """List the devices of this machine, with their rates."""
    from foretune.collect import local_devices
    from foretune.collect.distributed.resource import resource_counts
    from foretune.device import known_devices

    if ray:
        print(json.dumps(resource_counts(local_devices())))
        return
    output = Output(as_json)
    found = list(known_devices().values()) if known else local_devices()
    for device in found:
        output.say(f"{device.name} ({device.kind}, {device.architecture})")
        specs = ", ".join(f"{k} {v:,.6g}" for k, v in device.specs.items())
        output.say(f"  {specs}\n  source: {device.source}")
    output.result(
        {
            "devices": [
                {"name": d.name, "kind": d.kind, "architecture": d.architecture,
                 "specs": dict(d.specs), "source": d.source}
                for d in found
            ]
        }
    )  # fmt: skip


def doctor(as_json: bool = options.JSON) -> None:
    """Check what works on this machine, and what to do about the rest."""
    from foretune.tune.doctor import examine

    output = Output(as_json)
    findings = examine()
    rows = [[f.what, "yes" if f.works else "no", f.note] for f in findings]
    output.table("foretune doctor", ("", "here", "note"), rows)
    output.result({"checks": findings})
