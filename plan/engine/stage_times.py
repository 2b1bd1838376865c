"""Step times of pipeline stages, interpolated on a grid.

A step has operators that process all tokens together, attention of prompts, and attention of
answers. Each depends on one or two sizes.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from foretune.plan.cost.decoder import mixed_operators
from foretune.plan.cost.memory import stage_layer_range
from foretune.plan.cost.operator import Operator, Part
from foretune.plan.cost.steps import StepTimer
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout

LAST_STAGE_OPERATORS = ("head", "logits")
"""Operators of the last stage only; they process one token per prompt."""
STAGE_TRANSFER = "stage"
"""Operator that sends activations to the next stage."""
PROMPT_BATCH_TOKENS = 8192
"""Prompt tokens per step for looking up attention's time per prompt."""


@dataclass(frozen=True)
class StepLoad:
    """The work of one attention-DP group in one step."""

    answers: int  # decoding requests
    context: float  # total cached tokens of the decoding requests
    prompts: Sequence[tuple[int, int]] = ()  # (new tokens, cached tokens) of each in the step
    finished_prompts: int = 0  # prompts whose last token is computed
    tokens_per_answer: int = 1  # computed tokens per decoding request

    @property
    def tokens(self) -> int:
        """Computed tokens."""
        return self.answers * self.tokens_per_answer + sum(new for new, _ in self.prompts)


class StageWork(NamedTuple):
    """The work of a stage in a step: GPU milliseconds and layers."""

    ms: float
    layers: int


Stages = Callable[[StepLoad, int], list[StageWork]]
"""Returns the work of every stage for a step with a number of padded answers."""


class StageTimes:
    """Milliseconds of each pipeline stage for any step of a deployment.

    ``max_tokens`` and ``max_answers`` are per step, ``max_context`` per request.
    ``tokens_per_answer`` is one plus the drafted tokens; ``draft_times`` are those of the drafter,
    if any.
    """

    def __init__(
        self,
        model: ModelDescription,
        layout: Layout,
        formats: Formats,
        timer: StepTimer,
        max_tokens: int,
        max_context: int,
        max_answers: int,
        tokens_per_answer: int = 1,
        draft_times: "StageTimes | None" = None,
    ) -> None:
        self._draft_times = draft_times
        self._model_layers, self._timer = model.layers, timer
        # Single-piece attention was not measured with several tokens per request.
        make = timer.mixed_operators if tokens_per_answer == 1 else mixed_operators
        self._operators = partial(make, model, layout, formats)
        tokens, context = _sizes(max_tokens, halves=True), _sizes(max_context)
        answers = _sizes(max_answers)
        answer = Part(1, 1, 1, "decode")
        prompts = [Part(1, max(n - 1, 1), 0, "prefill") for n in tokens]
        mixed = [self._operators([answer, prompt]) for prompt in prompts]
        steps = [[o for o in step if o.phase == "mixed"] for step in mixed]
        others = (*LAST_STAGE_OPERATORS, STAGE_TRANSFER)
        shared = [[o for o in step if o.name not in others] for step in steps]
        self._shared = _Curve(tokens, self._ms(shared))
        sent = [[o for o in step if o.name == STAGE_TRANSFER] for step in steps]
        self._sent = _Curve(tokens, self._ms(sent) / max(layout.pp - 1, 1))
        last = [self._operators([Part(n, 1, 1, "decode")]) for n in answers]
        heads = [[o for o in step if o.name in LAST_STAGE_OPERATORS] for step in last]
        self._ends = _Curve(answers, self._ms(heads))
        decode = [
            self._part(n, tokens_per_answer, max(keys - tokens_per_answer, 0), "decode")
            for n in answers
            for keys in context
        ]
        self._answer = _Surface(answers, context, self._ms(decode))
        self._sizes = tokens, context
        self._prompt = _Curve(tokens, self._prompt_ms([0])[:, 0])
        ends = [stage_layer_range(model, layout, stage) for stage in range(layout.pp)]
        self._layers = [end - start for start, end in ends]

    def __call__(self, load: StepLoad, padded: int = 0) -> list[StageWork]:
        """Return each stage's work with its transfers; ``padded`` answers fill a CUDA graph."""
        tokens = load.tokens + padded * load.tokens_per_answer
        layers = self._shared(tokens)
        if load.answers:
            layers += self._answer(
                load.answers, load.context / load.answers + load.tokens_per_answer
            )
        for new, before in load.prompts:
            layers += self._prompt_after_prefix(new, before) if before else self._prompt(new)
        stages = [layers * n / self._model_layers for n in self._layers]
        stages[-1] += self._ends(
            (load.answers + padded) * load.tokens_per_answer + load.finished_prompts
        )
        if len(stages) > 1:
            sent = self._sent(tokens)
            stages = [ms + sent for ms in stages[:-1]] + stages[-1:]
        if self._draft_times:
            stages[-1] += _drafted_ms(load, padded, self._draft_times)
        return [StageWork(ms, n) for ms, n in zip(stages, self._layers, strict=True)]

    @cached_property
    def _prompt_after_prefix(self) -> "_Surface":
        tokens, context = self._sizes
        return _Surface(tokens, context, self._prompt_ms(context).ravel())

    def _prompt_ms(self, context: Sequence[int]) -> np.ndarray:
        """Return the milliseconds of attention per prompt (new tokens, cached tokens)."""
        tokens, _ = self._sizes
        prompts_per_batch = [max(round(PROMPT_BATCH_TOKENS / new), 1) for new in tokens]
        known = self._ms(
            [
                self._part(n, new, before, "prefill")
                for new, n in zip(tokens, prompts_per_batch, strict=True)
                for before in context
            ]
        )
        return known.reshape(len(tokens), -1) / np.array(prompts_per_batch)[:, None]

    def _part(self, batch: int, new: int, context: int, phase: str) -> list[Operator]:
        """Return the operators specific to requests of one phase."""
        part = Part(batch, new, context, phase)  # type: ignore[arg-type]
        other = Part(1, 1, 0, "decode" if phase == "prefill" else "prefill")
        return [o for o in self._operators([part, other]) if o.phase == phase]

    def _ms(self, works: Iterable[Sequence[Operator]]) -> np.ndarray:
        times = self._timer.times(list(works))
        return times["total"].to_numpy(dtype=float)


def _drafted_ms(load: StepLoad, padded: int, draft_times: StageTimes) -> float:
    """Return the drafting time: prompts once, answers token by token."""
    prompts_only = replace(load, answers=0, context=0.0, tokens_per_answer=1)
    answers_only = replace(load, prompts=(), finished_prompts=0, tokens_per_answer=1)
    ms = draft_times(prompts_only)[0].ms if load.prompts else 0.0
    answer_ms = draft_times(answers_only, padded)[0].ms if load.answers else 0.0
    return ms + (load.tokens_per_answer - 1) * answer_ms


def _sizes(last: int, halves: bool = False) -> list[int]:
    """Return powers of two up to ``last`` or the next power, optionally with midpoints."""
    powers = [2**i for i in range(1, max(ceil(log2(last)), 1) + 1)]
    between = [3 * p // 4 for p in powers[1:]] if halves else []
    return sorted({1, *powers, *between})


class _Curve:
    """A time as a function of one size: piecewise linear, extrapolated beyond the last."""

    def __init__(self, sizes: Sequence[int], ms: np.ndarray) -> None:
        self._sizes, self._ms = list(sizes), ms.tolist()

    def __call__(self, size: float) -> float:
        i, share = _bracket(self._sizes, size)
        return float(self._ms[i] + share * (self._ms[i + 1] - self._ms[i]))


class _Surface:
    """A time as a function of two sizes: bilinear between neighbors."""

    def __init__(self, first: Sequence[int], second: Sequence[int], ms: np.ndarray) -> None:
        self._first, self._second = list(first), list(second)
        self._rows = ms.reshape(len(self._first), -1).tolist()

    def __call__(self, first: float, second: float) -> float:
        i, a = _bracket(self._first, first)
        j, b = _bracket(self._second, second)
        low, high = self._rows[i], self._rows[i + 1]
        one = low[j] + b * (low[j + 1] - low[j])
        other = high[j] + b * (high[j + 1] - high[j])
        return float(one + a * (other - one))


def _bracket(sizes: Sequence[int], size: float) -> tuple[int, float]:
    """Return the index of the neighbor below, and the fraction to the next (above 1 beyond)."""
    i = min(max(bisect_right(sizes, size) - 1, 0), len(sizes) - 2)
    return i, max((size - sizes[i]) / (sizes[i + 1] - sizes[i]), 0.0)
