"""Requests replayed step by step: who waits, who is read, who writes, and how long that takes.

As many batches are under way as a pipeline has stages. Whenever one comes back from the last stage,
requests that ended leave it, those that wait fill it, and it goes to the first stage again. Where a
step is prepared while the one before runs (overlap scheduling), a request that ends is still part
of the next. Requests are let in only if the cache has room for all their tokens, so that none is
ever evicted.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.plan.engine.requests import Requests
from foretune.plan.engine.scheduler import Scheduler
from foretune.plan.engine.stage_times import Stages, StepLoad


def simulate_requests(
    requests: Requests, scheduler: Scheduler, stages: Stages, depth: int = 1
) -> pd.DataFrame:
    """Return when each request got its first and its last token.

    Args:
        requests: of one attention-DP group.
        scheduler: its limits.
        stages: says the work of every stage for a step.
        depth: stages of the pipeline.

    Returns:
        One row per request, in their order: ``arrived_ms``, ``first_ms``, ``last_ms``, ``ttft_ms``
        and ``tpot_ms`` (0 for an answer of one token).

    Raises:
        UsageError: a request alone exceeds the cache, or a step that must read a prompt as a whole.
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
            # Nothing to do: come back when another batch may have made room, or one arrives.
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
    """Requests that are computed together.

    Attributes:
        ready_ms: when it is back from the last stage.
        answers: requests that write.
        context: tokens in their caches.
        step: how many steps it has made.
        completions: (step, request) of those that write, the first to end first.
        partial_prompts: requests whose prompts are read in part, and how many of their tokens are.
        finished_prompts: requests whose prompts the present step ends.
        pending_removal: requests that have their last token, and still are in the step that was
            prepared before it was there.
    """

    ready_ms: float = 0.0
    answers: int = 0
    context: float = 0.0
    step: int = 0
    completions: list[tuple[int, int]] = field(default_factory=list)
    partial_prompts: list[tuple[int, int]] = field(default_factory=list)
    finished_prompts: list[int] = field(default_factory=list)
    pending_removal: list[int] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.answers + len(self.partial_prompts) + len(self.finished_prompts)


class _Engine:
    """Requests on their way: those to come, those that wait, and room in the cache."""

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
        """Return when the next request arrives; ``now`` if none is to come."""
        pending = self._arrived < len(self._arrival_ms) and self._arrival_ms[self._arrived] < inf
        return max(self._arrival_ms[self._arrived], now) if pending else now

    def schedule_prompts(self, batch: _Batch, now: float) -> list[tuple[int, int]]:
        """Choose the prompts of the batch's next step: new tokens and tokens before, of each.

        Answers come first, then prompts that were begun, then those that wait.
        """
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
        """Give the step's tokens to their requests, and let those that ended go."""
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
        """Return what happened to every request."""
        arrived, first, last = (np.array(v) for v in (self._arrival_ms, self._first, self._last))
        tpot = (last - first) / np.maximum(np.array(self._osl) - 1, 1)
        return pd.DataFrame(
            {"arrived_ms": arrived, "first_ms": first, "last_ms": last,
             "ttft_ms": first - arrived, "tpot_ms": tpot}
        )  # fmt: skip

    def _read_prompt(
        self,
        batch: _Batch,
        request: int,
        before: int,
        budget: int,
        prompts: list[tuple[int, int]],
    ) -> int:
        """Read as much of a prompt as the budget allows, and return how much."""
        new = max(min(self._isl[request] - before, budget), 0)
        if new:
            prompts.append((new, before))
        if before + new == self._isl[request]:
            batch.finished_prompts.append(request)
        else:
            batch.partial_prompts.append((request, before + new))
        return new

    def _finish_request(self, request: int, now: float) -> None:
        """Note a request's last token; where requests follow each other, the next arrives."""
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
        """Return what a request takes in the cache when it ends."""
        return self._isl[request] + self._osl[request]

    def _check(self) -> None:
        limits = self._scheduler
        longest = max(map(self._final_tokens, range(len(self._isl))), default=0)
        if longest > limits.cache_tokens:
            raise UsageError(
                f"a request of {longest:,} tokens exceeds the cache of {limits.cache_tokens:,.0f}: "
                "take more GPUs or a smaller format of the cache"
            )
        new = max((i - c for i, c in zip(self._isl, self._cached, strict=True)), default=0)
        if not limits.chunked and new > limits.step_tokens:
            raise UsageError(
                f"a prompt of {new:,} tokens exceeds a step of {limits.step_tokens:,}: "
                "allow chunked prefill, or larger steps"
            )
