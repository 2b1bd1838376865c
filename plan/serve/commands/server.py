"""What the commands of all engines share: servers, ports, and flags as words.

Flags and options are those of the versions in `foretune.plan.describe.engines.ENGINES`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

from foretune.plan.describe.engines import ENGINES
from foretune.plan.describe.layout import Layout
from foretune.plan.serve.deployments.deployment import Deployment

PORT = 8000
PREFILL_PORT = 8100
DECODE_PORT = 8200
"""First ports of the workers of separate pools."""
MAX_CAPTURED_REQUESTS = 512
"""Largest decode batch captured as a CUDA graph, as the engines do by default."""

CPU_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
"""Format of weights that a CPU multiplies -> torch's name."""

Role = Literal["", "producer", "consumer"]
"""What a server does with caches: prefill workers produce them, decode workers consume them."""


@dataclass(frozen=True)
class Server:
    """One server, with ``requests`` in flight."""

    layout: Layout
    requests: float
    port: int
    role: Role = ""


@dataclass(frozen=True)
class EngineCommands:
    """Commands, split into words, and the text of the files that they read."""

    commands: list[list[str]]
    files: dict[str, str]


def servers(deployment: Deployment) -> Iterator[Server]:
    """Yield the servers; requests in flight are divided among the prefill workers."""
    pools = deployment.pools
    if pools is None:
        yield Server(deployment.layout, deployment.requests_per_worker, PORT)
        return

    prefill_workers = max(pools.prefill_workers, 1)
    prefill_requests = deployment.concurrency / prefill_workers
    for i in range(prefill_workers):
        yield Server(pools.prefill, prefill_requests, port=PREFILL_PORT + i, role="producer")
    for i in range(pools.decode_workers):
        yield Server(
            deployment.layout,
            deployment.requests_per_worker,
            port=DECODE_PORT + i,
            role="consumer",
        )


def max_step_tokens(deployment: Deployment, requests: float) -> str:
    """Return the maximum tokens of a step that plans assume for this many requests."""
    tokens_of_requests = ceil(requests) * (1 + deployment.drafted)
    return str(max(deployment.step_tokens, tokens_of_requests))


def cache_name(deployment: Deployment, engine: str) -> str:
    """Return the engine's name of the cache format; empty if cache and checkpoint have 16 bits."""
    cache = deployment.formats.kv
    if cache == "bf16" and deployment.model.kv_format == "bf16":
        return ""
    if deployment.system.device.kind == "cpu" and cache in CPU_DTYPES:
        return ""  # as the activations
    return ENGINES[engine]["caches"][cache]


def above_one(degree: int) -> int:
    """Return a degree of parallelism, 0 if there is none."""
    return degree if degree > 1 else 0


def flag_words(flags: Mapping[str, object]) -> list[str]:
    """Convert flags to words: 0, empty and false are left out, true has no value."""
    words = []
    for flag, value in flags.items():
        if not value:
            continue
        words.append(flag)
        if value is not True:
            words.append(str(value))
    return words


def compact_json(values: Mapping[str, object]) -> str:
    """Return values as JSON without spaces, to be one word of a command."""
    return json.dumps(values, separators=(",", ":"))
