"""What users of a planned deployment see: its requests, replayed step by step.

Closed forms choose among thousands of deployments, and say means; for the ones chosen, steps say
how times spread, and what a trace of real requests does to them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.plan.cost.host_link import exposed_fetch_ms, prefix_ms, step_ms
from foretune.plan.cost.memory import GIB, MAX_STEP_TOKENS, USABLE_SHARE, rank_memory, request_bytes
from foretune.plan.describe.layout import Layout
from foretune.plan.engine.requests import Requests
from foretune.plan.engine.scheduler import Host, Scheduler
from foretune.plan.engine.simulator import simulate_requests
from foretune.plan.engine.stage_times import StageTimes, StageWork, StepLoad
from foretune.plan.serve.deployments.analytic import StepTimers
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.explanation import format_number

PERCENTILES = (50, 90, 99)
REQUESTS_PER_SLOT = 6
"""How often each place of a deployment is filled, where nobody sends a trace."""
MIN_REQUESTS, MAX_REQUESTS = 200, 4000
"""Requests that are replayed, of each replica; more only where they would not fill it thrice."""
WARMUP_SHARE = 0.2
"""Share of the requests that come before a deployment is in its usual state."""


@dataclass(frozen=True)
class SimulationResult:
    """What requests of a deployment took.

    Attributes:
        requests: how many counted, of one of the groups that share them.
        ttft_ms, tpot_ms: of the requests, by percentile.
        tokens_per_s: generated, of all replicas.
    """

    requests: int
    ttft_ms: Mapping[int, float]
    tpot_ms: Mapping[int, float]
    tokens_per_s: float

    def __str__(self) -> str:
        shares = " / ".join(map(str, PERCENTILES))
        times = (
            f"{name} {' / '.join(format_number(ms[p]) for p in PERCENTILES)} ms"
            for name, ms in (("TTFT", self.ttft_ms), ("TPOT", self.tpot_ms))
        )
        return f"{shares} % of {self.requests:,} replayed requests within {', '.join(times)}"

    def to_json(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "requests": self.requests,
            "tokens_per_s": self.tokens_per_s,
            **{
                name: {f"p{p}": ms[p] for p in PERCENTILES}
                for name, ms in (("ttft_ms", self.ttft_ms), ("tpot_ms", self.tpot_ms))
            },
        }


def simulate(
    deployment: Deployment,
    replicas: int,
    timers: StepTimers,
    rate: float | None = None,
    trace: Requests | None = None,
    tpot_ms: float | None = None,
) -> SimulationResult:
    """Return what requests take that are sent to ``replicas`` copies of a deployment.

    Args:
        deployment: one replica, with its requests in flight.
        replicas: among which requests are dealt in turn.
        timers: say what operators take.
        rate: requests per second, arriving at random; None keeps as many in flight as the
            deployment says.
        trace: what is sent instead.
        tpot_ms: what measured deployments say a token takes on average with the deployment's
            requests in flight: steps are stretched to that. None leaves them as operators say.

    Raises:
        UsageError: a request does not fit the deployment; or it has pools, and nobody says what
            arrives when.
    """
    if deployment.pools and rate is None and trace is None:
        raise UsageError("pools are replayed with requests that arrive: give a rate or a trace")
    groups = replicas * _groups(deployment)
    server = _GroupSimulator(deployment, timers)
    if tpot_ms is not None and deployment.pools is None:
        steady = server.run(_steady_requests(deployment))
        settled = _drop_warmup(steady, deployment.batch)["tpot_ms"]
        server.slowdown = tpot_ms / max(float(settled.median()), 1e-9)
    if trace is None:
        requests = (
            _steady_requests(deployment)
            if rate is None
            else _random_requests(deployment, rate / groups)
        )
        table = _drop_warmup(server.run(requests), requests.in_flight)
    else:
        table = server.run(trace.shard(0, groups))
    ends = np.sort(table["last_ms"].to_numpy())
    seconds = (ends[-1] - (table["arrived_ms"].min() if trace else ends[0])) / 1e3
    quantiles = table[["ttft_ms", "tpot_ms"]].quantile([p / 100 for p in PERCENTILES])
    ttft, tpot = (
        dict(zip(PERCENTILES, quantiles[name], strict=True)) for name in ("ttft_ms", "tpot_ms")
    )
    per_s = float(groups * table["osl"].sum() / max(seconds, 1e-9))
    return SimulationResult(len(table), ttft, tpot, per_s)


class _GroupSimulator:
    """One attention-DP group of a deployment, and the group that reads its prompts.

    Args:
        deployment: of which it is a part.
        timers: say what operators take.

    Attributes:
        slowdown: how many times as long as operators say its steps take.
    """

    def __init__(self, deployment: Deployment, timers: StepTimers) -> None:
        self._deployment, self._timers, self.slowdown = deployment, timers, 1.0
        self._stage_times: dict[tuple[Layout, int, int], StageTimes] = {}

    def run(self, requests: Requests) -> pd.DataFrame:
        """Return the replayed requests, with their ``osl``."""
        pools = self._deployment.pools
        if pools is None:
            table = self._simulate(requests, self._deployment.layout)
        else:
            # Where prompts have workers of their own, a writer sees a prompt's last token alone.
            prefill_groups = max(pools.prefill_workers, 1) * pools.prefill.dp
            groups_per_decoder = max(round(prefill_groups / _groups(self._deployment)), 1)
            prompts_only = replace(requests, osl=np.ones_like(requests.osl))
            parts = [
                self._simulate(prompts_only.shard(i, groups_per_decoder), pools.prefill)
                for i in range(groups_per_decoder)
            ]
            first_ms = np.empty(len(requests))
            for i, part in enumerate(parts):
                first_ms[i::groups_per_decoder] = part["first_ms"]
            order = np.argsort(first_ms, kind="stable")
            decode_requests = Requests(
                first_ms[order], requests.isl[order], requests.osl[order], requests.isl[order] - 1,
                in_flight=0,
            )  # fmt: skip
            table = self._simulate(decode_requests, self._deployment.layout)
            arrived = requests.arrival_ms[order]
            table = table.assign(arrived_ms=arrived, ttft_ms=decode_requests.arrival_ms - arrived)
            requests = decode_requests
        return table.assign(
            osl=requests.osl, ttft_ms=table["ttft_ms"] + self._prefix_wait_ms(table)
        )

    def _prefix_wait_ms(self, table: pd.DataFrame) -> float:
        """Return what requests wait for their prefix from the host's memory."""
        deployment = self._deployment
        if not deployment.offload.cache_gib:
            return 0.0
        prefix_load_ms = prefix_ms(
            deployment.system,
            deployment.model,
            deployment.layout,
            deployment.formats,
            deployment.workload.prefix,
        )
        return exposed_fetch_ms(
            prefix_load_ms,
            float(table["ttft_ms"].min()),
            deployment.model.layers,
            deployment.backend,
        )

    def _simulate(self, requests: Requests, layout: Layout) -> pd.DataFrame:
        deployment = self._deployment
        batch = max(int(np.ceil(deployment.batch / layout.pp)), 1)
        longest = int((requests.isl + requests.osl).max())
        key = layout, batch, longest
        if key not in self._stage_times:
            self._stage_times[key] = self._make_stage_times(layout, batch, longest)
        times = self._stage_times[key]

        def stages(load: StepLoad, padded: int) -> list[StageWork]:
            wait_ms = (
                self._weight_wait_ms(load.tokens + padded * load.tokens_per_answer) / layout.pp
            )
            return [
                StageWork(self.slowdown * (work.ms + wait_ms), work.layers)
                for work in times(load, padded)
            ]

        scheduler = Scheduler(
            max(MAX_STEP_TOKENS, batch * (1 + deployment.drafted)),
            batch,
            _cache_tokens(deployment, layout, longest),
            host=Host.for_system(deployment.system, layout.pp),
            drafted=deployment.drafted,
            accepted_tokens=deployment.accepted_tokens,
        )
        return simulate_requests(requests, scheduler, stages, layout.pp)

    def _weight_wait_ms(self, tokens: int) -> float:
        """Return what a step waits for weights that lie in the host's memory, all stages."""
        deployment = self._deployment
        if not deployment.offloaded_weight_bytes:
            return 0.0
        return step_ms(
            deployment.system,
            deployment.model,
            deployment.layout,
            deployment.formats,
            deployment.offload.weights_gib,
            tokens,
            deployment.backend,
        )

    def _make_stage_times(self, layout: Layout, batch: int, longest: int) -> StageTimes:
        """Return the times of a group's steps, and of what drafts tokens for them."""
        deployment, drafts = self._deployment, self._deployment.speculation
        timer, tokens_per_request = (
            self._timers(deployment.system, deployment.backend),
            deployment.drafted + 1,
        )
        max_tokens = MAX_STEP_TOKENS + batch * tokens_per_request
        if drafts is None:
            return StageTimes(
                deployment.model, layout, deployment.formats, timer, max_tokens, longest, batch
            )
        drafter = StageTimes(
            drafts.drafter(deployment.model),
            drafts.layout(layout),
            drafts.formats(deployment.formats),
            timer,
            max_tokens,
            longest,
            batch,
        )
        return StageTimes(
            deployment.model,
            layout,
            deployment.formats,
            timer,
            max_tokens,
            longest,
            batch,
            tokens_per_request,
            drafter,
        )


def _groups(deployment: Deployment) -> int:
    """Return the attention-DP groups of a replica that write answers."""
    workers = deployment.pools.decode_workers if deployment.pools else 1
    return workers * deployment.layout.dp


def _cache_tokens(deployment: Deployment, layout: Layout, longest: int) -> float:
    """Return the tokens that the cache of a group has room for."""
    model, formats, workload = deployment.loaded_model, deployment.formats, deployment.workload
    used = rank_memory(
        model, layout, formats, workload, 0, offloaded_bytes=deployment.offloaded_weight_bytes
    ).total
    free_bytes = USABLE_SHARE * deployment.system.memory_gib * GIB - used
    return free_bytes / request_bytes(model, layout, formats, longest) * longest


def _steady_requests(deployment: Deployment) -> Requests:
    """Return requests that follow each other, as many at a time as the deployment has."""
    load, in_flight = deployment.workload, max(round(deployment.batch), 1)
    count = int(
        np.clip(REQUESTS_PER_SLOT * in_flight, MIN_REQUESTS, max(MAX_REQUESTS, 3 * in_flight))
    )
    return Requests.uniform(np.zeros(count), load.isl, load.osl, load.prefix, in_flight)


def _random_requests(deployment: Deployment, per_s: float) -> Requests:
    load = deployment.workload
    count = int(np.clip(REQUESTS_PER_SLOT * deployment.batch, MIN_REQUESTS, MAX_REQUESTS))
    return Requests.poisson(per_s, count, load.isl, load.osl, load.prefix)


def _drop_warmup(table: pd.DataFrame, in_flight: float) -> pd.DataFrame:
    """Return the requests of a deployment's usual state: neither its first nor its last ones.

    Those that are sent together at the beginning are not usual.
    """
    dropped = max(int(WARMUP_SHARE * len(table)), int(np.ceil(in_flight)))
    settled = table.iloc[dropped : len(table) - dropped]
    return settled if len(settled) else table
