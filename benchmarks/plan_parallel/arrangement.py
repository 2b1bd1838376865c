"""Arrangements of a few ranks, and the steps that they are compared on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from foretune.plan.cost.operator import Part
from foretune.plan.cost.steps import Step, StepTimer
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout

RankMode = Literal["alone", "together"]
"""Whether one rank computes while the others rest, or all do and share the machine's memory."""
RANK_MODES: tuple[RankMode, ...] = ("alone", "together")
TERMS = ("operators", "exchanges", "layers")
"""Milliseconds of operators and of exchanges, and how many layers a request passes one by one."""
PRIOR_COEFFICIENTS = np.array([1.0, 1.0, 0.0])
"""Coefficients of `TERMS` where no step was measured."""
UNDISTURBED_QUANTILE = 0.25
"""Quantile of repeats that stands for all: other work on a machine only ever makes them slower."""


@dataclass(frozen=True)
class StepProblem:
    """A step of some requests: what every arrangement must compute.

    Attributes:
        model: The model.
        batch: Number of requests.
        new_tokens: New tokens of each request.
        context: Tokens of each request that are in the cache.
    """

    model: ModelDescription
    batch: int
    new_tokens: int
    context: int = 0

    def __str__(self) -> str:
        tokens = f"×{self.new_tokens}" if self.phase == "prefill" else f" at {self.context}"
        return f"{self.phase} {self.batch}{tokens}, h{self.model.hidden}"

    @property
    def phase(self) -> Literal["prefill", "decode"]:
        """Whether prompts are read or answers written."""
        return "decode" if self.context else "prefill"


@dataclass(frozen=True)
class Arrangement:
    """How ranks share the requests of a step.

    Attributes:
        tp: ranks that share every layer.
        pp: stages of layers; requests run through them in as many micro-batches.
        replicas: Copies of the whole model, each with its own requests.
    """

    tp: int = 1
    pp: int = 1
    replicas: int = 1

    @property
    def name(self) -> str:
        """``tp2``, ``pp2``, ``dp2``, or ``one rank``."""
        degrees = {"tp": self.tp, "pp": self.pp, "dp": self.replicas}
        named = [f"{name}{value}" for name, value in degrees.items() if value > 1]
        return " ".join(named) or "one rank"

    @property
    def ranks(self) -> int:
        """Ranks that compute."""
        return self.tp * self.pp * self.replicas

    def is_applicable(self, problem: StepProblem) -> bool:
        """Return whether it differs from one rank, and every rank has something to do."""
        model = problem.model
        divisible = not (model.kv_heads % self.tp or model.intermediate % self.tp)
        return divisible and problem.batch % self.replicas == 0 and model.layers % self.pp == 0

    def micro_batches(self, batch: int) -> int:
        """Return in how many parts the requests of a step run through the stages."""
        return min(self.pp, batch)

    def request_slices(self, rank: int, batch: int) -> list[slice]:
        """Return which requests pass through a rank, one slice per micro-batch."""
        if self.replicas > 1:
            share = batch // self.replicas
            return [slice(rank * share, (rank + 1) * share)]
        parts = np.array_split(np.arange(batch), self.micro_batches(batch))
        return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


def undisturbed_ms(repeats: Sequence[float] | np.ndarray) -> float:
    """Return what stands for repeated measurements of the same, in their unit."""
    return float(np.quantile(repeats, UNDISTURBED_QUANTILE))


def arrangements(ranks: int) -> list[Arrangement]:
    """Return one rank by itself, then all of them as tensor, pipeline and data parallelism."""
    return [
        Arrangement(),
        Arrangement(tp=ranks),
        Arrangement(pp=ranks),
        Arrangement(replicas=ranks),
    ]


def step_of(problem: StepProblem, arrangement: Arrangement) -> Step:
    """Return the step that each micro-batch, or replica, takes."""
    parts = max(arrangement.micro_batches(problem.batch), arrangement.replicas)
    layout = Layout(tp=arrangement.tp, pp=arrangement.pp)
    batch = -(-problem.batch // parts)
    part = Part(batch, problem.new_tokens, problem.context, problem.phase)
    return Step(problem.model, layout, Formats(), part)


def step_terms(
    problem: StepProblem, arrangement: Arrangement, timers: Mapping[RankMode, StepTimer]
) -> np.ndarray:
    """Return what a step's time is made of, as in `TERMS`.

    Micro-batches follow one another through the stages: in a pipeline of ``p`` stages ``m`` of them
    take ``m + p - 1`` turns. In ``m - p + 1`` of these all stages are busy; the others, at both
    ends, are taken to find the machine's memory free.
    """
    step, parts, stages = (
        step_of(problem, arrangement),
        arrangement.micro_batches(problem.batch),
        arrangement.pp,
    )
    turns = parts + stages - 1
    busy_turns = max(parts - stages + 1, 0) if stages > 1 and parts > 1 else 0
    if stages == 1:
        busy_turns = 0 if arrangement.ranks == 1 else 1
    counts: dict[RankMode, int] = {"together": busy_turns, "alone": turns - busy_turns}
    terms = np.zeros(len(TERMS))
    for mode, count in counts.items():
        if count:
            times = timers[mode].times([step]).iloc[0]
            exchanged = float(times["communication"])
            computed = float(times["total"]) - exchanged
            terms += count / stages * np.array([computed, exchanged, problem.model.layers])
    return terms
