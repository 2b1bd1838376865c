"""What a load on a server showed: latencies, throughput and errors, with intervals over repeats."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite, log, nan
from statistics import fmean, median, variance
from typing import Any

from foretune.errors import MeasurementError
from foretune.plan.prove.client import ServedRequest
from foretune.plan.prove.load import Load
from foretune.support.ratio_interval import ratio_interval

INTERVAL_TAIL = 0.05
"""Probability on each side of a 90 % interval."""
SHORT_ANSWER_SHARE = 0.95
"""Answers with less than this share of their tokens were ended by the engine."""


@dataclass(frozen=True)
class Figure:
    """A measured value, and its 90 % interval over repeats; NaN ends if there is one repeat."""

    value: float
    low: float = nan
    high: float = nan

    @classmethod
    def of_repeats(cls, values: Sequence[float]) -> "Figure":
        """Return the geometric mean of positive values with Student's interval of its logarithm."""
        known = [value for value in values if isfinite(value) and value > 0]
        if not known:
            return cls(nan)
        logs = [log(value) for value in known]
        mean = fmean(logs)
        if len(logs) < 2:
            return cls(exp(mean))
        interval = ratio_interval(mean, variance=variance(logs), n=len(logs), error=INTERVAL_TAIL)
        return cls(interval.ratio, low=interval.low, high=interval.high)


@dataclass(frozen=True)
class RunFigures:
    """One run of a load: medians over its requests."""

    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float
    duration_s: float
    requests: int
    prompt_tokens: int
    tokens: int


@dataclass(frozen=True)
class LoadFigures:
    """What a server showed under one load.

    Attributes:
        load: what it was asked for.
        runs: the repeats.
        errors: failed requests -> how often; none of them counts in the runs.
        engine: what the engine's own metrics say, see `foretune.plan.prove.engine_metrics`.
    """

    load: Load
    runs: tuple[RunFigures, ...]
    errors: tuple[tuple[str, int], ...] = ()
    engine: tuple[tuple[str, float], ...] = ()

    @property
    def ttft_ms(self) -> Figure:
        """Milliseconds to the first token."""
        return Figure.of_repeats([run.ttft_ms for run in self.runs])

    @property
    def tpot_ms(self) -> Figure:
        """Milliseconds per further token."""
        return Figure.of_repeats([run.tpot_ms for run in self.runs])

    @property
    def tokens_per_s(self) -> Figure:
        """Generated tokens per second of all requests."""
        return Figure.of_repeats([run.tokens_per_s for run in self.runs])

    @property
    def failed(self) -> int:
        """Number of failed requests."""
        return sum(count for _, count in self.errors)

    @property
    def short_answers(self) -> bool:
        """Whether the engine ended answers before their length."""
        asked = sum(run.requests for run in self.runs) * self.load.workload.osl
        return sum(run.tokens for run in self.runs) < SHORT_ANSWER_SHARE * asked

    def calibration_line(self, labels: dict[str, Any]) -> dict[str, Any]:
        """Return the line that ``plan --calibrate`` reads, in the form of vLLM's benchmark."""
        seconds = sum(run.duration_s for run in self.runs)
        return {
            **labels,
            "max_concurrency": self.load.concurrency or None,
            "request_rate": self.load.rate or "inf",
            "completed": sum(run.requests for run in self.runs),
            "failed": self.failed,
            "duration": seconds,
            "total_input_tokens": sum(run.prompt_tokens for run in self.runs),
            "total_output_tokens": sum(run.tokens for run in self.runs),
            "output_throughput": self.tokens_per_s.value,
            "median_ttft_ms": self.ttft_ms.value,
            "median_tpot_ms": self.tpot_ms.value,
        }


def summarize_run(requests: Sequence[ServedRequest]) -> RunFigures:
    """Return the figures of a run; raises MeasurementError if no request was answered."""
    answered = [request for request in requests if not request.error]
    if not answered:
        reason = requests[0].error if requests else "none was sent"
        raise MeasurementError(f"no request was answered: {reason}")

    duration_s = max(r.last_s for r in answered) - min(r.sent_s for r in answered)
    tokens = sum(request.tokens for request in answered)
    further = [request.tpot_ms for request in answered if isfinite(request.tpot_ms)]
    return RunFigures(
        ttft_ms=median(request.ttft_ms for request in answered),
        tpot_ms=median(further) if further else nan,
        tokens_per_s=tokens / duration_s if duration_s > 0 else nan,
        duration_s=duration_s,
        requests=len(answered),
        prompt_tokens=sum(request.prompt_tokens for request in answered),
        tokens=tokens,
    )
