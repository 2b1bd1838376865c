"""Requests replayed step by step: who waits, who is read, who writes, and how long that takes.

As many batches are under way as a pipeline has stages. Whenever one comes back from the last stage,
requests that ended leave it, those that wait fill it, and it goes to the first stage again. Requests
are let in only if the cache has room for all their tokens, so that none is ever evicted.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.plan.engine.scheduler import Scheduler
from foretune.plan.engine.stage_times import Stages, StepLoad


@dataclass(frozen=True)
class Requests:
    """What arrives, in the order of arrival.

    Attributes:
        at_ms: when each arrives.
        isl, osl: tokens of its prompt and of its answer.
        cached: tokens of its prompt whose keys and values are in the cache already.
    """

    at_ms: np.ndarray
    isl: np.ndarray
    osl: np.ndarray
    cached: np.ndarray

    def __len__(self) -> int:
        return len(self.at_ms)

    @classmethod
    def at_once(cls, count: int, isl: int, osl: int, cached: int = 0) -> "Requests":
        """Return ``count`` equal requests that are all there at the beginning."""
        return cls.alike(np.zeros(count), isl, osl, cached)

    @classmethod
    def alike(cls, at_ms: np.ndarray, isl: int, osl: int, cached: int = 0) -> "Requests":
        """Return equal requests that arrive at given times."""
        sizes = (np.full(len(at_ms), n) for n in (isl, osl, cached))
        return cls(np.asarray(at_ms, dtype=float), *sizes)

    @classmethod
    def at_random(
        cls, per_s: float, count: int, isl: int, osl: int, cached: int = 0, seed: int = 0
    ) -> "Requests":
        """Return equal requests that arrive at random (Poisson), ``per_s`` a second."""
        gaps = np.random.default_rng(seed).exponential(1e3 / per_s, count)
        return cls.alike(np.cumsum(gaps), isl, osl, cached)

    def share(self, part: int, parts: int) -> "Requests":
        """Return every ``parts``-th request, from ``part`` on: what one of equal servers gets."""
        return Requests(*(getattr(self, n)[part::parts] for n in ("at_ms", "isl", "osl", "cached")))


@dataclass
class _Batch:
    """Requests that are computed together.

    Attributes:
        ready_ms: when it is back from the last stage.
        answers: requests that write.
        context: tokens in their caches.
        step: how many steps it has made.
        ends: (step, request) of those that write, the first to end first.
        reading: a request whose prompt is read in part, and how many of its tokens are.
    """

    ready_ms: float = 0.0
    answers: int = 0
    context: float = 0.0
    step: int = 0
    ends: list[tuple[int, int]] = field(default_factory=list)
    reading: list[list[int]] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.answers + len(self.reading)


def replay(requests: Requests, scheduler: Scheduler, stages: Stages, depth: int) -> pd.DataFrame:
    """Return when each request got its first and its last token.

    Args:
        requests: of one attention-DP group.
        scheduler: its limits.
        stages: milliseconds of every stage for a step.
        depth: stages of the pipeline.

    Returns:
        One row per request, in their order: ``arrived_ms``, ``first_ms``, ``last_ms``, ``ttft_ms``
        and ``tpot_ms`` (0 for an answer of one token).

    Raises:
        UsageError: a request alone exceeds the cache, or a step where prompts are not read in parts.
    """
    isl, osl, cached = (getattr(requests, n).astype(int).tolist() for n in ("isl", "osl", "cached"))
    at_ms = requests.at_ms.tolist()
    _check(isl, osl, cached, scheduler)
    waiting: deque[int] = deque()
    first, last = np.zeros(len(isl)), np.zeros(len(isl))
    batches, free = [_Batch() for _ in range(depth)], [0.0] * depth
    arrived, left, room, turn = 0, len(isl), scheduler.cache_tokens, 0
    gained, each = scheduler.accepted, 1 + scheduler.drafted
    most = scheduler.batch
    while left:
        batch = batches[turn]
        turn = (turn + 1) % depth
        now = max(batch.ready_ms, free[0])
        if not waiting and arrived < len(at_ms) and not any(b.requests for b in batches):
            now = max(now, at_ms[arrived])
        while arrived < len(at_ms) and at_ms[arrived] <= now:
            waiting.append(arrived)
            arrived += 1
        # Requests under way come first, then prompts begun, then those that wait.
        budget = scheduler.step_tokens - batch.answers * each
        prompts: list[tuple[int, int]] = []
        done: list[int] = []
        still: list[list[int]] = []
        for entry in batch.reading:
            budget = _read(entry, isl, budget, prompts, done, still)
        while waiting and budget > 0 and batch.answers + len(done) + len(still) < most:
            number = waiting[0]
            size, new = isl[number] + osl[number], isl[number] - cached[number]
            if size > room or (new > budget and not scheduler.chunked):
                break
            waiting.popleft()
            room -= size
            budget = _read([number, cached[number]], isl, budget, prompts, done, still)
        batch.reading = still
        if not prompts and not batch.answers:
            # Nothing to do: come back when something may have changed.
            others = [b.ready_ms for b in batches if b is not batch and b.requests]
            soon = [at_ms[arrived]] if arrived < len(at_ms) else []
            later = [t for t in (*others, *soon) if t > now]
            batch.ready_ms = min(later) if later else now
            continue
        load = StepLoad(batch.answers, batch.context, prompts, len(done), each)
        extra = 0 if prompts else scheduler.padded(batch.answers) - batch.answers
        for stage, ms in enumerate(stages(load, extra)):
            start = max(now, free[stage])
            now = free[stage] = start + scheduler.host.ms(ms, batch.answers + len(prompts))
        batch.ready_ms = now
        batch.step += 1
        batch.context += batch.answers * gained
        while batch.ends and batch.ends[0][0] <= batch.step:
            number = heappop(batch.ends)[1]
            last[number] = now
            batch.answers -= 1
            batch.context -= isl[number] + osl[number]
            room += isl[number] + osl[number]
            left -= 1
        for number in done:
            first[number] = now
            if osl[number] == 1:
                last[number] = now
                room += isl[number] + 1
                left -= 1
                continue
            batch.answers += 1
            batch.context += isl[number] + 1
            heappush(batch.ends, (batch.step + ceil((osl[number] - 1) / gained), number))
        if not batch.answers:
            batch.context = 0.0
    ttft = first - requests.at_ms
    tpot = (last - first) / np.maximum(requests.osl - 1, 1)
    return pd.DataFrame(
        {"arrived_ms": requests.at_ms, "first_ms": first, "last_ms": last, "ttft_ms": ttft,
         "tpot_ms": tpot}
    )  # fmt: skip


def _read(
    entry: list[int],
    isl: Sequence[int],
    budget: int,
    prompts: list[tuple[int, int]],
    done: list[int],
    still: list[list[int]],
) -> int:
    """Read as much of a prompt as the budget allows, and return what is left of that."""
    number, before = entry
    new = min(isl[number] - before, budget)
    if new > 0:
        prompts.append((new, before))
    if before + new == isl[number]:
        done.append(number)
    else:
        still.append([number, before + new])
    return budget - new


def _check(
    isl: Sequence[int], osl: Sequence[int], cached: Sequence[int], scheduler: Scheduler
) -> None:
    longest = max(i + o for i, o in zip(isl, osl, strict=True))
    if longest > scheduler.cache_tokens:
        raise UsageError(
            f"a request of {longest} tokens exceeds the cache of {scheduler.cache_tokens:.0f}: "
            "take more GPUs or a smaller format of the cache"
        )
    new = max(i - c for i, c in zip(isl, cached, strict=True))
    if not scheduler.chunked and new > scheduler.step_tokens:
        raise UsageError(
            f"a prompt of {new} tokens exceeds a step of {scheduler.step_tokens}: "
            "allow chunked prefill, or larger steps"
        )
