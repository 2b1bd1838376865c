"""Parses the options of ``foretune plan serve`` into a `PlanRequest`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.cli import options, plan_options
from foretune.cli.plan_links import parse_offload, with_links
from foretune.errors import UsageError

if TYPE_CHECKING:
    from foretune.plan import (
        Formats,
        ModelDescription,
        PlanRequest,
        Requirements,
        Speculation,
        System,
        Workload,
    )
    from foretune.plan.describe.lengths import LengthMix
    from foretune.plan.engine.requests import Requests
    from foretune.plan.serve.layer_formats import LayerFormats

EXAMPLE_OPTIONS = {"--system": "h100_sxm", "--gpus": 8, "--isl": 2048, "--osl": 256}
"""Values in the example that is shown if an option is missing."""
ALL_SYSTEMS = "all"
AUTO = "auto"
"""Value of ``--formats``: one for each layer."""


@dataclass(frozen=True)
class RequestLengths:
    """Request lengths: from the options, a histogram, or else the means of a trace."""

    isl: int | None
    osl: int | None
    prefix: int
    trace: "Requests | None" = None
    mix: "LengthMix | None" = None
    notes: tuple[str, ...] = ()

    @property
    def longest(self) -> int:
        """Tokens of the trace's longest request; 0 without a trace."""
        if self.trace is None:
            return 0
        return int((self.trace.isl + self.trace.osl).max())

    @property
    def workload(self) -> "Workload":
        """The requests to plan."""
        from foretune.plan import Workload

        if self.mix is not None:
            return Workload.of_mix(self.mix, prefix=self.prefix)
        return Workload(isl=self.isl or 0, osl=self.osl or 0, prefix=self.prefix)


def parse_lengths(
    trace: Path | None,
    histogram: Path | None,
    isl: str | None,
    osl: str | None,
    prefix: int | None,
) -> RequestLengths:
    """Parse the options of their names, ``--lengths`` being the histogram; None is not given."""
    from foretune.plan.describe.length_files import parse_histogram, read_lengths
    from foretune.plan.describe.lengths import LengthMix

    if histogram is not None:
        given = {"--trace": trace, "--isl": isl, "--osl": osl}
        others = [name for name, value in given.items() if value is not None]
        if others:
            raise UsageError(f"--lengths has the lengths of all requests: leave {others[0]} out")
        found = read_lengths(histogram)
        return _of_mix(found.mix, prefix or 0, notes=found.notes)

    prompts = None if isl is None else parse_histogram(isl, "--isl")
    answers = None if osl is None else parse_histogram(osl, "--osl")
    if trace is not None:
        return _of_trace(trace, prompts, answers, prefix)
    if prompts and answers and max(len(prompts), len(answers)) > 1:
        return _of_mix(LengthMix.of_independent(prompts, answers), prefix or 0)
    return RequestLengths(_only(prompts), _only(answers), prefix or 0)


def _of_mix(mix: "LengthMix", prefix: int, notes: Sequence[str] = ()) -> RequestLengths:
    """Return the lengths of a histogram; one kind of request is no histogram."""
    is_one = len(mix.shares) == 1
    return RequestLengths(
        isl=round(mix.mean_isl),
        osl=round(mix.mean_osl),
        prefix=prefix,
        mix=None if is_one else mix,
        notes=tuple(notes),
    )


def _of_trace(
    path: Path,
    prompts: Mapping[int, float] | None,
    answers: Mapping[int, float] | None,
    prefix: int | None,
) -> RequestLengths:
    """Return the lengths of a trace: its means, unless one is given."""
    from foretune.plan.engine.requests import read_trace

    for name, given in (("--isl", prompts), ("--osl", answers)):
        if given is not None and len(given) > 1:
            raise UsageError(f"a trace has lengths of its own: leave {name} or --trace out")
    trace = read_trace(path)
    isl = _only(prompts) or round(trace.isl.mean())
    osl = _only(answers) or round(trace.osl.mean())
    if prefix is None:
        prefix = int(min(trace.cached.mean(), isl - 1))
    return RequestLengths(isl, osl, prefix, trace=trace)


def _only(lengths: Mapping[int, float] | None) -> int | None:
    """Return the only length that was given; the mean of several, to go with a missing option."""
    if lengths is None:
        return None
    return round(sum(n * share for n, share in lengths.items()) / sum(lengths.values()))


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
    link: Sequence[str],
    qualities: Path | None,
    sensitivities: Path | None,
) -> "PlanRequest":
    """Return what is asked; each argument is the option of its name."""
    from foretune.plan import PlanRequest, describe_model, read_accuracy

    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(f"--rate {rate:g}: give requests per second, more than 0")
    plan_options.check_engine(backend)

    kept_outside = parse_offload(offload)
    if link and not kept_outside:
        raise UsageError("--link tells rates that only --offload uses: add it, or leave --link out")
    systems = with_links(_parse_systems(system, prices), link)
    described = describe_model(model)
    weight_formats: tuple[Formats, ...] | None
    layer_formats: tuple[LayerFormats, ...] = ()
    if formats.partition("/")[0].partition(":")[0] == AUTO:
        weight_formats, layer_formats = _formats_per_layer(
            formats, sensitivities, described, systems, backend
        )
        caches: tuple[str, ...] = ()
    else:
        if sensitivities is not None:
            raise UsageError("--sensitivities tell a format per layer: add --formats auto")
        weight_formats, caches = _parse_formats(formats, systems)
    return PlanRequest(
        model=described,
        systems=systems,
        gpus=gpus,
        workload=lengths.workload,
        engine=backend,
        requirements=requirements,
        formats=weight_formats,
        caches=caches,
        rate=rate,
        pools=pools,
        speculation=_parse_speculation(speculative),
        offload=kept_outside,
        accuracy=tuple(read_accuracy(qualities)) if qualities else None,
        layer_formats=layer_formats,
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


def _formats_per_layer(
    text: str,
    path: Path | None,
    model: "ModelDescription",
    systems: "Sequence[System]",
    engine: str,
) -> "tuple[tuple[Formats, ...], tuple[LayerFormats, ...]]":
    """Return the formats of ``--formats auto[:FORMAT][/CACHE]``: a file's, and mixtures of them.

    With a format, all lose no more than it does.
    """
    from foretune.plan import Formats
    from foretune.plan.describe.formats import find_format
    from foretune.plan.describe.sensitivities import read_sensitivities
    from foretune.plan.serve.layer_formats import formats_per_layer

    if path is None:
        raise UsageError(
            "--formats auto needs the losses of each layer: add --sensitivities FILE (CSV with "
            "columns layer, module, format, loss)"
        )
    name_of_auto, slash, cache = text.partition("/")
    as_good_as = name_of_auto.partition(":")[2]
    caches = [find_format(cache, cache=True).name] if slash else _default_caches(systems)
    uniform, mixed = formats_per_layer(
        model, read_sensitivities(path, model.layers), systems, engine, as_good_as
    )
    weights = [(name, name) for name in uniform] + [(made.weights, made.moe) for made in mixed]
    formats = tuple(Formats(name, kv=kv, moe=moe) for name, moe in weights for kv in caches)
    return formats, tuple(mixed)


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
