"""Candidates: every deployment of a model on some GPUs that its memory and its sizes allow.

What does not fit memory is left out here, before anything is predicted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from foretune.plan.cost.memory import GIB, USABLE, layer_bytes, rank_memory
from foretune.plan.describe.cache_formats import USUAL
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import (
    Formats,
    checkpoint_formats,
    find_format,
    supported,
)
from foretune.plan.describe.layout import Layout, legal_layouts
from foretune.plan.describe.offload import Offload
from foretune.plan.describe.speculation import Speculation
from foretune.plan.describe.system import System
from foretune.plan.describe.workload import Workload
from foretune.plan.serve.deployments.deployment import Deployment, Pools
from foretune.plan.serve.deployments.physics import Clocks, decode_ms, prompt_ms
from foretune.plan.serve.launching import refusal

LOADS = (1, *(m for i in range(1, 10) for m in (2**i, 3 * 2 ** (i - 1))), 1024)
"""Requests in flight per attention-DP group that are looked at, as far as memory holds them, and
the most that it holds of fewer than the last."""
WEIGHTS = ("bf16", "fp8", "fp8_block", "int8", "int4_wo", "nvfp4")


@dataclass(frozen=True)
class Candidate:
    """A deployment, and how many of it share the requests.

    Attributes:
        deployment: one replica and its load.
        replicas: how many there are.
    """

    deployment: Deployment
    replicas: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.deployment.gpus

    def loads(self) -> list[int]:
        """Return the numbers of requests in flight that are looked at, of one replica."""
        d = self.deployment
        most = d.fitting
        loads = {d.layout.dp * n for n in LOADS} | {min(most, d.layout.dp * LOADS[-1])}
        return sorted(n for n in loads if d.layout.dp <= n <= most)

    def under(self, in_flight: int, pools: Pools | None = None) -> "Candidate":
        """Return it with so many requests in flight of each replica."""
        deployment = replace(self.deployment, concurrency=in_flight, pools=pools)
        return Candidate(deployment, self.replicas)


def supported_formats(
    model: ModelDescription, system: System, caches: Sequence[str] = ()
) -> list[Formats]:
    """Return the formats worth looking at: the checkpoint's own, and those the GPU multiplies.

    Those of the checkpoint come first as published, then with the other usual caches.

    Weights wider than the checkpoint's take more memory and are no better. Nor is int8 where the
    GPU multiplies in fp8, as fast and with less loss.

    Args:
        model: what is served.
        system: on which GPUs.
        caches: formats of the cache to look at; none takes the usual ones that the GPU has.
    """
    own = checkpoint_formats(model)
    if caches:
        found = supported_formats(model, system)
        return list(dict.fromkeys(replace(f, kv=kv) for f in found for kv in caches))
    architecture = system.device.architecture
    most = min(find_format(kind).bits for kind in (own.weights, own.moe))
    eight = supported("fp8", architecture) == "native"
    usual = [
        Formats(weights, kv=kv)
        for weights in WEIGHTS
        if find_format(weights).bits <= most and not (eight and weights == "int8")
        for kv in USUAL
    ]  # fmt: skip
    known = [f for f in usual if f.support(architecture) == "native"]
    alike = [replace(own, kv=kv) for kv in USUAL if supported(kv, architecture) == "native"]
    return list(dict.fromkeys([own, *alike, *known]))


def services(
    model: ModelDescription,
    system: System,
    gpus: int,
    workload: Workload,
    backend: str,
    formats: Sequence[Formats] | None = None,
    speculation: Speculation | None = None,
    caches: Sequence[str] = (),
    offload: Offload = Offload(),  # noqa: B008  # immutable
) -> Iterator[Candidate]:
    """Give every format, and layout that the engine has, in as many replicas as use all GPUs.

    Each has one request in flight; see `Candidate.loads` and `Candidate.under`.

    Ranks that exchange something in every layer stay among the GPUs that fast links join: exchanges
    over a network were not measured.
    """
    for these in formats or supported_formats(model, system, caches):
        for size in (n for n in range(1, gpus + 1) if gpus % n == 0):
            for layout in legal_layouts(model, size, these):
                # Attention-DP of a dense model is several replicas: a smaller size says the same.
                useful = layout.dp == 1 or model.is_moe
                near = layout.tp * layout.dp <= system.fast_domain
                drafts = speculation is None or speculation.illegal_because(layout) is None
                if useful and near and drafts and not refusal(layout, backend):
                    replica = Deployment(
                        model, system, backend, layout, these, workload, 1,
                        speculation=speculation,
                    )  # fmt: skip
                    for weights in _amounts(replica, offload.weights_gib):
                        kept = replace(offload, weights_gib=weights)
                        yield Candidate(replace(replica, offload=kept), gpus // size)


def _amounts(replica: Deployment, most_gib: float) -> list[float]:
    """Return the GiB of a GPU's weights in the host's memory that are looked at, none first.

    Engines take whole ones: the least with which a request fits, and what is allowed, a half and a
    quarter of it, no more than there are.
    """
    if most_gib <= 0:
        return [0.0]
    d, most = replica, float(ceil(most_gib))
    there = ceil(sum(layer_bytes(d.model, d.layout, d.formats)) / GIB)
    held = rank_memory(d.allocated, d.layout, d.formats, d.workload, d.layout.dp)
    least = ceil(held.gib - USABLE * d.system.memory_gib)
    some = {min(float(ceil(most * share)), there) for share in (0.25, 0.5, 1.0)}
    return [0.0, *sorted(some | ({float(least)} if 0 < least <= min(most, there) else set()))]


def one_pool(found: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates in which the same workers read prompts and write answers."""
    return [service.under(n) for service in found for n in service.loads()]


def two_pools(found: Sequence[Candidate], gpus: int, clocks: Clocks) -> list[Candidate]:
    """Return candidates that read prompts and write answers in pools of their own.

    For answers, layouts without a pipeline, their experts whole or all in slices; for prompts, of
    the same formats, the layout that reads most per GPU and the one that reads soonest. Numbers of
    workers are those of the most requests per second.
    """
    by_formats: dict[tuple[str, Formats], list[Candidate]] = {}
    for service in found:
        one = service.deployment
        if _is_simple(one.layout) and one.gpus < gpus and service.loads():
            by_formats.setdefault((one.system.name, one.formats), []).append(service)
    candidates = []
    for several in by_formats.values():
        loaded = [(s, n) for s in several for n in s.loads()]
        steps = decode_ms([s.under(n).deployment for s, n in loaded], clocks)
        for reader, each_ms in _readers(several, clocks):
            for (service, n), step in zip(loaded, steps, strict=True):
                one = service.deployment
                busy = n * each_ms / (one.workload.osl * step)
                candidates += _matched(one, n, reader, busy, gpus)
    return candidates


def _is_simple(layout: Layout) -> bool:
    return layout.pp == 1 and min(layout.moe_tp, layout.moe_ep) == 1


def _readers(several: Sequence[Candidate], clocks: Clocks) -> list[tuple[Layout, float]]:
    """Return the layouts that read prompts best, and the milliseconds a worker takes for each."""
    deployments = [s.under(s.deployment.layout.dp).deployment for s in several]
    first, each = prompt_ms(deployments, clocks)
    sizes = np.array([d.gpus for d in deployments])
    best = sorted({int(np.argmin(each * sizes)), int(np.argmin(first))})
    return [(deployments[i].layout, float(each[i])) for i in best]


def _matched(
    writer: Deployment, in_flight: int, reader: Layout, busy: float, gpus: int
) -> list[Candidate]:
    """Return the candidate whose pools keep up with each other best; none if there is no room.

    Args:
        writer: what writes answers.
        in_flight: requests of each of its workers.
        reader: what reads prompts.
        busy: workers that prompts keep busy, per worker that writes.
        gpus: for both.
    """
    writers = np.arange(1, gpus // writer.gpus + 1)
    readers = (gpus - writers * writer.gpus) // reader.gpus
    rate = np.where(readers > 0, np.minimum(writers, readers / busy), 0.0)
    best = int(np.argmax(rate))
    if rate[best] <= 0:
        return []
    needed = min(int(readers[best]), ceil(writers[best] * busy))
    pools = Pools(reader, needed, int(writers[best]))
    return [Candidate(writer).under(in_flight * pools.decode_workers, pools)]
