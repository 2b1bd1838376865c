"""Settings of a server: a planned deployment, and engine flags around it.

A setting is a `Configuration`, so that the house's searchers search it. Its parameters are the
knobs below; a knob that is missing keeps the plan's value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any

from foretune.errors import UsageError
from foretune.plan.cost.memory import GIB, USABLE_SHARE, request_bytes
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.space import Configuration, SearchSpace
from foretune.values import Value

DEPLOYMENT = "deployment"
"""Knob: formats and layout, of the plan's best rows."""
REQUESTS = "requests"
"""Knob: most requests that the server works on at once."""
STEP_TOKENS = "step_tokens"
"""Knob: most tokens of a step."""
CACHE_SHARE = "cache_share"
"""Knob: share of a GPU's memory that the engine fills."""
CACHE_GIB = "cache_gib"
"""Knob: memory of the cache on a CPU, GiB."""
CHUNKED = "chunked"
"""Knob: whether long prompts are split over steps."""
PREFIX_CACHE = "prefix_cache"
"""Knob: whether common prefixes stay cached."""
GRAPHS = "graphs"
"""Knob: whether decode steps are captured as CUDA graphs."""
THREADS = "threads"
"""Knob: threads of a CPU engine."""
KNOBS = (
    DEPLOYMENT,
    REQUESTS,
    STEP_TOKENS,
    CACHE_SHARE,
    CACHE_GIB,
    CHUNKED,
    PREFIX_CACHE,
    GRAPHS,
    THREADS,
)
ON = "on"
OFF = "off"

REQUEST_FACTORS = (0.25, 0.5, 1.0)
"""Numbers of requests at once to try, over the plan's."""
STEP_SIZES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens per step to try, if a load fills them."""
MAX_STEP_SIZES = 4
CACHE_SHARES = (0.85, 0.9, 0.95)


@dataclass(frozen=True)
class Setting:
    """A deployment with its engine's flags.

    Attributes:
        deployment: formats and layout; its load and ``step_tokens`` are those of the flags.
        requests: most requests at once.
        cache_gib: memory of the cache on a CPU; None takes what is left of the memory.
        cache_share: share of memory that the engine fills.
        threads: threads of a CPU engine; 0 is not set.
        others: flags that the predictor does not know, with their values.
    """

    deployment: Deployment
    requests: int
    cache_gib: float | None = None
    cache_share: float = USABLE_SHARE
    chunked: bool = True
    prefix_cache: bool = False
    graphs: bool = True
    threads: int = 0
    others: tuple[tuple[str, Value], ...] = ()

    @property
    def step_tokens(self) -> int:
        """Most tokens of a step."""
        return self.deployment.step_tokens

    @cached_property
    def cache_bytes(self) -> float:
        """Bytes of the cache on a rank."""
        if self.cache_gib is not None:
            return self.cache_gib * GIB
        deployment = self.deployment
        usable_bytes = self.cache_share * deployment.system.memory_gib * GIB
        return max(usable_bytes - float(deployment.memory(0).total), 0.0)

    @property
    def cache_tokens(self) -> float:
        """Tokens that the cache holds, of requests as long as the workload's."""
        longest = self.deployment.longest_context
        of_request = request_bytes(
            self.deployment.loaded_model, self.deployment.layout, self.deployment.formats, longest
        )
        return self.cache_bytes / of_request * longest

    @property
    def memory_gib(self) -> float:
        """Predicted memory of a rank, GiB: weights, cache, activations and the engine's own.

        A GPU engine fills its share of the memory, whatever the requests need.
        """
        held = self.deployment.memory(self.requests)
        without_cache = float(held.total - held.kv_cache)
        if self.cache_gib is not None:
            return without_cache / GIB + self.cache_gib
        return max(without_cache / GIB, self.cache_share * self.deployment.system.memory_gib)


@dataclass(frozen=True)
class SettingSpace:
    """The settings around a plan's best deployment.

    Attributes:
        deployments: label -> deployment, the plan's best first.
        values: knob -> values to try; the first is the plan's own.
        others: flags that the predictor does not know -> values to try.
    """

    deployments: Mapping[str, Deployment]
    values: Mapping[str, Sequence[Value]]
    others: Mapping[str, Sequence[Value]] = field(default_factory=dict)

    @property
    def space(self) -> SearchSpace:
        """All combinations of the values."""
        parameters = {**self.values, **self.others}
        ordered = {name: sorted(values, key=_order) for name, values in parameters.items()}
        return SearchSpace(ordered, self._restrictions)

    @property
    def planned(self) -> Configuration:
        """The plan's own setting."""
        parameters = {**self.values, **self.others}
        return Configuration({name: values[0] for name, values in parameters.items()})

    def setting(self, config: Mapping[str, Any]) -> Setting:
        """Return the setting of a configuration."""
        label = str(config.get(DEPLOYMENT, next(iter(self.deployments))))
        planned = self.deployments[label]
        requests = int(config.get(REQUESTS, ceil(planned.concurrency)))
        deployment = replace(
            planned,
            concurrency=requests,
            step_tokens=int(config.get(STEP_TOKENS, planned.step_tokens)),
        )
        cache_gib = config.get(CACHE_GIB)
        if cache_gib is None and planned.system.device.kind == "cpu":
            cache_gib = needed_cache_gib(deployment)
        return Setting(
            deployment=deployment,
            requests=requests,
            cache_gib=None if cache_gib is None else float(cache_gib),
            cache_share=float(config.get(CACHE_SHARE, USABLE_SHARE)),
            chunked=config.get(CHUNKED, ON) == ON,
            prefix_cache=config.get(PREFIX_CACHE, OFF) == ON,
            graphs=config.get(GRAPHS, ON) == ON,
            threads=int(config.get(THREADS, 0)),
            others=tuple((name, config[name]) for name in self.others),
        )

    @property
    def _restrictions(self) -> list[str]:
        rules = []
        # Without chunks, a prompt must fit in a step.
        if CHUNKED in self.values and STEP_TOKENS in self.values:
            longest = max(d.longest_context for d in self.deployments.values())
            rules.append(f"{CHUNKED} == '{ON}' or {STEP_TOKENS} >= {longest}")
        # Every request needs a token of a step.
        if REQUESTS in self.values and STEP_TOKENS in self.values:
            rules.append(f"{STEP_TOKENS} >= {REQUESTS}")
        return rules


def describe_deployment(deployment: Deployment) -> str:
    """Return the label of a deployment: formats and layout."""
    return f"{deployment.formats}, {deployment.layout}"


def around(
    deployments: Sequence[Deployment],
    knobs: Sequence[str],
    given: Mapping[str, Sequence[Value]],
    cores: int,
) -> SettingSpace:
    """Return the settings around the plan's deployments, the best first.

    Args:
        deployments: at the plan's load, with the plan's tokens per step.
        knobs: those that the command can set.
        given: a user's values, of knobs or of the engine's flags; the plan's value is added.
        cores: of a CPU that serves; 0 for GPUs.
    """
    best = deployments[0]
    on_cpu = best.system.device.kind == "cpu"
    labels = {describe_deployment(deployment): deployment for deployment in deployments}
    usual: dict[str, list[Value]] = {
        DEPLOYMENT: list(labels),
        REQUESTS: _request_values(best),
        STEP_TOKENS: _step_values(best),
        CACHE_SHARE: [] if on_cpu else [USABLE_SHARE, *CACHE_SHARES],
        CACHE_GIB: [needed_cache_gib(best)] if on_cpu else [],
        CHUNKED: [ON, OFF],
        PREFIX_CACHE: [ON, OFF] if best.workload.prefix else [OFF],
        GRAPHS: [] if on_cpu else [ON],
        THREADS: [cores, *_thread_values(cores)] if on_cpu else [],
    }
    flags = {name: list(values) for name, values in given.items() if name not in KNOBS}
    for name, chosen in given.items():
        if name in KNOBS and name not in knobs:
            raise UsageError(
                f"the command does not set {name}: put {{{name}}} into --command, or leave it out"
            )
        for value in chosen:
            _check_value(name, value, labels)

    values: dict[str, list[Value]] = {}
    for name in knobs:
        chosen = usual[name]
        if name in given:
            chosen = [*chosen[:1], *given[name]]
        if chosen:
            values[name] = list(dict.fromkeys(chosen))
    return SettingSpace(labels, values, flags)


def _check_value(name: str, value: Value, labels: Mapping[str, Deployment]) -> None:
    """Raise UsageError for a value that a knob cannot have, or a name that is no knob or flag."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name not in KNOBS:
        if not name.startswith("-"):
            raise UsageError(f"{name} is neither {', '.join(KNOBS)}, nor a flag that begins with -")
        return
    if name == DEPLOYMENT:
        allowed = value in labels
        what = " or ".join(labels)
    elif name in (CHUNKED, PREFIX_CACHE, GRAPHS):
        allowed = value in (ON, OFF)
        what = f"{ON} or {OFF}"
    elif name == CACHE_SHARE:
        allowed = is_number and 0 < float(value) <= 1
        what = "a share of the memory up to 1, such as 0.9"
    elif name == CACHE_GIB:
        allowed = is_number and float(value) > 0
        what = "a number of GiB"
    else:
        allowed = is_number and value == int(value) and value >= 1
        what = "a whole number from 1 on"
    if not allowed:
        raise UsageError(f"{name}={value} is not possible: give {what}")


def needed_cache_gib(deployment: Deployment) -> float:
    """Return whole GiB that hold the cache of all requests at once."""
    needed = deployment.memory(deployment.concurrency).kv_cache
    return float(max(ceil(float(needed) / GIB), 1))


def _request_values(best: Deployment) -> list[Value]:
    planned = ceil(best.concurrency)
    fewer = sorted({max(ceil(planned * factor), 1) for factor in REQUEST_FACTORS}, reverse=True)
    return [planned, *fewer]


def _step_values(best: Deployment) -> list[Value]:
    """Return the plan's tokens per step, and others that make a difference."""
    # Larger steps than all prompts together are never full.
    most = best.concurrency * best.workload.new_tokens + best.concurrency
    useful = [size for size in STEP_SIZES if best.concurrency <= size < most]
    filled = next((size for size in STEP_SIZES if size >= most), STEP_SIZES[-1])
    return [best.step_tokens, *[*useful, filled][-MAX_STEP_SIZES:]]


def _thread_values(cores: int) -> list[Value]:
    """Return numbers of threads to try: engines keep a core for themselves."""
    return [n for n in (cores, cores - 1, cores // 2) if n >= 1]


def _order(value: Value) -> tuple[bool, Any]:
    """Sort numbers before texts."""
    return isinstance(value, str), value
