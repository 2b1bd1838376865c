"""The work of a rank in a check: run steps of the small model, and time their operators."""

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from foretune.collect.cpu import cache_sizes
from foretune.collect.timing import Timing, time_launch
from foretune.plan.describe.description import ModelDescription
from plan_parallel import decoder
from plan_parallel.arrangement import Arrangement, StepProblem, undisturbed_ms
from plan_parallel.decoder import Cache, RankExchange, Shard, Tensor

CACHE_MULTIPLE = 4
"""How many times the last cache weights are read from in turn: it may keep a part of less."""
MIN_POOL_MIB = 64
MAX_POOL_MIB = 512
TINY = ModelDescription(
    "tiny", layers=1, hidden=64, heads=2, kv_heads=1, head_dim=32, vocab=16, intermediate=64
)
HEAD_DIM = 64
"""Width of the heads in the timing of the rotary embedding."""
MAX_COPIES = 4096
MIN_EXCHANGES = 7
MAX_EXCHANGES = 400
PADDING_GEMMS = 6
"""Small products between two exchanges: some tenths of a millisecond."""


@dataclass
class _Part:
    """What a rank runs of one arrangement: a shard, and per micro-batch its tokens and cache."""

    shard: Shard
    tokens: list[Tensor]
    caches: list[Cache]


class Rank:
    """One process of a check; all methods answer to the parent.

    Args:
        rank: its number.
        ranks: how many there are.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank = rank
        self.ranks = ranks
        caches = CACHE_MULTIPLE * max(cache_sizes().values(), default=0.0) / 1024
        mib = min(max(caches, MIN_POOL_MIB), MAX_POOL_MIB)
        self._pool = torch.rand(int(mib * 2**18)) - 0.5
        self._tiny = decoder.make_shard(TINY, RankExchange())
        self._pad = torch.randn(2, 128, 128)
        self._parts: dict[str, _Part] = {}
        self._problem: StepProblem | None = None

    def prepare(self, problem: StepProblem, arrangements: list[Arrangement], seed: int) -> None:
        """Build the model and the requests of a problem, as every arrangement cuts them."""
        self._problem = problem
        self._parts = {}
        generator = torch.Generator().manual_seed(seed)
        shape = problem.batch, problem.context + problem.new_tokens
        tokens = torch.randint(problem.model.vocab, shape, generator=generator)
        shards: dict[tuple[int, int], Shard] = {}
        with torch.inference_mode():
            for arrangement in arrangements:
                if self.rank >= arrangement.ranks:
                    continue
                cut = arrangement.tp, arrangement.pp
                if cut not in shards:
                    shards[cut] = self._shard(problem.model, arrangement, seed)
                parts = [
                    tokens[rows] for rows in arrangement.request_slices(self.rank, problem.batch)
                ]
                self._parts[arrangement.name] = self._with_context(shards[cut], parts, arrangement)

    def step(self, arrangement: Arrangement) -> float:
        """Return the milliseconds of one step, from when all ranks were ready."""
        assert self._problem is not None
        part = self._parts.get(arrangement.name)
        with torch.inference_mode():
            self._flush_caches()
            dist.barrier()
            start = time.perf_counter_ns()
            if part is not None:
                self._run(part, arrangement, self._problem.context, None)
            return (time.perf_counter_ns() - start) * 1e-6

    def _flush_caches(self) -> None:
        """Put weights out of the caches, but not the code that reads them."""
        self._pool[: len(self._pool) // 2].mul_(-1.0)
        tokens = torch.zeros(1, 1, dtype=torch.int64)
        for _ in range(2):
            decoder.forward(self._tiny, tokens, self._tiny.empty_cache(1, 1), 0)

    def logits(self, arrangement: Arrangement) -> np.ndarray | None:
        """Return the logits of the requests whose last layer is here; None where it is not."""
        assert self._problem is not None
        part = self._parts.get(arrangement.name)
        if part is None:
            return None
        with torch.inference_mode():
            outputs = self._run(part, arrangement, self._problem.context, None)
        if part.shard.head is None or (arrangement.tp > 1 and self.rank > 0):
            return None
        return torch.cat(outputs).numpy()

    def time_operator(
        self, kernel: str, problem: Mapping[str, Any], box_s: float, together: bool
    ) -> float:
        """Return the milliseconds of an operator.

        Args:
            kernel: as in the run table.
            problem: its ``problem.*`` columns.
            box_s: seconds it may take, warm-up included.
            together: whether all ranks run it at the same time.
        """
        with torch.inference_mode():
            launch = self._launch(kernel, problem)
            if together:
                dist.barrier()
            # All ranks go on until the box ends: none of them measures while the others rest.
            timing = Timing(box_s, box_s / 4, 0.0, 5, 10**6, math.inf)
            return undisturbed_ms(time_launch(launch, timing))

    def time_exchange(self, kernel: str, problem: Mapping[str, Any], box_s: float) -> float:
        """Return the milliseconds of an exchange between all ranks; see `time_operator`."""
        exchange = self._exchange_launch(kernel, int(problem["message_bytes"]))
        with torch.inference_mode():
            pilot = undisturbed_ms([self._exchanged_ms(exchange) for _ in range(5)])
            count = torch.tensor(box_s * 1e3 / max(pilot, 1e-3))
            dist.broadcast(count, 0)  # all ranks must take part equally often
            repeats = max(MIN_EXCHANGES, min(int(count), MAX_EXCHANGES))
            ms = undisturbed_ms([self._exchanged_ms(exchange) for _ in range(repeats)])
            return ms / 2 if kernel == "send_recv" else ms

    def _exchanged_ms(self, exchange: Callable[[], object]) -> float:
        """Return the milliseconds of an exchange that follows computation, as in a step.

        One after the other they are several times faster: the threads that serve them are awake.
        """
        for _ in range(PADDING_GEMMS):
            torch.mm(self._pad[0], self._pad[1])
        start = time.perf_counter_ns()
        exchange()
        return (time.perf_counter_ns() - start) * 1e-6

    def _shard(self, model: ModelDescription, arrangement: Arrangement, seed: int) -> Shard:
        if arrangement.tp > 1:
            return decoder.make_shard(model, self._exchange(), seed=seed)
        stage = self.rank if arrangement.pp > 1 else 0
        return decoder.make_shard(model, RankExchange(), stage, arrangement.pp, seed)

    def _with_context(self, shard: Shard, parts: list[Tensor], arrangement: Arrangement) -> _Part:
        """Return a part whose caches hold what the tokens before the new ones leave there."""
        assert self._problem is not None
        context = self._problem.context
        new = self._problem.new_tokens
        caches = [shard.empty_cache(len(tokens), context + new) for tokens in parts]
        if context:
            before = _Part(shard, [tokens[:, :context] for tokens in parts], caches)
            self._run(before, arrangement, 0, context)
        return _Part(shard, [tokens[:, context:] for tokens in parts], caches)

    def _run(
        self, part: _Part, arrangement: Arrangement, start: int, tokens: int | None
    ) -> list[Tensor]:
        """Run all micro-batches through this rank, and return what leaves it."""
        assert self._problem is not None
        stage, last = (self.rank, arrangement.pp - 1) if arrangement.pp > 1 else (0, 0)
        inputs = list(part.tokens)
        receipts: list[Any] = []
        if stage > 0:
            width = tokens or self._problem.new_tokens
            inputs = [torch.empty(len(t), width, part.shard.model.hidden) for t in part.tokens]
            receipts = [dist.irecv(buffer, stage - 1) for buffer in inputs]
        outputs: list[Tensor] = []
        for i, (x, cache) in enumerate(zip(inputs, part.caches, strict=True)):
            if receipts:
                receipts[i].wait()
            outputs.append(decoder.forward(part.shard, x, cache, start))
            if stage < last:
                # Waits until it is on its way: a message left to gloo's thread, which shares this
                # core, might not leave before the next micro-batch is computed.
                dist.send(outputs[-1], stage + 1)
        return outputs

    def _exchange(self) -> RankExchange:
        return RankExchange(self.rank, self.ranks, _add, self._gather)

    def _gather(self, part: Tensor) -> Tensor:
        columns = [torch.empty_like(part) for _ in range(self.ranks)]
        dist.all_gather(columns, part.contiguous())
        return torch.cat(columns, dim=-1)

    def _launch(self, kernel: str, problem: Mapping[str, Any]) -> Callable[[], object]:
        makers = {
            "gemm": self._gemm,
            "attention_prefill": self._attention,
            "attention_decode": self._attention,
            "norm": self._norm,
            "elementwise": self._elementwise,
        }
        return makers[kernel](problem)

    def _gemm(self, problem: Mapping[str, Any]) -> Callable[[], object]:
        m, n, k = (int(problem[name]) for name in "MNK")
        x = torch.randn(m, k)
        weights = self._copies(n, k)
        return lambda: decoder.project(x, next(weights))

    def _attention(self, problem: Mapping[str, Any]) -> Callable[[], object]:
        batch, heads, kv_heads, dim = (
            int(problem[name]) for name in ("batch", "heads", "kv_heads", "head_dim")
        )
        new = int(problem.get("seq_len", 1))
        end = int(problem.get("kv_len", new))
        queries = torch.randn(batch, new, heads, dim)
        added = torch.randn(batch, new, kv_heads, dim)
        caches = self._copies(2, batch, kv_heads, end, dim)

        def run() -> Tensor:
            keys, values = next(caches)
            return decoder.attend(queries, added, added, keys, values, end - new)

        return run

    def _norm(self, problem: Mapping[str, Any]) -> Callable[[], object]:
        rows = int(problem["rows"])
        columns = int(problem["columns"])
        x, rest = torch.randn(2, rows, columns).unbind()
        scale = torch.ones(columns)
        return lambda: decoder.normalize(x, rest, scale)

    def _elementwise(self, problem: Mapping[str, Any]) -> Callable[[], object]:
        rows = int(problem["rows"])
        columns = int(problem["columns"])
        op = problem["op"]
        if op == "silu_and_mul":
            both = torch.randn(1, rows, 2 * columns)
            return lambda: decoder.gate(both)
        if op == "rope":
            x = torch.randn(1, rows, columns // HEAD_DIM, HEAD_DIM)
            turn = decoder.angles(0, rows, HEAD_DIM)
            return lambda: decoder.rotate(x, turn)
        table = self._pool[: len(self._pool) // columns * columns].view(-1, columns)
        tokens = torch.randint(len(table), (1, rows))
        return lambda: decoder.embed(tokens, table, RankExchange())

    def _copies(self, *shape: int) -> "itertools.cycle[Tensor]":
        """Return tensors that lie one after the other in more memory than the caches hold."""
        size = math.prod(shape)
        pool = self._pool if size <= len(self._pool) else torch.rand(size)
        count = min(len(pool) // size, MAX_COPIES)
        apart = len(pool) // count
        return itertools.cycle(pool[i * apart :][:size].view(shape) for i in range(count))

    def _exchange_launch(self, kernel: str, size: int) -> Callable[[], object]:
        elements = max(size // 4, self.ranks)
        if kernel == "all_reduce":
            part = torch.zeros(elements)
            return lambda: _add(part)
        if kernel == "all_gather":
            columns = torch.zeros(1, elements // self.ranks)
            return lambda: self._gather(columns)
        return self._ping_pong(torch.zeros(elements))

    def _ping_pong(self, message: Tensor) -> Callable[[], object]:
        even = self.rank % 2 == 0
        other = self.rank + (1 if even else -1)

        def run() -> None:
            for sends in (even, not even):
                if sends:
                    dist.send(message, other)
                else:
                    dist.recv(message, other)

        return run


def _add(part: Tensor) -> Tensor:
    dist.all_reduce(part)
    return part
