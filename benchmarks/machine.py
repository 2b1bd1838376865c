"""What every benchmark prints first: the machine and the versions; and how it prints its tables."""

import datetime
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from foretune.collect.versions import versions
from foretune.device import Device


def heading(title: str, device: Device) -> str:
    """Return a title, the machine and the versions, as Markdown."""
    specs = device.specs
    machine = (
        f"{device.name}, {device.architecture}, {specs['cores']:.0f} cores, "
        f"{specs['memory_gib']:.0f} GiB, {specs['memory_gbps']:.0f} GB/s, "
        f"{specs['fp32_gflops']:.0f} GFLOP/s fp32 (measured)"
    )
    today = datetime.date.today().isoformat()
    return f"### {title}\n\n{machine}; {platform.system()}; {versions()}; {today}\n"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, columns aligned in the source too."""
    table = [list(columns), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in table
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines) + "\n"


def search_packages() -> str:
    """Return the versions of the searchers' packages."""
    said = []
    for name in ("optuna", "cmaes", "kernel_tuner", "smac"):
        try:
            said.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            said.append(f"no {name}")
    return ", ".join(said)
