"""What a plan keeps outside of its GPUs (``--offload``), and over what it returns (``--link``)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.errors import UsageError

if TYPE_CHECKING:
    from foretune.plan import System
    from foretune.plan.describe.layout import Offload

OFFLOAD_KEYS = ("weights", "cache", "disk")
"""Keys of ``--offload``; a number alone is ``weights``."""
LINKS = ("host", "disk")
"""Keys of ``--link``."""
HERE = "here"
"""The value of ``--link host`` that measures this machine's link."""
PLAUSIBLE_GBPS = (0.01, 2000.0)
"""Rates in other units are outside."""

OFFLOAD = typer.Option(
    [],
    help="Maximum GiB of weights per GPU in host memory (vllm, sglang); cache=GIB: host "
    "memory per GPU for the cache of --prefix; disk=GIB: files per GPU behind that cache (sglang) "
    "(repeatable).",
)
LINK = typer.Option(
    [],
    help="Rate of a link that --offload uses: host=GB/S, or host=here to measure this machine's "
    "GPU; disk=GB/S, or disk=FOLDER to measure a folder of this machine (repeatable).",
)
HOST_LINK = typer.Option(
    [],
    help="Rate of the link to host memory: host=GB/S, or host=here to measure this machine's GPU.",
)


def parse_offload(texts: Sequence[str]) -> "Offload":
    """Parse ``--offload``: GIB, which is weights=GIB, or another key of `OFFLOAD_KEYS`."""
    from foretune.plan.describe.layout import Offload

    named = [text if "=" in text else f"weights={text}" for text in texts]
    gib = options.parse_numbers(named, "--offload", OFFLOAD_KEYS)
    return Offload(*(gib.get(key, 0.0) for key in OFFLOAD_KEYS))


def with_links(
    systems: "Sequence[System]", texts: Sequence[str], known: Sequence[str] = LINKS
) -> "tuple[System, ...]":
    """Return the systems with the rates of ``--link``; those of this machine are measured now."""
    given = options.parse_key_values(texts, "--link", form="LINK=RATE", known=known)
    if "host" in given:
        host_gbps = _host_gbps(given["host"])
        systems = [replace(system, host_copy_gbps=host_gbps) for system in systems]
    if "disk" in given:
        disk_gbps, folder = _disk(given["disk"])
        systems = [replace(s, disk_gbps=disk_gbps, disk_folder=folder) for s in systems]
    return tuple(systems)


def _host_gbps(text: str) -> float:
    from foretune.collect.link_rates import measure_host_copy

    return measure_host_copy().gbps if text == HERE else _rate(text, "host")


def _disk(text: str) -> tuple[float, str]:
    """Return the rate of a disk, and the folder of this machine if one is given."""
    from foretune.collect.link_rates import measure_disk

    folder = Path(text).expanduser()
    if not folder.is_dir():
        return _rate(text, "disk"), ""
    return measure_disk(folder).gbps, str(folder.resolve())


def _rate(text: str, link: str) -> float:
    """Return a rate in GB/s that a link may have."""
    try:
        gbps = float(text)
    except ValueError:
        what = "a rate or a folder" if link == "disk" else f"a rate or '{HERE}'"
        raise UsageError(f"--link {link}={text} is not {what}: give GB/s, like 3.5") from None
    least, largest = PLAUSIBLE_GBPS
    if not least <= gbps <= largest:
        raise UsageError(f"--link {link}={text}: give GB/s, {least:g} to {largest:g}")
    return gbps
