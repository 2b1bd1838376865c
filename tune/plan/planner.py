"""The planner: every way to serve a model on some GPUs, predicted, and the best of them.

Candidates are predicted in one go, ten thousand and more per second, so that usual questions are
answered by looking at all of them; the largest are searched (`foretune.tune.plan.searching`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.search.pareto import pareto_front
from foretune.tune.plan.accuracy import AccuracyResult, recovery
from foretune.tune.plan.arrivals import GOOD, LoadCurve
from foretune.tune.plan.candidates import (
    Candidate,
    Service,
    one_pool,
    services,
    supported_formats,
    two_pools,
)
from foretune.tune.plan.correction import ServingCorrection
from foretune.tune.plan.deployment import Deployment
from foretune.tune.plan.description import ModelDescription
from foretune.tune.plan.formats import Formats
from foretune.tune.plan.keeping import keeps
from foretune.tune.plan.layout import legal_layouts
from foretune.tune.plan.memory import GIB, rank_memory
from foretune.tune.plan.physics import Clocks, physics
from foretune.tune.plan.power import deployment_power
from foretune.tune.plan.searching import ALL, searched
from foretune.tune.plan.serving import ServingModel, tokens_per_s
from foretune.tune.plan.steps import PARTS
from foretune.tune.plan.surer import Metric, probability_better
from foretune.tune.plan.system import System
from foretune.tune.plan.wish import Wish
from foretune.tune.plan.workload import Workload

IDENTITY = ["system", "formats", "tp", "pp", "dp", "ep", "prefill"]
"""Columns that tell deployments apart, whatever their load."""
LATENCIES = ("ttft_ms", "tpot_ms")


@dataclass(frozen=True)
class Plan:
    """All candidates, and the best.

    Attributes:
        candidates: one row each. What is deployed: ``system, gpus, formats, tp, pp, dp, ep,
            replicas, batch`` (requests in flight of a replica), ``prefill`` (the pool that reads
            prompts; empty where there is one pool), ``workers`` (of the pool that writes answers).
            What to expect: ``ttft_ms`` and ``tpot_ms`` (with ``_low`` and ``_high`` where measured
            deployments taught them), ``tokens_per_s_per_gpu``, ``requests_per_s`` of all replicas,
            ``memory_gib`` and ``power_w`` of a GPU, ``energy_mj_per_token`` of all of them,
            ``usd_per_million_tokens``, ``accuracy``, ``good`` (share of requests in time, at a
            given rate). Why: ``share_…`` of a step's parts, ``limited_by`` (the largest),
            ``decode_compute_bound`` and ``prefill_compute_bound`` (shares that computing limits),
            ``decode_power_w``, ``prefill_power_w``, ``prefill_share`` (of the busy time),
            ``guessed`` and ``energy_guessed`` (shares outside what was measured). What it is
            worth: ``sure`` (the probability of keeping to limits on times), ``keeps`` (to the
            wish), ``pareto`` (keeps, and nothing that does is better for its goal, or for
            throughput where that is latency, at as few milliseconds per token).
        deployments: of the rows, in the same order.
        wish: what was asked for.
        refused: systems without a candidate, and why.
        ahead: the probability that the best is better than the runner-up; None where nothing was
            learned from measured deployments that could say.
    """

    candidates: pd.DataFrame
    deployments: Sequence[Deployment]
    wish: Wish
    refused: dict[str, str]
    ahead: float | None = None

    @property
    def best(self) -> pd.Series:
        """The candidate that is best for the wish's goal of those that keep to its limits.

        Raises:
            UsageError: none does; the message says what can be reached.
        """
        keeping = self.candidates[self.candidates["keeps"]]
        if keeping.empty:
            raise UsageError(_nearest(self.candidates, self.wish))
        return _foremost(keeping, self.wish)

    @property
    def runner_up(self) -> pd.Series | None:
        """The best candidate whose formats, layout or system are not those of `best`."""
        best = self.best
        others = (self.candidates[IDENTITY] != best[IDENTITY]).any(axis=1)
        rivals = self.candidates[self.candidates["keeps"] & others]
        return None if rivals.empty else _foremost(rivals, self.wish)

    @property
    def pareto(self) -> pd.DataFrame:
        """Candidates that no other beats in both the goal and time per token, fastest first."""
        return self.candidates[self.candidates["pareto"]].sort_values("tpot_ms")

    @property
    def step_up(self) -> pd.Series | None:
        """The next candidate of the front that is faster per token than `best`, at least by 5 %."""
        front = self.pareto
        faster = front[front["tpot_ms"] <= 0.95 * self.best["tpot_ms"]]
        return None if faster.empty else faster.iloc[-1]

    @property
    def goodput(self) -> float:
        """Requests per second, arriving at random, that the best's replicas finish in time.

        Most of them do, the share `GOOD`; without limits on times, that is all that they finish.
        NaN for pools of their own, whose workers are matched to one load.
        """
        best = self.best
        if best["prefill"]:
            return np.nan
        loads = self.candidates[(self.candidates[IDENTITY] == best[IDENTITY]).all(axis=1)]
        osl = self.deployment(best).workload.osl
        return float(best["replicas"] * _curve(loads, osl, self.wish).goodput())

    @property
    def best_of_one_pool(self) -> pd.Series | None:
        """The best candidate whose workers all read prompts and write answers; None if none may."""
        alike = self.candidates[self.candidates["keeps"] & (self.candidates["prefill"] == "")]
        return None if alike.empty else _foremost(alike, self.wish)

    def deployment(self, row: pd.Series) -> Deployment:
        """Return the deployment of a row of `candidates`."""
        return self.deployments[int(row.name)]


def plan(
    model: ModelDescription,
    system: System | Sequence[System],
    gpus: int,
    workload: Workload,
    clocks: Clocks,
    wish: Wish | None = None,
    backend: str = "vllm",
    formats: Sequence[Formats] | None = None,
    correction: ServingCorrection | None = None,
    rate: float | None = None,
    pools: bool = False,
    accuracy: Sequence[AccuracyResult] | None = None,
) -> Plan:
    """Predict every deployment of ``model`` on ``gpus`` GPUs.

    Args:
        model: what is served.
        system: on which GPUs; of several systems each is looked at.
        gpus: how many; a layout of fewer is repeated as replicas.
        workload: lengths of the requests.
        clocks: say what operators take.
        wish: limits and goal; None has none, and wants throughput.
        backend: the engine.
        formats: to choose from; None takes what the GPU supports.
        correction: trained on measured deployments; None predicts by formulas, without intervals.
        rate: requests per second that arrive at random, for which the least replicas are sought
            that keep to the wish; None keeps each replica at every number of requests in flight.
        pools: whether prompts may be read by workers of their own; not at a given ``rate``.
        accuracy: measured qualities of formats; None takes the published ones.

    Raises:
        UsageError: the model fits nowhere; the message says what it needs.
    """
    wish = wish or Wish()
    systems = [system] if isinstance(system, System) else list(system)
    candidates: list[Candidate] = []
    refused: dict[str, str] = {}
    for one in systems:
        found = list(services(model, one, gpus, workload, backend, formats))
        fitting = one_pool(found)
        if not fitting:
            refused[one.name] = _too_large(model, one, gpus, found)
        candidates += fitting
        if pools and rate is None:
            candidates += two_pools(found, gpus, clocks)
    if not candidates:
        raise UsageError("; ".join(refused.values()))
    if len(candidates) > ALL:
        candidates, table = searched(
            candidates, lambda some: predict(some, clocks, correction, accuracy)
        )
    else:
        table = predict(candidates, clocks, correction, accuracy)
    if rate is not None:
        table = _at_rate(table, rate, workload, wish)
    else:
        table["good"] = np.nan
    table["sure"] = _sure(table, wish)
    table["keeps"] = wish.keeps(table) & ~(table["good"] < GOOD)
    if correction is not None:
        table["keeps"] &= table["sure"] >= correction.sure
    values = np.column_stack([-wish.score_of_many(table), table["tpot_ms"]])
    table["pareto"] = pareto_front(np.where(table["keeps"].to_numpy()[:, None], values, np.inf))
    made = Plan(table, [c.deployment for c in candidates], wish, refused)
    return made if correction is None else replace(made, ahead=_ahead(made, clocks, correction))


def _sure(table: pd.DataFrame, wish: Wish) -> np.ndarray:
    """Return how probable it is that limits on times are kept to; NaN without intervals."""
    if "tpot_ms_high" not in table:
        return np.full(len(table), np.nan)
    limits = {"ttft_ms": wish.ttft_ms, "tpot_ms": wish.tpot_ms}
    return np.min([keeps(table, name, limit) for name, limit in limits.items()], axis=0)


def _ahead(plan: Plan, clocks: Clocks, correction: ServingCorrection) -> float | None:
    """Return the probability that the best is better than the next, if times decide that."""
    metrics: dict[str, Metric] = {"throughput": "tokens_per_s", "latency": "tpot_ms"}
    metric = metrics.get(plan.wish.goal)
    if metric is None or not plan.candidates["keeps"].any():
        return None
    rival = plan.runner_up
    if rival is None or plan.best["good"] == plan.best["good"]:
        return None
    rows = physics([plan.deployment(row) for row in (plan.best, rival)], clocks)
    return float(probability_better(correction, rows, 0, metric)[1])


def predict(
    candidates: Sequence[Candidate],
    clocks: Clocks,
    correction: ServingCorrection | None = None,
    accuracy: Sequence[AccuracyResult] | None = None,
) -> pd.DataFrame:
    """Return what is to be expected of candidates: the columns of `Plan.candidates`, one row each.

    Args:
        candidates: deployments.
        clocks: say what operators take.
        correction: trained on measured deployments; None predicts by formulas.
        accuracy: measured qualities of formats; None takes the published ones.
    """
    rows = physics([c.deployment for c in candidates], clocks)
    latencies = (correction or ServingModel()).predict(rows)
    table = pd.DataFrame([_described(c) for c in candidates]).join(latencies)
    table["memory_gib"] = _memory_gib(candidates)
    table["accuracy"] = _accuracy(candidates, accuracy)
    per_s = tokens_per_s(rows["concurrency"].to_numpy(), rows["osl"].to_numpy(), latencies)
    all_per_s = per_s * table["replicas"].to_numpy(dtype=float)
    table["requests_per_s"] = all_per_s / rows["osl"]
    table["tokens_per_s_per_gpu"] = all_per_s / table["gpus"]
    shares = [f"share_{part}" for part in PARTS]
    kept = ["guessed", "energy_guessed", "decode_compute_bound", "prefill_compute_bound", *shares]
    table[kept] = rows[kept]
    table = table.join(deployment_power(rows, latencies))
    most = np.argmax(np.nan_to_num(rows[shares].to_numpy()), axis=1)
    table["limited_by"] = np.array(PARTS)[most]
    return _priced(table, candidates)


def _described(candidate: Candidate) -> dict[str, object]:
    deployment = candidate.deployment
    layout, pools = deployment.layout, deployment.pools
    return {
        "system": deployment.system.name,
        "gpus": candidate.gpus,
        "formats": str(deployment.formats),
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "ep": layout.moe_ep,
        "replicas": candidate.replicas,
        "batch": int(deployment.concurrency),
        "prefill": f"{pools.prefill_workers} × {pools.prefill}" if pools else "",
        "workers": pools.decode_workers if pools else 1,
    }


def _memory_gib(candidates: Sequence[Candidate]) -> np.ndarray:
    """Return the memory of the fullest GPU of each."""
    loads: dict[tuple[object, ...], list[int]] = {}
    for i, candidate in enumerate(candidates):
        d = candidate.deployment
        loads.setdefault((d.model, d.layout, d.formats, d.workload), []).append(i)
    found = np.empty(len(candidates))
    for index in loads.values():
        d = candidates[index[0]].deployment
        requests = np.array([candidates[i].deployment.of_a_worker for i in index])
        memory = rank_memory(d.model, d.layout, d.formats, d.workload, requests)
        found[index] = memory.gib
    return found


def _accuracy(
    candidates: Sequence[Candidate], results: Sequence[AccuracyResult] | None
) -> list[float]:
    """Return the share of quality that the formats of each keep; NaN where nobody published."""
    known: dict[Formats, float] = {}
    for candidate in candidates:
        d = candidate.deployment
        if d.formats not in known:
            kept = recovery(d.formats, d.model, results)
            known[d.formats] = np.nan if kept is None else kept
    return [known[c.deployment.formats] for c in candidates]


def _priced(table: pd.DataFrame, candidates: Sequence[Candidate]) -> pd.DataFrame:
    """Return ``table`` with what a million tokens cost."""
    hourly = np.array([c.deployment.system.price_per_hour for c in candidates], dtype=float)
    return table.assign(
        usd_per_million_tokens=hourly * 1e6 / 3600 / table["tokens_per_s_per_gpu"],
    )


def _curve(loads: pd.DataFrame, osl: int, wish: Wish) -> LoadCurve:
    """Return what a replica does at any load, of its rows at some."""
    table = loads.sort_values("batch")[["batch", *LATENCIES]]
    batch, ttft_ms, tpot_ms = table.to_numpy(dtype=float).T
    return LoadCurve(batch, ttft_ms, tpot_ms, osl, wish)


def _at_rate(table: pd.DataFrame, rate: float, workload: Workload, wish: Wish) -> pd.DataFrame:
    """Return one row per deployment that can keep up: its least replicas at a rate of requests."""
    rows = []
    for _, same in table.groupby(IDENTITY, sort=False, dropna=False):
        row = _least_replicas(same, rate, workload, wish)
        if row is not None:
            rows.append(row)
    if not rows:
        most = table["requests_per_s"].max()
        raise UsageError(
            f"{rate:g} requests per second are too many: these GPUs finish {most:.3g} at most"
        )
    return pd.DataFrame(rows)


def _least_replicas(
    loads: pd.DataFrame, rate: float, workload: Workload, wish: Wish
) -> pd.Series | None:
    """Return the row of the least replicas whose requests keep to the wish, else of all of them."""
    curve = _curve(loads, workload.osl, wish)
    first = loads.iloc[0]
    each = first["gpus"] // first["replicas"]
    load, replicas = None, 0
    for replicas in range(1, first["replicas"] + 1):
        load = curve.at(rate / replicas)
        if load and load.good >= GOOD:
            break
    if load is None:
        return None
    nearest = (loads["batch"] - load.in_flight).abs().idxmin()
    row = loads.loc[nearest].copy()
    for name, value in (("ttft_ms", load.ttft_ms), ("tpot_ms", load.tpot_ms)):
        for end in ("_low", "_high"):
            if f"{name}{end}" in row:
                row[f"{name}{end}"] *= value / row[name]
        row[name] = value
    per_gpu = rate * workload.osl / (replicas * each)
    row["usd_per_million_tokens"] *= row["tokens_per_s_per_gpu"] / per_gpu
    row["tokens_per_s_per_gpu"], row["requests_per_s"] = per_gpu, rate
    row["replicas"], row["gpus"], row["good"] = replicas, replicas * each, load.good
    row["batch"] = max(round(load.in_flight), 1)
    return row


def _foremost(rows: pd.DataFrame, wish: Wish) -> pd.Series:
    """Return the best row; of equal ones that with the least time per token."""
    order = pd.DataFrame({"score": -wish.score(rows), "tpot": rows["tpot_ms"]})
    return rows.loc[order.sort_values(["score", "tpot"], kind="stable").index[0]]


def _nearest(table: pd.DataFrame, wish: Wish) -> str:
    broken = wish.broken(table)
    if broken:
        return f"no deployment keeps to the limits; the nearest is {', '.join(broken)}"
    fastest = table.loc[table["tpot_ms"].idxmin()]
    return (
        "no deployment keeps to all limits at once: relax one of them; the fastest takes "
        f"{fastest['tpot_ms']:.1f} ms per token and {fastest['ttft_ms']:.0f} ms to the first"
    )


def _too_large(model: ModelDescription, system: System, gpus: int, found: Sequence[Service]) -> str:
    formats = {s.formats for s in found} or set(supported_formats(model, system))
    needed = [
        rank_memory(model, layout, these, found[0].workload, layout.dp).total / GIB
        for these in formats
        for layout in (legal_layouts(model, gpus, these) if found else ())
    ]
    if not needed:
        return f"{model.name} cannot be spread over {gpus} GPUs in these formats: try other numbers"
    return (
        f"{model.name} fits nowhere on {gpus} × {system.name} ({system.memory_gib:.0f} GiB each): "
        f"a GPU needs at least {min(needed):.0f} GiB; take more --gpus or smaller --formats"
    )
