"""What users of a planned deployment see: its requests, replayed step by step.

Closed forms choose among thousands of deployments, and say means; for the ones chosen, steps say
how times spread, and what a trace of real requests does to them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.plan.cost.host_link import prefix_ms, step_ms, waited_ms
from foretune.plan.cost.memory import GIB, STEP_TOKENS, USABLE, rank_memory, request_bytes
from foretune.plan.describe.layout import Layout
from foretune.plan.engine.replay import replay
from foretune.plan.engine.requests import Requests
from foretune.plan.engine.scheduler import Host, Scheduler
from foretune.plan.engine.stage_times import StageTimes, StageWork, StepLoad
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.physics import Clocks
from foretune.plan.serve.explaining import number

PERCENTILES = (50, 90, 99)
ROUNDS = 6
"""How often each place of a deployment is filled, where nobody sends a trace."""
FEWEST, MOST = 200, 4000
"""Requests that are replayed, of each replica; more only where they would not fill it thrice."""
SETTLING = 0.2
"""Share of the requests that come before a deployment is in its usual state."""


@dataclass(frozen=True)
class Replayed:
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
            f"{name} {' / '.join(number(ms[p]) for p in PERCENTILES)} ms"
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


def replayed(
    deployment: Deployment,
    replicas: int,
    clocks: Clocks,
    rate: float | None = None,
    trace: Requests | None = None,
    tpot_ms: float | None = None,
) -> Replayed:
    """Return what requests take that are sent to ``replicas`` copies of a deployment.

    Args:
        deployment: one replica, with its requests in flight.
        replicas: among which requests are dealt in turn.
        clocks: say what operators take.
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
    server = _Server(deployment, clocks)
    if tpot_ms is not None and deployment.pools is None:
        steady = server.run(_steady(deployment))
        usual = _settled(steady, deployment.batch)["tpot_ms"]
        server.pace = tpot_ms / max(float(usual.median()), 1e-9)
    if trace is None:
        alone = _steady(deployment) if rate is None else _at_random(deployment, rate / groups)
        table = _settled(server.run(alone), alone.in_flight)
    else:
        table = server.run(trace.share(0, groups))
    ends = np.sort(table["last_ms"].to_numpy())
    seconds = (ends[-1] - (table["arrived_ms"].min() if trace else ends[0])) / 1e3
    quantiles = table[["ttft_ms", "tpot_ms"]].quantile([p / 100 for p in PERCENTILES])
    ttft, tpot = (
        dict(zip(PERCENTILES, quantiles[name], strict=True)) for name in ("ttft_ms", "tpot_ms")
    )
    per_s = float(groups * table["osl"].sum() / max(seconds, 1e-9))
    return Replayed(len(table), ttft, tpot, per_s)


class _Server:
    """One attention-DP group of a deployment, and the group that reads its prompts.

    Args:
        deployment: of which it is a part.
        clocks: say what operators take.

    Attributes:
        pace: how many times as long as operators say its steps take.
    """

    def __init__(self, deployment: Deployment, clocks: Clocks) -> None:
        self._one, self._clocks, self.pace = deployment, clocks, 1.0
        self._known: dict[tuple[Layout, int, int], StageTimes] = {}

    def run(self, requests: Requests) -> pd.DataFrame:
        """Return the replayed requests, with their ``osl``."""
        pools = self._one.pools
        if pools is None:
            table = self._replay(requests, self._one.layout)
        else:
            # Where prompts have workers of their own, a writer sees a prompt's last token alone.
            readers = max(pools.prefill_workers, 1) * pools.prefill.dp
            each = max(round(readers / _groups(self._one)), 1)
            short = replace(requests, osl=np.ones_like(requests.osl))
            parts = [self._replay(short.share(i, each), pools.prefill) for i in range(each)]
            first = np.empty(len(requests))
            for i, part in enumerate(parts):
                first[i::each] = part["first_ms"]
            order = np.argsort(first, kind="stable")
            late = Requests(
                first[order], requests.isl[order], requests.osl[order], requests.isl[order] - 1,
                in_flight=0,
            )  # fmt: skip
            table = self._replay(late, self._one.layout)
            arrived = requests.at_ms[order]
            table = table.assign(arrived_ms=arrived, ttft_ms=late.at_ms - arrived)
            requests = late
        return table.assign(osl=requests.osl, ttft_ms=table["ttft_ms"] + self._fetch_ms(table))

    def _fetch_ms(self, table: pd.DataFrame) -> float:
        """Return what requests wait for their prefix from the host's memory."""
        one = self._one
        if not one.offload.cache_gib:
            return 0.0
        fetch = prefix_ms(one.system, one.model, one.layout, one.formats, one.workload.prefix)
        return waited_ms(fetch, float(table["ttft_ms"].min()), one.model.layers, one.backend)

    def _replay(self, requests: Requests, layout: Layout) -> pd.DataFrame:
        one = self._one
        batch = max(int(np.ceil(one.batch / layout.pp)), 1)
        longest = int((requests.isl + requests.osl).max())
        key = layout, batch, longest
        if key not in self._known:
            self._known[key] = self._times(layout, batch, longest)
        known = self._known[key]

        def stages(load: StepLoad, padded: int) -> list[StageWork]:
            waits = self._waits_ms(load.tokens + padded * load.each) / layout.pp
            return [
                StageWork(self.pace * (work.ms + waits), work.layers)
                for work in known(load, padded)
            ]

        scheduler = Scheduler(
            max(STEP_TOKENS, batch * (1 + one.drafted)), batch,
            _cache_tokens(one, layout, longest), host=Host.of(one.system, layout.pp),
            drafted=one.drafted, accepted=one.gained,
        )  # fmt: skip
        return replay(requests, scheduler, stages, layout.pp)

    def _waits_ms(self, tokens: int) -> float:
        """Return what a step waits for weights that lie in the host's memory, all stages."""
        one = self._one
        if not one.elsewhere:
            return 0.0
        return step_ms(
            one.system, one.model, one.layout, one.formats, one.offload.weights_gib, tokens,
            one.backend,
        )  # fmt: skip

    def _times(self, layout: Layout, batch: int, longest: int) -> StageTimes:
        """Return the times of a group's steps, and of what drafts tokens for them."""
        one, drafts = self._one, self._one.speculation
        clock, each = self._clocks(one.system, one.backend), one.drafted + 1
        most = STEP_TOKENS + batch * each
        if drafts is None:
            return StageTimes(one.model, layout, one.formats, clock, most, longest, batch)
        drafter = StageTimes(
            drafts.drafter(one.model), drafts.layout(layout), drafts.formats(one.formats), clock,
            most, longest, batch,
        )  # fmt: skip
        return StageTimes(
            one.model, layout, one.formats, clock, most, longest, batch, each, drafter
        )


def _groups(deployment: Deployment) -> int:
    """Return the attention-DP groups of a replica that write answers."""
    workers = deployment.pools.decode_workers if deployment.pools else 1
    return workers * deployment.layout.dp


def _cache_tokens(deployment: Deployment, layout: Layout, longest: int) -> float:
    """Return the tokens that the cache of a group has room for."""
    model, formats, workload = deployment.allocated, deployment.formats, deployment.workload
    taken = rank_memory(model, layout, formats, workload, 0, elsewhere=deployment.elsewhere).total
    room = USABLE * deployment.system.memory_gib * GIB - taken
    return room / request_bytes(model, layout, formats, longest) * longest


def _steady(deployment: Deployment) -> Requests:
    """Return requests that follow each other, as many at a time as the deployment has."""
    load, in_flight = deployment.workload, max(round(deployment.batch), 1)
    count = int(np.clip(ROUNDS * in_flight, FEWEST, max(MOST, 3 * in_flight)))
    return Requests.alike(np.zeros(count), load.isl, load.osl, load.prefix, in_flight)


def _at_random(deployment: Deployment, per_s: float) -> Requests:
    load = deployment.workload
    count = int(np.clip(ROUNDS * deployment.batch, FEWEST, MOST))
    return Requests.at_random(per_s, count, load.isl, load.osl, load.prefix)


def _settled(table: pd.DataFrame, in_flight: float) -> pd.DataFrame:
    """Return the requests of a deployment's usual state: neither its first nor its last ones.

    Those that are sent together at the beginning are not usual.
    """
    left_out = max(int(SETTLING * len(table)), int(np.ceil(in_flight)))
    some = table.iloc[left_out : len(table) - left_out]
    return some if len(some) else table
