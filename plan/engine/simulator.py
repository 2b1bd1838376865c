"""Simulates requests step by step: queueing, prefill, decode.

A pipeline has one batch per stage in flight. When a batch returns from the last stage, finished
requests leave, waiting ones fill it, and it starts again. With overlap scheduling, a finished
request is still part of the next step. Requests are admitted only if the cache has room for all
their tokens, so none is evicted.
"""

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from heapq import heappop, heappush
from math import ceil, inf
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from foretune.datasets.importers.files import read_table, require
from foretune.errors import RunTableError, UsageError
from foretune.plan.describe.system import System
from foretune.plan.engine.stage_times import Stages, StepLoad
from foretune.support.files import translate_read_errors

COLUMNS = ("at_s", "isl", "osl")
"""Columns of a trace: arrival in seconds, tokens of the prompt and of the answer."""
CACHED = "cached"
"""Optional column: cached tokens of the prompt."""
MAX_TOKENS = 2**31
"""Maximum tokens of a request."""


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival.

    Attributes:
        isl, osl: tokens of prompts and answers.
        in_flight: requests in flight; the next arrives when one ends. With 0, they arrive at
            ``arrival_ms``.
    """

    arrival_ms: np.ndarray
    isl: np.ndarray
    osl: np.ndarray
    cached: np.ndarray
    in_flight: int = 0

    def __len__(self) -> int:
        return len(self.arrival_ms)

    @classmethod
    def uniform(
        cls, arrival_ms: np.ndarray, isl: int, osl: int, cached: int = 0, in_flight: int = 0
    ) -> "Requests":
        """Return equal requests with given arrival times."""
        isls, osls, cached_ = (np.full(len(arrival_ms), n) for n in (isl, osl, cached))
        return cls(np.asarray(arrival_ms, dtype=float), isls, osls, cached_, in_flight)

    @classmethod
    def poisson(
        cls, per_s: float, count: int, isl: int, osl: int, cached: int = 0, seed: int = 0
    ) -> "Requests":
        """Return equal requests with Poisson arrivals, ``per_s`` per second."""
        gaps = np.random.default_rng(seed).exponential(1e3 / per_s, count)
        return cls.uniform(np.cumsum(gaps), isl, osl, cached)

    def shard(self, part: int, parts: int) -> "Requests":
        """Return every ``parts``-th request from ``part`` on: the share of one server."""
        own = slice(part, None, parts)
        arrays = self.arrival_ms[own], self.isl[own], self.osl[own], self.cached[own]
        return Requests(*arrays, -(-self.in_flight // parts))


def read_numbers(
    path: str | os.PathLike[str], columns: Sequence[str], what: str, optional: str = ""
) -> pd.DataFrame:
    """Return numeric columns of a CSV or Parquet file, NaN for texts; raises RunTableError."""
    table = read_table(Path(path), columns)
    require(table, columns, Path(path), what)
    with translate_read_errors(path, RunTableError, "is damaged: {}"):
        found = [name for name in (*columns, optional) if name in table]
        return table[found].apply(pd.to_numeric, errors="coerce")


def read_trace(path: str | os.PathLike[str]) -> Requests:
    """Return the requests of a CSV or Parquet file.

    Columns are ``at_s``, ``isl``, ``osl`` and optionally ``cached``. Raises RunTableError if the
    file cannot be read, lacks a column, or has an invalid row.
    """
    numbers = read_numbers(path, COLUMNS, "a trace of requests", CACHED)
    if numbers.empty:
        raise RunTableError(f"{path} has no rows: it needs one per request")
    numbers[CACHED] = numbers.get(CACHED, 0)
    integral = (numbers[["isl", "osl", CACHED]] % 1 == 0).all(axis=1)
    valid = integral & (numbers["at_s"] >= 0) & (numbers["at_s"] < np.inf) & (numbers["isl"] >= 1)
    valid &= (numbers[["isl", "osl"]] < MAX_TOKENS).all(axis=1)
    valid &= (numbers["osl"] >= 1) & (numbers[CACHED] >= 0) & (numbers[CACHED] < numbers["isl"])
    if not valid.all():
        row = int(np.flatnonzero(~valid.to_numpy())[0]) + 1
        raise RunTableError(
            f"{path}, row {row}: at_s must be 0 or more seconds, isl and osl whole numbers of "
            "at least 1 token, cached less than isl"
        )
    sorted_ = numbers.sort_values("at_s", kind="stable")
    isl, osl, cached = (sorted_[name].to_numpy(dtype=int) for name in ("isl", "osl", CACHED))
    return Requests(1e3 * sorted_["at_s"].to_numpy(dtype=float), isl, osl, cached)


CUDA_GRAPH_SIZES = (1, 2, 4, *range(8, 513, 8))
"""Decode batch sizes captured by default (vLLM's ``cudagraph_capture_sizes``)."""
HOST_SLOWDOWN = {"gb200": 1.65, "gb300": 1.65}
"""System -> CPU time relative to x86 servers.

Grace is slower at the engines' Python code: measured on CPU-bound Qwen3-30B-A3B, GB200 against B200
with x86.
"""


@dataclass(frozen=True)
class Host:
    """CPU time per step and stage; all three engines schedule in Python.

    Defaults are those of TensorRT-LLM 1.0 (PyTorch flow), fitted to published throughputs of
    Llama-3.1-70B in pipelines and Qwen3-30B-A3B on one GPU.
    If it ``overlaps``, a step is prepared while the GPU computes the previous one. Kernel launches
    overlap in either case.
    """

    step_ms: float = 1.0
    request_ms: float = 0.015  # per request in the step, for inputs and outputs
    token_ms: float = 0.002  # per prompt token in the step
    active_ms: float = 0.003  # per admitted request, in the step or not: engines scan them all
    layer_ms: float = 0.4  # to launch a layer's kernels without a CUDA graph
    overlaps: bool = True

    @classmethod
    def for_system(cls, system: System, depth: int = 1) -> Self:
        """Return the host times of a system's servers; pipelines do not overlap steps."""
        slowdown = HOST_SLOWDOWN.get(system.name, 1.0)
        names = [f.name for f in fields(cls) if f.name != "overlaps"]
        times = {name: slowdown * getattr(cls, name) for name in names}
        return cls(**times, overlaps=depth == 1)

    def step_time_ms(
        self, gpu_ms: float, requests: int, tokens: int, active: int, launched: float
    ) -> float:
        """Return the duration of a step.

        ``requests`` and prompt ``tokens`` are those in the step, ``active`` counts all admitted
        requests, ``launched`` the layers without a CUDA graph.
        """
        host_ms = self.step_ms + self.request_ms * requests
        host_ms += self.token_ms * tokens + self.active_ms * active
        launch_ms = self.layer_ms * launched
        return (
            max(gpu_ms, host_ms + launch_ms) if self.overlaps else host_ms + max(gpu_ms, launch_ms)
        )


@dataclass(frozen=True)
class Scheduler:
    """Limits of one attention-DP group."""

    step_tokens: int  # maximum tokens per step
    max_batch: int  # maximum requests per step; a pipeline has one step per stage in flight
    cache_tokens: float  # capacity of the cache, over all requests in flight
    chunked: bool = True  # whether prompts are split over steps, else wait for one with room
    host: Host = Host()  # CPU times
    graph_sizes: tuple[int, ...] = CUDA_GRAPH_SIZES  # captured batches; steps are padded
    drafted: int = 0  # tokens drafted per request and step, verified in the next
    accepted_tokens: float = 1.0  # mean tokens per request and step

    def graph_size(self, requests: int) -> int:
        """Return the size of the CUDA graph for ``requests`` answers; 0 if none fits."""
        place = bisect_left(self.graph_sizes, requests)
        size = self.graph_sizes[place] if place < len(self.graph_sizes) else 0
        return min(size, max(self.max_batch, requests))


def simulate_requests(
    requests: Requests, scheduler: Scheduler, stages: Stages, depth: int = 1
) -> pd.DataFrame:
    """Return when each request got its first and last token.

    The table has one row per request: ``arrived_ms``, ``first_ms``, ``last_ms``, ``ttft_ms`` and
    ``tpot_ms`` (0 for one-token answers). ``stages`` returns the work of every stage for a step,
    ``depth`` is their number. Raises UsageError if a request exceeds the cache, or an unchunked
    prompt exceeds a step.
    """
    engine = _Engine(requests, scheduler)
    batches, stage_free_ms = [_Batch() for _ in range(depth)], [0.0] * depth
    host, max_active = scheduler.host, scheduler.max_batch * depth
    turn = 0
    while engine.remaining:
        batch = batches[turn]
        turn = (turn + 1) % depth
        now = max(batch.ready_ms, stage_free_ms[0])
        prompts = engine.schedule_prompts(batch, now)
        if not prompts and not batch.answers:
            # Idle: retry when another batch may have freed memory, or a request arrives.
            next_ready = [b.ready_ms for b in batches if b.ready_ms > now]
            batch.ready_ms = min([engine.next_arrival(now), *next_ready])
            continue
        load = StepLoad(
            batch.answers,
            batch.context,
            prompts,
            len(batch.finished_prompts),
            1 + scheduler.drafted,
        )
        tokens = sum(new for new, _ in prompts)
        active = min(len(engine.waiting) + sum(b.requests for b in batches), max_active)
        graph = 0 if prompts else scheduler.graph_size(batch.answers)
        for stage, work in enumerate(stages(load, max(graph - batch.answers, 0))):
            step_ms = host.step_time_ms(
                work.ms, batch.requests, tokens, active, 0 if graph else work.layers
            )
            now = stage_free_ms[stage] = max(now, stage_free_ms[stage]) + step_ms
        batch.ready_ms = now
        engine.finish_step(batch, now)
    return engine.table()


@dataclass
class _Batch:
    """Requests computed together; it returns from the last stage at ``ready_ms``."""

    ready_ms: float = 0.0
    answers: int = 0  # decoding requests
    context: float = 0.0  # their cached tokens
    step: int = 0
    completions: list[tuple[int, int]] = field(default_factory=list)  # heap of last step, request
    partial_prompts: list[tuple[int, int]] = field(default_factory=list)  # with prefilled tokens
    finished_prompts: list[int] = field(default_factory=list)  # prefill ends in this step
    pending_removal: list[int] = field(default_factory=list)  # finished, but in the prepared step

    @property
    def requests(self) -> int:
        return self.answers + len(self.partial_prompts) + len(self.finished_prompts)


class _Engine:
    """Future and waiting requests, and the free cache."""

    def __init__(self, requests: Requests, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._isl, self._osl, self._cached = (
            getattr(requests, name).astype(int).tolist() for name in ("isl", "osl", "cached")
        )
        self._check()
        self._arrival_ms = requests.arrival_ms.astype(float).tolist()
        self._first, self._last = [0.0] * len(self._arrival_ms), [0.0] * len(self._arrival_ms)
        self._free_tokens = scheduler.cache_tokens
        self.remaining, self._arrived = len(self._arrival_ms), 0
        self.waiting: deque[int] = deque()
        self._next_request = min(requests.in_flight or self.remaining, self.remaining)
        self._arrival_ms[self._next_request :] = [inf] * (self.remaining - self._next_request)

    def next_arrival(self, now: float) -> float:
        """Return when the next request arrives; ``now`` if none is left."""
        pending = self._arrived < len(self._arrival_ms) and self._arrival_ms[self._arrived] < inf
        return max(self._arrival_ms[self._arrived], now) if pending else now

    def schedule_prompts(self, batch: _Batch, now: float) -> list[tuple[int, int]]:
        """Choose prompts, partly prefilled ones first: (new tokens, earlier tokens) of each."""
        while self._arrived < len(self._arrival_ms) and self._arrival_ms[self._arrived] <= now:
            self.waiting.append(self._arrived)
            self._arrived += 1
        budget = self._scheduler.step_tokens - batch.answers * (1 + self._scheduler.drafted)
        prompts: list[tuple[int, int]] = []
        partial_prompts, batch.partial_prompts, batch.finished_prompts = (
            batch.partial_prompts,
            [],
            [],
        )
        for request, before in partial_prompts:
            budget -= self._read_prompt(batch, request, before, budget, prompts)
        while self.waiting and budget > 0 and batch.requests < self._scheduler.max_batch:
            request = self.waiting[0]
            new = self._isl[request] - self._cached[request]
            if self._final_tokens(request) > self._free_tokens or (
                new > budget and not self._scheduler.chunked
            ):
                break
            self._free_tokens -= self._final_tokens(self.waiting.popleft())
            budget -= self._read_prompt(batch, request, self._cached[request], budget, prompts)
        return prompts

    def finish_step(self, batch: _Batch, now: float) -> None:
        """Assign the step's tokens to requests, and remove finished ones."""
        accepted_tokens = self._scheduler.accepted_tokens
        batch.step += 1
        batch.context += batch.answers * accepted_tokens
        leaving, batch.pending_removal = batch.pending_removal, []
        for request in leaving:
            self._release(batch, request, self._final_tokens(request) + accepted_tokens)
        while batch.completions and batch.completions[0][0] <= batch.step:
            request = heappop(batch.completions)[1]
            self._finish_request(request, now)
            if self._scheduler.host.overlaps:
                batch.pending_removal.append(request)
            else:
                self._release(batch, request, self._final_tokens(request))
        for request in batch.finished_prompts:
            self._first[request] = now
            if self._osl[request] == 1:
                self._finish_request(request, now)
                self._free_tokens += self._final_tokens(request)
                continue
            steps = ceil((self._osl[request] - 1) / accepted_tokens)
            batch.answers += 1
            batch.context += self._final_tokens(request) - steps * accepted_tokens
            heappush(batch.completions, (batch.step + steps, request))
        batch.finished_prompts = []

    def table(self) -> pd.DataFrame:
        """Return the times of every request."""
        arrived, first, last = (np.array(v) for v in (self._arrival_ms, self._first, self._last))
        tpot = (last - first) / np.maximum(np.array(self._osl) - 1, 1)
        return pd.DataFrame(
            {
                "arrived_ms": arrived,
                "first_ms": first,
                "last_ms": last,
                "ttft_ms": first - arrived,
                "tpot_ms": tpot,
            }
        )

    def _read_prompt(
        self, batch: _Batch, request: int, before: int, budget: int, prompts: list[tuple[int, int]]
    ) -> int:
        """Prefill as much of a prompt as the budget allows; return the number of tokens."""
        new = max(min(self._isl[request] - before, budget), 0)
        if new:
            prompts.append((new, before))
        if before + new == self._isl[request]:
            batch.finished_prompts.append(request)
        else:
            batch.partial_prompts.append((request, before + new))
        return new

    def _finish_request(self, request: int, now: float) -> None:
        """Record a request's last token; with a fixed number in flight, the next arrives."""
        self._last[request] = now
        self.remaining -= 1
        if self._next_request < len(self._arrival_ms):
            self._arrival_ms[self._next_request] = now
            self._next_request += 1

    def _release(self, batch: _Batch, request: int, context: float) -> None:
        batch.answers -= 1
        batch.context -= context
        self._free_tokens += self._final_tokens(request)

    def _final_tokens(self, request: int) -> int:
        """Return a request's cached tokens when it ends."""
        return self._isl[request] + self._osl[request]

    def _check(self) -> None:
        limits = self._scheduler
        longest = max(map(self._final_tokens, range(len(self._isl))), default=0)
        if longest > limits.cache_tokens:
            raise UsageError(
                f"a request of {longest:,} tokens exceeds the cache of {limits.cache_tokens:,.0f}: "
                "use more GPUs or a smaller cache format"
            )
        new = max((i - c for i, c in zip(self._isl, self._cached, strict=True)), default=0)
        if not limits.chunked and new > limits.step_tokens:
            raise UsageError(
                f"a prompt of {new:,} tokens exceeds a step of {limits.step_tokens:,}: "
                "allow chunked prefill, or larger steps"
            )
