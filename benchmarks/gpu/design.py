"""What the sweep measures, and in which order: an early stop leaves a balanced table.

Problems take turns. In each round every problem gets a few more configurations: its default first,
then some from its kernel's list, which problems share so that few programs are compiled, some drawn
evenly from its whole space, and some beside the best so far. Problems of blocks get their whole
list, one block after the other between rounds. Defaults are measured again in later rounds: that
is the noise floor.
"""

import math
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
RANDOM_PROBLEMS = {
    "triton_gemm": 28,
    "triton_quantized_gemm": 28,
    "triton_attention": 24,
    "triton_softmax": 18,
    "triton_norm": 18,
    "triton_grouped_gemm": 20,
}
"""Kernel -> number of random problems, besides the named ones."""
BLOCKS = {
    "triton_gemm": 9,
    "triton_quantized_gemm": 3,
    "triton_attention": 3,
    "triton_softmax": 2,
    "triton_norm": 2,
    "triton_grouped_gemm": 2,
}
"""Kernel -> maximum number of problems whose whole list is measured."""
BLOCK_STRIDE = 5
"""Distance of these problems: 5 and 18 have no common divisor, so that there are all formats and
sizes of all kinds."""
MAX_ROOFLINE_MS = 2.0
"""Of a problem at the device's peak: slow configurations take tens of times as long."""
CHUNK = 12
"""Configurations of a problem per round: two thirds from the list, a sixth of either other kind."""
N_REPEATS = 3
"""Times that a default is measured again."""
REPEAT_EVERY = 4
"""Rounds between two of them."""
CANDIDATES = 600
"""Random configurations among which distant ones are chosen."""
LIST_PROBLEMS = 8
"""Problems from whose spaces a kernel's list is drawn."""
COMPILED_SIZES = ("dtype", "bits", "head_dim", "norm")
"""Parameters of problems that, with a configuration, decide which program is compiled."""


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
        return math.ceil(self.per_problem / CHUNK)


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


def problems_of(kernel: Kernel, device: Device, max_problems: int) -> list[Problem]:
    """Return the problems of a kernel, named ones first, without those that take too long."""
    problems: list[Problem] = []
    if isinstance(kernel, TritonGemm):
        for m, n, k in PRODUCTS:
            problems += [kernel.problem(M=m, N=n, K=k, dtype=dtype) for dtype in DTYPES]
    problems += kernel.training_problems(RANDOM_PROBLEMS[kernel.name], seed=7)
    distinct = dict.fromkeys(problems)
    short = [p for p in distinct if _roofline_ms(kernel, p, device) <= MAX_ROOFLINE_MS]
    return short[:max_problems]


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
        self._size = size
        self._best = best
        self._seed = seed
        self._seen = set(done)
        self._n_measured = Counter((k, p) for k, p, _, repeat in done if repeat == 0)
        """Configurations by kernel's name and problem, repeats aside."""
        self.problems = {kernel: problems_of(kernel, device, size.problems) for kernel in chosen}
        self._lists = cache(self._list)

    @property
    def blocks(self) -> list[tuple[Kernel, Problem]]:
        """Problems whose whole list is measured, kernels in turn, formats mixed."""
        blocks: list[tuple[Kernel, Problem]] = []
        for i in range(self._size.blocks):
            for kernel, problems in self.problems.items():
                if i < min(BLOCKS[kernel.name], len(problems)):
                    blocks.append((kernel, problems[i * BLOCK_STRIDE % len(problems)]))
        return list(dict.fromkeys(blocks))

    def listed(self, kernel: Kernel, problem: Problem) -> list[Configuration]:
        """Return what the kernel's list has for a problem: the exhaustive block of it."""
        space = kernel.space(problem)
        return [config for config in self._lists(kernel, _program(problem)) if config in space]

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs that are left."""
        pairs = [(kernel, p) for kernel, problems in self.problems.items() for p in problems]
        blocks = self.blocks
        n_rounds = self._size.rounds
        half = math.ceil(n_rounds / 2)
        for turn in range(n_rounds):
            rng = np.random.default_rng((self._seed, turn))
            for i in rng.permutation(len(pairs)):
                kernel, problem = pairs[i]
                yield from self._more(kernel, problem, up_to=CHUNK * (turn + 1))
                yield from self._again(kernel, problem, turn)

            # The blocks are spread over the first half of the rounds.
            begin = len(blocks) * turn // half
            end = len(blocks) * (turn + 1) // half
            for kernel, problem in blocks[begin:end]:
                for config in self.listed(kernel, problem):
                    yield from self._once(Job(kernel, problem, config, "list"))

    def _more(self, kernel: Kernel, problem: Problem, up_to: int) -> Iterator[Job]:
        """Yield new configurations until a problem has ``up_to``, as long as it has any."""
        wanted = min(up_to, self._size.per_problem)
        for role, config in self._candidates(kernel, problem, wanted):
            if self._n_measured[kernel.name, problem] >= wanted:
                return
            yield from self._once(Job(kernel, problem, config, role))

    def _candidates(
        self, kernel: Kernel, problem: Problem, wanted: int
    ) -> Iterator[tuple[str, Configuration]]:
        """Yield roles and configurations, seen ones too: more than are wanted, if there are."""
        space = kernel.space(problem)
        rng = np.random.default_rng((self._seed, wanted, int(problem.id[:8], 16)))
        yield "default", kernel.default(problem)

        best = self._best(kernel, problem)
        listed = _shuffled(self.listed(kernel, problem), rng)
        near_best = _shuffled(space.neighbors(best) if best is not None else [], rng)
        spread = evenly(space, CHUNK, rng)
        sixth = CHUNK // 6
        for config in self._new(kernel, problem, near_best)[:sixth]:
            yield "near", config
        for config in self._new(kernel, problem, spread)[:sixth]:
            yield "spread", config
        for config in listed:
            yield "list", config
        for config in [*spread, *space.sample(4 * wanted, rng)]:
            yield "spread", config

    def _again(self, kernel: Kernel, problem: Problem, turn: int) -> Iterator[Job]:
        """Yield the default again in the first round and every fourth after it."""
        repeat, rounds_since = divmod(turn, REPEAT_EVERY)
        if rounds_since == 0 and repeat < N_REPEATS:
            default = kernel.default(problem)
            yield from self._once(Job(kernel, problem, default, "repeat", repeat + 1))

    def _once(self, job: Job) -> Iterator[Job]:
        """Yield a job unless it was yielded or measured before."""
        if job.key in self._seen:
            return
        self._seen.add(job.key)
        if job.repeat == 0:
            self._n_measured[job.kernel.name, job.problem] += 1
        yield job

    def _new(
        self, kernel: Kernel, problem: Problem, configs: list[Configuration]
    ) -> list[Configuration]:
        return [c for c in configs if (kernel.name, problem, c, 0) not in self._seen]

    def _list(self, kernel: Kernel, program: str) -> tuple[Configuration, ...]:
        """Return configurations drawn evenly from spaces of problems of all sizes."""
        same_program = [p for p in self.problems[kernel] if _program(p) == program]
        problems = same_program[:LIST_PROBLEMS]
        per_problem = math.ceil(self._size.listed / len(problems))
        rng = np.random.default_rng(self._seed)
        listed: dict[Configuration, None] = {}
        for problem in problems:
            drawn = evenly(kernel.space(problem), 2 * per_problem, rng)
            new = [config for config in drawn if config not in listed]
            listed |= dict.fromkeys(new[:per_problem])
        return tuple(listed)[: self._size.listed]


def evenly(space: SearchSpace, n: int, rng: np.random.Generator) -> list[Configuration]:
    """Return ``n`` configurations far from each other: each new one is the farthest of some.

    Distance is the sum over parameters of steps between values, relative to how many there are.
    """
    candidates = rng.choice(len(space), size=min(CANDIDATES, len(space)), replace=False)
    n_steps = np.array([max(len(values) - 1, 1) for values in space.parameters.values()])
    points = space.codes[candidates] / n_steps

    def distances_to(candidate: int) -> np.ndarray:
        return np.abs(points - points[candidate]).sum(axis=1)

    chosen = [0]
    to_nearest = distances_to(0)
    while len(chosen) < min(n, len(candidates)):
        farthest = int(to_nearest.argmax())
        chosen.append(farthest)
        to_nearest = np.minimum(to_nearest, distances_to(farthest))
    return [space[int(candidates[i])] for i in chosen]


def _shuffled(configs: list[Configuration], rng: np.random.Generator) -> list[Configuration]:
    return [configs[i] for i in rng.permutation(len(configs))]


def _program(problem: Problem) -> str:
    """Return what decides, with a configuration, which program is compiled."""
    return str([problem[name] for name in COMPILED_SIZES if name in problem])


def _roofline_ms(kernel: Kernel, problem: Problem, device: Device) -> float:
    return float(device.roofline_ms(kernel.cost(problem, kernel.default(problem))))
