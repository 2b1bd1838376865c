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


def replay(
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
    batches, free = [_Batch() for _ in range(depth)], [0.0] * depth
    host, most_active = scheduler.host, scheduler.batch * depth
    turn = 0
    while engine.left:
        batch = batches[turn]
        turn = (turn + 1) % depth
        now = max(batch.ready_ms, free[0])
        prompts = engine.fill(batch, now)
        if not prompts and not batch.answers:
            # Nothing to do: come back when another batch may have made room, or one arrives.
            soon = [b.ready_ms for b in batches if b.ready_ms > now]
            batch.ready_ms = min([engine.next_arrival(now), *soon])
            continue
        load = StepLoad(
            batch.answers, batch.context, prompts, len(batch.read), 1 + scheduler.drafted
        )
        tokens = sum(new for new, _ in prompts)
        active = min(len(engine.waiting) + sum(b.requests for b in batches), most_active)
        graph = 0 if prompts else scheduler.graph(batch.answers)
        for stage, work in enumerate(stages(load, max(graph - batch.answers, 0))):
            took = host.ms(work.ms, batch.requests, tokens, active, 0 if graph else work.layers)
            now = free[stage] = max(now, free[stage]) + took
        batch.ready_ms = now
        engine.finish(batch, now)
    return engine.table()


@dataclass
class _Batch:
    """Requests that are computed together.

    Attributes:
        ready_ms: when it is back from the last stage.
        answers: requests that write.
        context: tokens in their caches.
        step: how many steps it has made.
        ends: (step, request) of those that write, the first to end first.
        begun: requests whose prompts are read in part, and how many of their tokens are.
        read: requests whose prompts the present step ends.
        ended: requests that have their last token, and still are in the step that was prepared
            before it was there.
    """

    ready_ms: float = 0.0
    answers: int = 0
    context: float = 0.0
    step: int = 0
    ends: list[tuple[int, int]] = field(default_factory=list)
    begun: list[tuple[int, int]] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.answers + len(self.begun) + len(self.read)


class _Engine:
    """Requests on their way: those to come, those that wait, and room in the cache."""

    def __init__(self, requests: Requests, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._isl, self._osl, self._cached = (
            getattr(requests, name).astype(int).tolist() for name in ("isl", "osl", "cached")
        )
        self._check()
        self._at = requests.at_ms.astype(float).tolist()
        self._first, self._last = [0.0] * len(self._at), [0.0] * len(self._at)
        self._room = scheduler.cache_tokens
        self.left, self._came = len(self._at), 0
        self.waiting: deque[int] = deque()
        self._follow = min(requests.in_flight or self.left, self.left)
        self._at[self._follow :] = [inf] * (self.left - self._follow)

    def next_arrival(self, now: float) -> float:
        """Return when the next request arrives; ``now`` if none is to come."""
        later = self._came < len(self._at) and self._at[self._came] < inf
        return max(self._at[self._came], now) if later else now

    def fill(self, batch: _Batch, now: float) -> list[tuple[int, int]]:
        """Choose the prompts of the batch's next step: new tokens and tokens before, of each.

        Answers come first, then prompts that were begun, then those that wait.
        """
        while self._came < len(self._at) and self._at[self._came] <= now:
            self.waiting.append(self._came)
            self._came += 1
        budget = self._scheduler.step_tokens - batch.answers * (1 + self._scheduler.drafted)
        prompts: list[tuple[int, int]] = []
        begun, batch.begun, batch.read = batch.begun, [], []
        for number, before in begun:
            budget -= self._read(batch, number, before, budget, prompts)
        while self.waiting and budget > 0 and batch.requests < self._scheduler.batch:
            number = self.waiting[0]
            new = self._isl[number] - self._cached[number]
            if self._tokens(number) > self._room or (new > budget and not self._scheduler.chunked):
                break
            self._room -= self._tokens(self.waiting.popleft())
            budget -= self._read(batch, number, self._cached[number], budget, prompts)
        return prompts

    def finish(self, batch: _Batch, now: float) -> None:
        """Give the step's tokens to their requests, and let those that ended go."""
        gained = self._scheduler.accepted
        batch.step += 1
        batch.context += batch.answers * gained
        leaving, batch.ended = batch.ended, []
        for number in leaving:
            self._leave(batch, number, self._tokens(number) + gained)
        while batch.ends and batch.ends[0][0] <= batch.step:
            number = heappop(batch.ends)[1]
            self._end(number, now)
            if self._scheduler.host.beside:
                batch.ended.append(number)
            else:
                self._leave(batch, number, self._tokens(number))
        for number in batch.read:
            self._first[number] = now
            if self._osl[number] == 1:
                self._end(number, now)
                self._room += self._tokens(number)
                continue
            steps = ceil((self._osl[number] - 1) / gained)
            batch.answers += 1
            batch.context += self._tokens(number) - steps * gained
            heappush(batch.ends, (batch.step + steps, number))
        batch.read = []

    def table(self) -> pd.DataFrame:
        """Return what happened to every request."""
        arrived, first, last = (np.array(v) for v in (self._at, self._first, self._last))
        tpot = (last - first) / np.maximum(np.array(self._osl) - 1, 1)
        return pd.DataFrame(
            {"arrived_ms": arrived, "first_ms": first, "last_ms": last,
             "ttft_ms": first - arrived, "tpot_ms": tpot}
        )  # fmt: skip

    def _read(
        self,
        batch: _Batch,
        number: int,
        before: int,
        budget: int,
        prompts: list[tuple[int, int]],
    ) -> int:
        """Read as much of a prompt as the budget allows, and return how much."""
        new = max(min(self._isl[number] - before, budget), 0)
        if new:
            prompts.append((new, before))
        if before + new == self._isl[number]:
            batch.read.append(number)
        else:
            batch.begun.append((number, before + new))
        return new

    def _end(self, number: int, now: float) -> None:
        """Note a request's last token; where requests follow each other, the next arrives."""
        self._last[number] = now
        self.left -= 1
        if self._follow < len(self._at):
            self._at[self._follow] = now
            self._follow += 1

    def _leave(self, batch: _Batch, number: int, context: float) -> None:
        batch.answers -= 1
        batch.context -= context
        self._room += self._tokens(number)

    def _tokens(self, number: int) -> int:
        """Return what a request takes in the cache when it ends."""
        return self._isl[number] + self._osl[number]

    def _check(self) -> None:
        limits = self._scheduler
        longest = max(map(self._tokens, range(len(self._isl))), default=0)
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
