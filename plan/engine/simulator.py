"""Simulates requests step by step: queueing, prefill, decode.

A pipeline has one batch per stage in flight. When a batch returns from the last stage, finished
requests leave, waiting ones fill it, and it starts again. With overlap scheduling, a finished
request is still part of the next step. Requests are admitted only if the cache has room for all
their tokens, so none is evicted.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.plan.engine.host import CUDA_GRAPH_SIZES, Host
from foretune.plan.engine.requests import Requests
from foretune.plan.engine.stage_times import Stages, StepLoad


@dataclass(frozen=True)
class Scheduler:
    """Limits of one attention-DP group."""

    step_tokens: int  # maximum tokens per step
    max_batch: int  # maximum requests per step; a pipeline has one step per stage in flight
    cache_tokens: float  # capacity of the cache, over all requests in flight
    chunked: bool = True  # whether prompts are split over steps, else wait for one with room
    host: Host = Host()  # CPU times  # noqa: RUF009 - immutable
    graph_sizes: tuple[int, ...] = CUDA_GRAPH_SIZES  # captured batches; steps are padded
    drafted: int = 0  # tokens drafted per request and step, verified in the next
    accepted_tokens: float = 1.0  # mean tokens per request and step

    def graph_size(self, requests: int) -> int:
        """Return the size of the CUDA graph for ``requests`` answers; 0 if none fits."""
        position = bisect_left(self.graph_sizes, requests)
        if position == len(self.graph_sizes):
            return 0
        return min(self.graph_sizes[position], max(self.max_batch, requests))


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
    batches = [_Batch() for _ in range(depth)]
    stage_free_ms = [0.0] * depth
    max_active = scheduler.max_batch * depth

    # The batches of a pipeline take turns.
    turn = 0
    while engine.remaining:
        batch = batches[turn]
        turn = (turn + 1) % depth
        now = max(batch.ready_ms, stage_free_ms[0])
        prompts = engine.schedule_prompts(batch, now)
        if not prompts and not batch.answers:
            # Idle: retry when another batch may have freed memory, or a request arrives.
            later = [other.ready_ms for other in batches if other.ready_ms > now]
            batch.ready_ms = min([engine.next_arrival(now), *later])
            continue

        load = StepLoad(
            answers=batch.answers,
            context=batch.context,
            prompts=prompts,
            finished_prompts=len(batch.finished_prompts),
            tokens_per_answer=1 + scheduler.drafted,
        )
        prompt_tokens = sum(new for new, _ in prompts)
        admitted = len(engine.waiting) + sum(other.requests for other in batches)

        # Steps without prompts are padded to the size of a CUDA graph, if one fits.
        graph_size = 0 if prompts else scheduler.graph_size(batch.answers)
        padded = max(graph_size - batch.answers, 0)

        # The batch goes through the stages; each is free when it has done the batch before.
        for stage, work in enumerate(stages(load, padded)):
            step_ms = scheduler.host.step_time_ms(
                work.ms,
                requests=batch.requests,
                tokens=prompt_tokens,
                active=min(admitted, max_active),
                launched=0 if graph_size else work.layers,
                prompts=len(prompts),
            )
            now = max(now, stage_free_ms[stage]) + step_ms
            stage_free_ms[stage] = now
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
        """Requests of the batch: decoding, and with a prompt in the step."""
        return self.answers + len(self.partial_prompts) + len(self.finished_prompts)


class _Engine:
    """Future and waiting requests, and the free cache."""

    def __init__(self, requests: Requests, scheduler: Scheduler) -> None:
        # Lists of Python numbers: they are read one by one.
        self._isl: list[int] = requests.isl.astype(int).tolist()
        self._osl: list[int] = requests.osl.astype(int).tolist()
        self._cached: list[int] = requests.cached.astype(int).tolist()
        self._arrival_ms: list[float] = requests.arrival_ms.astype(float).tolist()
        self._scheduler = scheduler
        self._check()

        count = len(requests)
        self.remaining = count
        self.waiting: deque[int] = deque()
        self._first_ms = [0.0] * count
        self._last_ms = [0.0] * count
        self._free_tokens = scheduler.cache_tokens
        self._arrived = 0

        # With a fixed number in flight, later requests arrive when earlier ones end.
        self._next_request = min(requests.in_flight or count, count)
        self._arrival_ms[self._next_request :] = [inf] * (count - self._next_request)

    def next_arrival(self, now: float) -> float:
        """Return when the next request arrives; ``now`` if none is left."""
        if self._arrived == len(self._arrival_ms):
            return now
        arrival_ms = self._arrival_ms[self._arrived]
        return max(arrival_ms, now) if arrival_ms < inf else now

    def schedule_prompts(self, batch: _Batch, now: float) -> list[tuple[int, int]]:
        """Choose prompts, partly prefilled ones first: (new tokens, earlier tokens) of each."""
        self._admit_arrivals(now)
        decode_tokens = batch.answers * (1 + self._scheduler.drafted)
        budget = self._scheduler.step_tokens - decode_tokens
        prompts: list[tuple[int, int]] = []

        # Prompts that the last step has left unfinished go on.
        unfinished = batch.partial_prompts
        batch.partial_prompts = []
        batch.finished_prompts = []
        for request, before in unfinished:
            budget -= self._read_prompt(batch, request, before, budget=budget, prompts=prompts)

        # New ones start in order of arrival, if the cache has room for all their tokens.
        while self.waiting and budget > 0 and batch.requests < self._scheduler.max_batch:
            request = self.waiting[0]
            before = self._cached[request]
            new = self._isl[request] - before
            must_wait = new > budget and not self._scheduler.chunked
            if must_wait or self._final_tokens(request) > self._free_tokens:
                break
            self.waiting.popleft()
            self._free_tokens -= self._final_tokens(request)
            budget -= self._read_prompt(batch, request, before, budget=budget, prompts=prompts)
        return prompts

    def finish_step(self, batch: _Batch, now: float) -> None:
        """Assign the step's tokens to requests, and remove finished ones."""
        accepted_tokens = self._scheduler.accepted_tokens
        batch.step += 1
        batch.context += batch.answers * accepted_tokens

        # Requests that ended in the step before were still part of this one.
        leaving = batch.pending_removal
        batch.pending_removal = []
        for request in leaving:
            self._release(batch, request, context=self._final_tokens(request) + accepted_tokens)

        # Requests that end now. With overlap, the next step is prepared with them.
        while batch.completions and batch.completions[0][0] <= batch.step:
            _, request = heappop(batch.completions)
            self._finish_request(request, now)
            if self._scheduler.host.overlaps:
                batch.pending_removal.append(request)
            else:
                self._release(batch, request, context=self._final_tokens(request))

        # Prompts whose last token was computed: the first token of their answer.
        for request in batch.finished_prompts:
            self._first_ms[request] = now
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
        arrived_ms = np.array(self._arrival_ms)
        first_ms = np.array(self._first_ms)
        last_ms = np.array(self._last_ms)
        further_tokens = np.array(self._osl) - 1
        return pd.DataFrame(
            {
                "arrived_ms": arrived_ms,
                "first_ms": first_ms,
                "last_ms": last_ms,
                "ttft_ms": first_ms - arrived_ms,
                "tpot_ms": (last_ms - first_ms) / np.maximum(further_tokens, 1),
            }
        )

    def _admit_arrivals(self, now: float) -> None:
        """Add the requests that have arrived to the waiting ones."""
        while self._arrived < len(self._arrival_ms) and self._arrival_ms[self._arrived] <= now:
            self.waiting.append(self._arrived)
            self._arrived += 1

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
        self._last_ms[request] = now
        self.remaining -= 1
        if self._next_request < len(self._arrival_ms):
            self._arrival_ms[self._next_request] = now
            self._next_request += 1

    def _release(self, batch: _Batch, request: int, context: float) -> None:
        """Remove a request with ``context`` cached tokens from its batch, and free its cache."""
        batch.answers -= 1
        batch.context -= context
        self._free_tokens += self._final_tokens(request)

    def _final_tokens(self, request: int) -> int:
        """Return a request's cached tokens when it ends."""
        return self._isl[request] + self._osl[request]

    def _check(self) -> None:
        """Raise UsageError if a request can never be served."""
        limits = self._scheduler
        longest = max(map(self._final_tokens, range(len(self._isl))), default=0)
        if longest > limits.cache_tokens:
            raise UsageError(
                f"a request of {longest:,} tokens exceeds the cache of {limits.cache_tokens:,.0f}: "
                "use more GPUs or a smaller cache format"
            )

        new_tokens = [isl - cached for isl, cached in zip(self._isl, self._cached, strict=True)]
        longest_prompt = max(new_tokens, default=0)
        if not limits.chunked and longest_prompt > limits.step_tokens:
            raise UsageError(
                f"a prompt of {longest_prompt:,} tokens exceeds a step of {limits.step_tokens:,}: "
                "allow chunked prefill, or larger steps"
            )
