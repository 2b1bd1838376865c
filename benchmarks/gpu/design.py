"""What the sweep measures, and in which order: an early stop leaves a balanced table.

Problems take turns. In each round every problem gets a few more configurations: its default first,
then some from its kernel's list, which problems share so that few programs are compiled, some drawn
evenly from its whole space, and some beside the best so far. Problems of blocks get their whole
list, one block after the other between rounds. Defaults are measured again in later rounds: that
is the noise floor.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from stage import Job, Key

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))

from triton_attention import TritonAttention
from triton_grouped_gemm import TritonGroupedGemm
from triton_norm import TritonNorm
from triton_softmax import TritonSoftmax

from foretune.collect.kernels.triton_gemm import TritonGemm
from foretune.collect.kernels.triton_quantized_gemm import TritonQuantizedGemm
from foretune.device import Device
from foretune.kernel import Kernel
from foretune.problem import Problem
from foretune.space import Configuration, SearchSpace

DTYPES = ("fp16", "bf16", "fp8", "int8")
# M, N, K: layers of language models of 1 to 70 billion parameters, for a decoding batch to a long
# prompt; square ones; and sizes that no tile divides.
PRODUCTS = [
    (16, 4096, 4096),
    (64, 8192, 8192),
    (128, 14336, 4096),
    (512, 6144, 4096),
    (1024, 5120, 5120),
    (2048, 11008, 4096),
    (4096, 4096, 4096),
    (4096, 4096, 14336),
    (8192, 1024, 8192),
    (1024, 28672, 8192),
    (512, 512, 2048),
    (2048, 2048, 2048),
    (256, 3072, 768),
    (8192, 8192, 1024),
    (3000, 3000, 3000),
    (1, 4096, 4096),
    (33, 1000, 1000),
    (777, 5000, 1111),
]
MORE = {
    "triton_gemm": 28,
    "triton_quantized_gemm": 28,
    "triton_attention": 24,
    "triton_softmax": 18,
    "triton_norm": 18,
    "triton_grouped_gemm": 20,
}
BLOCKS = {
    "triton_gemm": 9,
    "triton_quantized_gemm": 3,
    "triton_attention": 3,
    "triton_softmax": 2,
    "triton_norm": 2,
    "triton_grouped_gemm": 2,
}
MOST_MS = 2.0
"""Least time of a problem at the device's peak: slow configurations take tens of times as long."""
CHUNK = 12
"""Configurations of a problem per round: two thirds from the list, a sixth of either other kind."""
LAST_REPEAT = 3
CANDIDATES = 600


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        problems: at most, per kernel.
        per_problem: configurations, blocks aside.
        listed: configurations on the list of a kernel and format.
        blocks: problems with their whole list, per kernel at most.
    """

    problems: int = 100
    per_problem: int = 144
    listed: int = 240
    blocks: int = 9

    @property
    def rounds(self) -> int:
        """Turns until every problem has its configurations."""
        return -(-self.per_problem // CHUNK)


def kernels() -> list[Kernel]:
    """Return the kernels of the sweep."""
    return [
        TritonGemm(),
        TritonQuantizedGemm(),
        TritonAttention(),
        TritonSoftmax(),
        TritonNorm(),
        TritonGroupedGemm(),
    ]


def problems_of(kernel: Kernel, device: Device, at_most: int) -> list[Problem]:
    """Return the problems of a kernel, named ones first, without those that take too long."""
    found: dict[Problem, None] = {}
    if isinstance(kernel, TritonGemm):
        for m, n, k in PRODUCTS:
            found |= {kernel.problem(M=m, N=n, K=k, dtype=dtype): None for dtype in DTYPES}
    found |= dict.fromkeys(kernel.training_problems(MORE[kernel.name], seed=7))
    return [p for p in found if _least_ms(kernel, p, device) <= MOST_MS][:at_most]


class Design:
    """Decides which job comes next; ask `jobs`.

    Args:
        chosen: Kernels to measure.
        device: Device to measure on.
        size: Extent of the sweep.
        done: Keys that need not be measured; keys of yielded jobs are added.
        best: Returns the best configuration of a problem so far, or None.
        seed: Seed of all random draws.
    """

    def __init__(
        self,
        chosen: list[Kernel],
        device: Device,
        size: Size,
        done: set[Key],
        best: Callable[[Kernel, Problem], Configuration | None],
        seed: int = 0,
    ) -> None:
        self._size, self._best, self._seed = size, best, seed
        self._seen = set(done)
        self._rows = Counter((k, p) for k, p, _, repeat in done if repeat == 0)
        self.problems = {k: problems_of(k, device, size.problems) for k in chosen}
        self._lists = cache(self._list)

    @property
    def blocks(self) -> list[tuple[Kernel, Problem]]:
        """Problems whose whole list is measured, kernels in turn, formats mixed."""
        found = []
        for i in range(self._size.blocks):
            for kernel, problems in self.problems.items():
                wanted = min(BLOCKS[kernel.name], self._size.blocks, len(problems))
                if i < wanted:
                    # 5 and 18 have no common divisor: all formats, and sizes from all over
                    found.append((kernel, problems[i * 5 % len(problems)]))
        return list(dict.fromkeys(found))

    def listed(self, kernel: Kernel, problem: Problem) -> list[Configuration]:
        """Return what the kernel's list has for a problem: the exhaustive block of it."""
        space = kernel.space(problem)
        return [c for c in self._lists(kernel, _format(problem)) if c in space]

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs that are left."""
        blocks, rounds = self.blocks, self._size.rounds
        half = -(-rounds // 2)
        for turn in range(rounds):
            order = [(k, p) for k, ps in self.problems.items() for p in ps]
            for i in np.random.default_rng((self._seed, turn)).permutation(len(order)):
                yield from self._some(*order[int(i)], CHUNK * (turn + 1))
                yield from self._again(*order[int(i)], turn)
            begin, end = (len(blocks) * t // half for t in (turn, turn + 1))
            ready = blocks[begin:end]  # all of them in the first half of the time
            for kernel, problem in ready:
                for config in self.listed(kernel, problem):
                    yield from self._once(Job(kernel, problem, config, "list"))

    def _some(self, kernel: Kernel, problem: Problem, up_to: int) -> Iterator[Job]:
        """Yield new configurations until a problem has ``up_to``, as long as it has any."""
        up_to = min(up_to, self._size.per_problem)
        for role, config in self._offers(kernel, problem, up_to):
            if self._rows[kernel.name, problem] >= up_to:
                return
            yield from self._once(Job(kernel, problem, config, role))

    def _offers(
        self, kernel: Kernel, problem: Problem, up_to: int
    ) -> Iterator[tuple[str, Configuration]]:
        """Yield roles and configurations, seen ones too: more than are wanted, if there are."""
        seed = (self._seed, up_to, int(problem.id[:8], 16))
        rng = np.random.default_rng(seed)
        space = kernel.space(problem)
        yield "default", kernel.default(problem)
        best = self._best(kernel, problem)
        listed = self.listed(kernel, problem)
        mixed = [listed[int(i)] for i in rng.permutation(len(listed))]
        beside = space.neighbors(best) if best is not None else []
        near = [beside[int(i)] for i in rng.permutation(len(beside))]
        spread = evenly(space, CHUNK, rng)
        few = CHUNK // 6
        yield from (("near", c) for c in self._new(kernel, problem, near)[:few])
        yield from (("spread", c) for c in self._new(kernel, problem, spread)[:few])
        yield from (("list", c) for c in mixed)
        yield from (("spread", c) for c in [*spread, *space.sample(4 * up_to, rng)])

    def _again(self, kernel: Kernel, problem: Problem, turn: int) -> Iterator[Job]:
        """Yield the default again in the first round and every fourth after it."""
        repeat, rest = divmod(turn, 4)
        if rest == 0 and repeat < LAST_REPEAT:
            default = kernel.default(problem)
            yield from self._once(Job(kernel, problem, default, "repeat", repeat + 1))

    def _once(self, job: Job) -> Iterator[Job]:
        if job.key in self._seen:
            return
        self._seen.add(job.key)
        if job.repeat == 0:
            self._rows[job.kernel.name, job.problem] += 1
        yield job

    def _new(
        self, kernel: Kernel, problem: Problem, configs: list[Configuration]
    ) -> list[Configuration]:
        return [c for c in configs if (kernel.name, problem, c, 0) not in self._seen]

    def _list(self, kernel: Kernel, kind: str) -> tuple[Configuration, ...]:
        """Return configurations drawn evenly from spaces of problems of all sizes."""
        alike = [p for p in self.problems[kernel] if _format(p) == kind][:8]
        rng = np.random.default_rng(self._seed)
        found: dict[Configuration, None] = {}
        each = -(-self._size.listed // len(alike))
        for problem in alike:
            drawn = evenly(kernel.space(problem), 2 * each, rng)
            found |= dict.fromkeys([c for c in drawn if c not in found][:each])
        return tuple(found)[: self._size.listed]


def evenly(space: SearchSpace, n: int, rng: np.random.Generator) -> list[Configuration]:
    """Return ``n`` configurations far from each other: each new one is the farthest of some.

    Distance is the sum over parameters of steps between values, relative to how many there are.
    """
    drawn = rng.choice(len(space), size=min(CANDIDATES, len(space)), replace=False)
    counts = np.array([max(len(v) - 1, 1) for v in space.parameters.values()])
    points = space.codes[drawn] / counts
    taken = [0]
    nearest = np.abs(points - points[0]).sum(axis=1)
    while len(taken) < min(n, len(drawn)):
        taken.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.abs(points - points[taken[-1]]).sum(axis=1))
    return [space[int(drawn[i])] for i in taken]


def _format(problem: Problem) -> str:
    """Return what decides, with a configuration, which program is compiled."""
    return str([problem[name] for name in ("dtype", "bits", "head_dim", "norm") if name in problem])


def _least_ms(kernel: Kernel, problem: Problem, device: Device) -> float:
    return float(device.roofline_ms(kernel.cost(problem, kernel.default(problem))))
