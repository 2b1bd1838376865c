"""Step times of pipeline stages, interpolated on a grid.

A step has operators that process all tokens together, attention of prompts, and attention of
answers. Each depends on one or two sizes.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil, log2
from typing import Literal, NamedTuple

import numpy as np

from foretune.plan.cost.decoder import mixed_operators
from foretune.plan.cost.memory import stage_layer_range
from foretune.plan.cost.operator import Operator, Part
from foretune.plan.cost.steps import StepTimer
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout

Phase = Literal["prefill", "decode"]
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
        self._model_layers = model.layers
        self._timer = timer
        # Single-piece attention was not measured with several tokens per request.
        make = timer.mixed_operators if tokens_per_answer == 1 else mixed_operators
        self._operators = partial(make, model, layout, formats)

        # The sizes of the grid.
        tokens = _sizes(max_tokens, halves=True)
        context = _sizes(max_context)
        answers = _sizes(max_answers)
        self._token_sizes = tokens
        self._context_sizes = context

        # Operators that process all tokens of a step together, one of them in an answer.
        answer = Part(1, 1, 1, "decode")
        steps = [self._mixed_operators([answer, _prompt_part(n - 1)]) for n in tokens]
        per_stage = (*LAST_STAGE_OPERATORS, STAGE_TRANSFER)
        shared = [[o for o in step if o.name not in per_stage] for step in steps]
        self._shared_ms = _Curve(tokens, self._ms(shared))

        # The transfer to the next stage; the operators are those of all transfers.
        transfers = [[o for o in step if o.name == STAGE_TRANSFER] for step in steps]
        self._transfer_ms = _Curve(tokens, self._ms(transfers) / max(layout.pp - 1, 1))

        # Operators of the last stage.
        last_steps = [self._operators([Part(n, 1, 1, "decode")]) for n in answers]
        last = [[o for o in step if o.name in LAST_STAGE_OPERATORS] for step in last_steps]
        self._last_stage_ms = _Curve(answers, self._ms(last))

        # Attention of answers, and of single prompts without a prefix.
        decode = [
            self._phase_operators(
                n, tokens_per_answer, context=max(keys - tokens_per_answer, 0), phase="decode"
            )
            for n in answers
            for keys in context
        ]
        self._answer_ms = _Surface(answers, context, self._ms(decode))
        self._prompt_ms = _Curve(tokens, self._attention_of_prompts([0])[:, 0])

        layer_ranges = [stage_layer_range(model, layout, stage) for stage in range(layout.pp)]
        self._layers = [end - start for start, end in layer_ranges]

    def __call__(self, load: StepLoad, padded: int = 0) -> list[StageWork]:
        """Return each stage's work with its transfers; ``padded`` answers fill a CUDA graph."""
        tokens = load.tokens + padded * load.tokens_per_answer

        # The layers of all stages.
        layers_ms = self._shared_ms(tokens)
        if load.answers:
            keys = load.context / load.answers + load.tokens_per_answer
            layers_ms += self._answer_ms(load.answers, keys)
        for new, before in load.prompts:
            if before:
                layers_ms += self._prompt_after_prefix_ms(new, before)
            else:
                layers_ms += self._prompt_ms(new)

        # Each stage has its share of them; all but the last send their results on.
        stages_ms = [layers_ms * layers / self._model_layers for layers in self._layers]
        last_tokens = (load.answers + padded) * load.tokens_per_answer + load.finished_prompts
        stages_ms[-1] += self._last_stage_ms(last_tokens)
        if len(stages_ms) > 1:
            transfer_ms = self._transfer_ms(tokens)
            stages_ms = [ms + transfer_ms for ms in stages_ms[:-1]] + stages_ms[-1:]

        # The last stage drafts the next tokens.
        if self._draft_times:
            stages_ms[-1] += _drafted_ms(load, padded, self._draft_times)
        return [
            StageWork(ms=ms, layers=layers)
            for ms, layers in zip(stages_ms, self._layers, strict=True)
        ]

    @cached_property
    def _prompt_after_prefix_ms(self) -> "_Surface":
        """Attention of a prompt by its new and its cached tokens; most plans have no prefix."""
        attention_ms = self._attention_of_prompts(self._context_sizes)
        return _Surface(self._token_sizes, self._context_sizes, attention_ms.ravel())

    def _attention_of_prompts(self, context: Sequence[int]) -> np.ndarray:
        """Return the milliseconds of attention per prompt (new tokens, cached tokens)."""
        # Several short prompts are timed at once, as in a full step.
        prompts = [max(round(PROMPT_BATCH_TOKENS / new), 1) for new in self._token_sizes]
        operators = [
            self._phase_operators(count, new, context=before, phase="prefill")
            for new, count in zip(self._token_sizes, prompts, strict=True)
            for before in context
        ]
        batch_ms = self._ms(operators).reshape(len(self._token_sizes), -1)
        return batch_ms / np.array(prompts)[:, None]

    def _mixed_operators(self, parts: Sequence[Part]) -> list[Operator]:
        """Return the operators of a step that process the tokens of all its parts together."""
        return [operator for operator in self._operators(parts) if operator.phase == "mixed"]

    def _phase_operators(self, batch: int, new: int, context: int, phase: Phase) -> list[Operator]:
        """Return the operators specific to requests of one phase."""
        part = Part(batch, new, context, phase)
        other = Part(1, 1, 0, "decode" if phase == "prefill" else "prefill")
        return [o for o in self._operators([part, other]) if o.phase == phase]

    def _ms(self, steps: Iterable[Sequence[Operator]]) -> np.ndarray:
        """Return the milliseconds of the operators of each step."""
        times = self._timer.times(list(steps))
        return times["total"].to_numpy(dtype=float)


def _prompt_part(tokens: int) -> Part:
    """Return a prompt of at least one token."""
    return Part(1, max(tokens, 1), 0, "prefill")


def _drafted_ms(load: StepLoad, padded: int, draft_times: StageTimes) -> float:
    """Return the drafting time: prompts once, answers token by token."""
    prompts_only = replace(load, answers=0, context=0.0, tokens_per_answer=1)
    answers_only = replace(load, prompts=(), finished_prompts=0, tokens_per_answer=1)
    prompts_ms = draft_times(prompts_only)[0].ms if load.prompts else 0.0
    token_ms = draft_times(answers_only, padded)[0].ms if load.answers else 0.0
    drafted = load.tokens_per_answer - 1
    return prompts_ms + drafted * token_ms


def _sizes(last: int, halves: bool = False) -> list[int]:
    """Return powers of two up to ``last`` or the next power, optionally with midpoints."""
    powers = [2**i for i in range(1, max(ceil(log2(last)), 1) + 1)]
    between = [3 * p // 4 for p in powers[1:]] if halves else []
    return sorted({1, *powers, *between})


class _Curve:
    """A time as a function of one size: piecewise linear, extrapolated beyond the last."""

    def __init__(self, sizes: Sequence[int], ms: np.ndarray) -> None:
        self._sizes = list(sizes)
        self._ms = ms.tolist()

    def __call__(self, size: float) -> float:
        i, share = _bracket(self._sizes, size)
        low = self._ms[i]
        high = self._ms[i + 1]
        return float(low + share * (high - low))


class _Surface:
    """A time as a function of two sizes: bilinear between neighbors."""

    def __init__(self, first: Sequence[int], second: Sequence[int], ms: np.ndarray) -> None:
        self._first = list(first)
        self._second = list(second)
        self._rows = ms.reshape(len(self._first), -1).tolist()

    def __call__(self, first: float, second: float) -> float:
        i, first_share = _bracket(self._first, first)
        j, second_share = _bracket(self._second, second)
        low_row = self._rows[i]
        high_row = self._rows[i + 1]
        low = low_row[j] + second_share * (low_row[j + 1] - low_row[j])
        high = high_row[j] + second_share * (high_row[j + 1] - high_row[j])
        return float(low + first_share * (high - low))


def _bracket(sizes: Sequence[int], size: float) -> tuple[int, float]:
    """Return the index of the neighbor below, and the fraction to the next (above 1 beyond)."""
    i = min(max(bisect_right(sizes, size) - 1, 0), len(sizes) - 2)
    return i, max((size - sizes[i]) / (sizes[i + 1] - sizes[i]), 0.0)
