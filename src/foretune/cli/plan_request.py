"""Parses the options of ``foretune plan serve`` into a `PlanRequest`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.cli import options, plan_options
from foretune.errors import UsageError

if TYPE_CHECKING:
    from foretune.plan import Formats, PlanRequest, Requirements, Speculation, System
    from foretune.plan.describe.layout import Offload
    from foretune.plan.engine.requests import Requests

EXAMPLE_OPTIONS = {"--system": "h100_sxm", "--gpus": 8, "--isl": 2048, "--osl": 256}
"""Values in the example that is shown if an option is missing."""
ALL_SYSTEMS = "all"
OFFLOAD_KEYS = ("weights", "cache")
"""Keys of ``--offload``; a number alone is ``weights``."""


@dataclass(frozen=True)
class RequestLengths:
    """Request lengths, from the options or else the means of a trace."""

    isl: int | None
    osl: int | None
    prefix: int
    trace: "Requests | None" = None

    @property
    def longest(self) -> int:
        """Tokens of the trace's longest request; 0 without a trace."""
        if self.trace is None:
            return 0
        return int((self.trace.isl + self.trace.osl).max())


def parse_lengths(
    path: Path | None, isl: int | None, osl: int | None, prefix: int | None
) -> RequestLengths:
    """Parse ``--trace``, ``--isl``, ``--osl`` and ``--prefix``; None is an option not given."""
    from foretune.plan.engine.requests import read_trace

    if path is None:
        return RequestLengths(isl, osl, prefix or 0)

    trace = read_trace(path)
    if isl is None:
        isl = round(trace.isl.mean())
    if osl is None:
        osl = round(trace.osl.mean())
    if prefix is None:
        prefix = int(min(trace.cached.mean(), isl - 1))
    return RequestLengths(isl, osl, prefix, trace=trace)


def check_required(model: str, values: Mapping[str, str | int | None]) -> None:
    """Raise UsageError if an option's value is missing, or a number below 1."""
    missing = ", ".join(name for name, value in values.items() if value is None)
    if missing:
        given = {name: values[name] or example for name, example in EXAMPLE_OPTIONS.items()}
        example_line = " ".join(f"{name} {value}" for name, value in given.items())
        raise UsageError(f"give {missing} too: foretune plan serve {model} {example_line}")

    for name, value in values.items():
        if isinstance(value, int):
            options.require_positive_int(value, name)


def parse_request(
    model: str,
    *,
    system: str,
    prices: Path | None,
    gpus: int,
    lengths: RequestLengths,
    backend: str,
    requirements: "Requirements",
    formats: str,
    rate: float | None,
    pools: bool,
    speculative: str,
    offload: Sequence[str],
    qualities: Path | None,
) -> "PlanRequest":
    """Return what is asked; each argument is the option of its name."""
    from foretune.plan import PlanRequest, Workload, describe_model, read_accuracy

    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(f"--rate {rate:g}: give requests per second, more than 0")
    plan_options.check_engine(backend)

    systems = _parse_systems(system, prices)
    weight_formats, caches = _parse_formats(formats, systems)
    return PlanRequest(
        model=describe_model(model),
        systems=systems,
        gpus=gpus,
        workload=Workload(isl=lengths.isl or 0, osl=lengths.osl or 0, prefix=lengths.prefix),
        engine=backend,
        requirements=requirements,
        formats=weight_formats,
        caches=caches,
        rate=rate,
        pools=pools,
        speculation=_parse_speculation(speculative),
        offload=_parse_offload(offload),
        accuracy=tuple(read_accuracy(qualities)) if qualities else None,
    )


def _parse_systems(text: str, prices: Path | None) -> "tuple[System, ...]":
    """Parse ``--system``: names joined by commas, or all."""
    from foretune.plan import known_systems, published_prices, read_prices
    from foretune.plan.describe.catalog import resolve_system

    names = [name.strip() for name in text.split(",")]
    if text == ALL_SYSTEMS:
        names = known_systems()
    price_of_system = published_prices()
    if prices is not None:
        price_of_system = price_of_system | read_prices(prices)
    return tuple(resolve_system(name, price_of_system) for name in dict.fromkeys(names))


def _parse_formats(
    text: str, systems: "Sequence[System]"
) -> "tuple[tuple[Formats, ...] | None, tuple[str, ...]]":
    """Parse ``--formats`` into formats of deployments (None: all weights) and of caches.

    ``/fp8`` alone is a cache for all weights without their own; `_default_caches` if there is none.
    """
    from foretune.plan import Formats
    from foretune.plan.describe.formats import find_format

    parts = [part.strip().partition("/") for part in text.split(",")] if text else []
    caches = tuple(
        find_format(cache, cache=True).name for weights, _, cache in parts if not weights
    )
    cache_of_weights = [(weights, cache) for weights, _, cache in parts if weights]
    if not cache_of_weights:
        return None, caches

    if caches and all(cache for _, cache in cache_of_weights):
        raise UsageError(f"--formats {text}: all weights have a cache, so leave /{caches[0]} out")
    usual_caches = caches or _default_caches(systems)
    formats = tuple(
        Formats(weights, kv=kv)
        for weights, cache in cache_of_weights
        for kv in ([cache] if cache else usual_caches)
    )
    return formats, caches


def _default_caches(systems: "Sequence[System]") -> list[str]:
    """Return the default cache formats that all GPUs support; 16 bits are always included."""
    from foretune.plan.describe.formats import DEFAULT_CACHE_FORMATS, supported

    first, *others = DEFAULT_CACHE_FORMATS
    architectures = {system.device.architecture for system in systems}
    supported_by_all = [
        kv for kv in others if all(supported(kv, name) == "native" for name in architectures)
    ]
    return [first, *supported_by_all]


def _parse_speculation(text: str) -> "Speculation | None":
    """Parse ``--speculative``: TOKENS:ACCEPTANCE[:MODEL]."""
    from foretune.plan import Speculation, describe_model

    if not text:
        return None
    drafted_text, _, rest = text.partition(":")
    acceptance_text, _, draft_model = rest.partition(":")
    try:
        drafted = int(drafted_text)
        acceptance = float(acceptance_text)
    except ValueError:
        raise UsageError(
            f"--speculative {text}: write TOKENS:ACCEPTANCE[:MODEL], like 3:0.7"
        ) from None
    return Speculation(drafted, acceptance, describe_model(draft_model) if draft_model else None)


def _parse_offload(texts: Sequence[str]) -> "Offload":
    """Parse ``--offload``: GIB, which is weights=GIB, or cache=GIB."""
    from foretune.plan.describe.layout import Offload

    named = [text if "=" in text else f"weights={text}" for text in texts]
    host_gib = options.parse_numbers(named, "--offload", OFFLOAD_KEYS)
    return Offload(host_gib.get("weights", 0.0), host_gib.get("cache", 0.0))
