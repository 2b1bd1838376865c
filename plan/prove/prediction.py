"""Predicts what a server with a setting will show under a load, and learns from what it showed.

The plan's simulated engine serves the requests that the load generator will send, with the flags
of the setting. Three factors correct it, each of a part of a step that flags and loads mix
differently:

- ``decode`` multiplies the time of answers' tokens,
- ``prompt`` multiplies what prompts add to a step,
- ``step_ms`` is added to every step.

They are fitted to all loads of all trials so far (least squares of log ratios, with a prior), so
the times of one start say something about all settings. What is left of the errors is the spread
that a promise has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isfinite

import numpy as np

from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout
from foretune.plan.engine.host import CUDA_GRAPH_SIZES, Host
from foretune.plan.engine.simulator import Scheduler, simulate_requests
from foretune.plan.engine.stage_times import StageTimes, StageWork, StepLoad
from foretune.plan.prove.figures import LoadFigures
from foretune.plan.prove.load import Load
from foretune.plan.prove.setting import Setting
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.deployment_steps import StepTimers

PRIOR_SPREADS = np.array([1.0, 1.0, 0.5])
"""Prior deviations: of the logarithms of ``decode`` and ``prompt``, because a plan for an
unmeasured machine may be e times off; of ``step_ms`` in predicted steps."""
NOISE = {"ttft_ms": 0.15, "tpot_ms": 0.08, "tokens_per_s": 0.08}
"""Deviation of the logarithm of a repeated figure: starts of one setting differ."""
FIRST_SPREAD = 0.5
"""Deviation of the logarithm of a promise before anything was measured."""
FIRST_SPREAD_ROWS = 3
"""Figures that `FIRST_SPREAD` counts as, when measured ones join it."""
MIN_SPREAD = 0.05
"""Least deviation: repeats differ."""
PROMISE_WIDTH = 1.645
"""Half width of a 90 % interval in deviations."""
MAX_LOGS = np.array([6.0, 6.0, 1e3])
"""Bounds of the logarithms of the factors, and of ``step_ms`` in predicted steps."""
FIT_STEP = 0.05
"""Step of the numerical derivatives, in logarithms: the simulation is not smooth."""
MAX_FITS = 12
"""Most rounds of the least squares."""
MIN_MS = 1e-6

NATIVE_HOST = Host(
    step_ms=1.0,
    request_ms=0.05,
    token_ms=0.002,
    active_ms=0.0,
    layer_ms=0.0,
    overlaps=False,
)
"""CPU time of a step of an engine on the same CPU that is not written in Python: chosen by hand, as
trials correct it."""


@dataclass(frozen=True)
class Promise:
    """Predicted figures of a load; the ends are 90 % intervals, NaN if unknown."""

    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float
    spread: float = float("nan")

    def interval(self, value: float) -> tuple[float, float]:
        """Return the interval of one of the figures."""
        factor = float(np.exp(PROMISE_WIDTH * self.spread))
        return value / factor, value * factor


@dataclass(frozen=True)
class StepFactors:
    """How a server's steps differ from the simulated ones."""

    decode: float = 1.0
    prompt: float = 1.0
    step_ms: float = 0.0


@dataclass(frozen=True)
class Observation:
    """A setting under a load, and what it showed."""

    setting: Setting
    load: Load
    figures: Mapping[str, float]

    @classmethod
    def of(cls, setting: Setting, figures: LoadFigures) -> "Observation":
        """Return an observation of measured figures."""
        values = {name: getattr(figures, name).value for name in NOISE}
        return cls(setting, figures.load, values)


@dataclass
class ServerPredictor:
    """Predicts settings under loads; `learn` corrects it.

    Attributes:
        timers: predict the time of an engine's steps.
        host: CPU time of the engine's own code in a step; that of the planned engine if None.
        factors: of the simulated steps.
        spread: deviation of the logarithm of a promise's figures.
    """

    timers: StepTimers
    host: Host | None = None
    factors: StepFactors = field(default_factory=StepFactors)
    spread: float = FIRST_SPREAD
    _times: "dict[_TimesKey, StageTimes]" = field(default_factory=dict, init=False, repr=False)

    def promise(self, setting: Setting, load: Load) -> Promise:
        """Return what a server with a setting is expected to show under a load.

        Raises UsageError if a request does not fit into the cache.
        """
        return replace(self._simulate(setting, load, self.factors), spread=self.spread)

    def learn(self, observations: Sequence[Observation]) -> None:
        """Fit the factors and the spread to all observations so far."""
        if not observations:
            return
        from scipy.optimize import least_squares

        # The unit of the constant part is a predicted step.
        uncorrected = StepFactors()
        simulated = [self._simulate(o.setting, o.load, uncorrected) for o in observations]
        usual_ms = float(np.median([promise.tpot_ms for promise in simulated]))
        unit_ms = max(usual_ms, MIN_MS)

        # The point is 1 where nothing is corrected: numerical steps are relative to it.
        def factors_at(point: np.ndarray) -> StepFactors:
            log_decode, log_prompt, step_share = point - 1.0
            return StepFactors(
                decode=float(np.exp(log_decode)),
                prompt=float(np.exp(log_prompt)),
                step_ms=float(step_share) * unit_ms,
            )

        def residuals(point: np.ndarray) -> np.ndarray:
            factors = factors_at(point)
            errors = [
                error / NOISE[name]
                for observation in observations
                for name, error in self._log_errors(observation, factors).items()
            ]
            prior = (point - 1.0) / PRIOR_SPREADS
            return np.array([*errors, *prior])

        fitted = least_squares(
            residuals,
            x0=np.ones(len(PRIOR_SPREADS)),
            bounds=(1.0 - MAX_LOGS * [1.0, 1.0, 0.0], 1.0 + MAX_LOGS),
            loss="soft_l1",  # a disturbed load counts less
            diff_step=FIT_STEP,
            max_nfev=MAX_FITS,
        )
        self.factors = factors_at(fitted.x)
        left = [
            error
            for observation in observations
            for error in self._log_errors(observation, self.factors).values()
        ]
        squares = FIRST_SPREAD_ROWS * FIRST_SPREAD**2 + float(np.square(left).sum())
        self.spread = max(float(np.sqrt(squares / (FIRST_SPREAD_ROWS + len(left)))), MIN_SPREAD)

    def _log_errors(self, observation: Observation, factors: StepFactors) -> dict[str, float]:
        """Return log(measured / simulated) of the figures that are known."""
        simulated = self._simulate(observation.setting, observation.load, factors)
        errors = {}
        for name, measured in observation.figures.items():
            predicted = float(getattr(simulated, name))
            if isfinite(measured) and measured > 0 and predicted > 0:
                errors[name] = float(np.log(measured / predicted))
        return errors

    def _simulate(self, setting: Setting, load: Load, factors: StepFactors) -> Promise:
        """Return the figures of a simulated run of the load."""
        deployment = setting.deployment
        times = self._stage_times(_TimesKey.of(setting))
        slowdown = _thread_slowdown(setting)
        pipeline = deployment.layout.pp

        def stages(step: StepLoad, padded: int) -> list[StageWork]:
            work = times(step, padded)
            answers_ms = [0.0] * len(work)
            if step.answers:
                answers_only = replace(step, prompts=(), finished_prompts=0)
                answers_ms = [stage.ms for stage in times(answers_only, padded)]
            return [
                StageWork(
                    ms=slowdown
                    * (
                        factors.decode * alone_ms
                        + factors.prompt * max(stage.ms - alone_ms, 0.0)
                        + factors.step_ms / pipeline
                    ),
                    layers=stage.layers,
                )
                for stage, alone_ms in zip(work, answers_ms, strict=True)
            ]

        # Without captured graphs, every layer is launched.
        graph_sizes = CUDA_GRAPH_SIZES if setting.graphs else ()
        on_cpu = deployment.system.device.kind == "cpu"
        batch = max(ceil(setting.requests / deployment.layout.dp / pipeline), 1)
        host = self.host or Host.for_system(deployment.system, pipeline)
        scheduler = Scheduler(
            step_tokens=max(setting.step_tokens, batch),
            max_batch=batch,
            cache_tokens=setting.cache_tokens,
            chunked=setting.chunked,
            host=host,
            graph_sizes=() if on_cpu else graph_sizes,
        )
        requests = load.requests(seed=0)
        if not setting.prefix_cache:
            requests = replace(requests, cached=np.zeros_like(requests.cached))
        if deployment.layout.dp > 1:
            requests = requests.shard(0, deployment.layout.dp)
        table = simulate_requests(requests, scheduler, stages, pipeline)

        duration_s = (table["last_ms"].max() - table["arrived_ms"].min()) / 1e3
        tokens = float(requests.osl.sum()) * deployment.layout.dp
        return Promise(
            ttft_ms=max(float(table["ttft_ms"].median()), MIN_MS),
            tpot_ms=max(float(table["tpot_ms"].median()), MIN_MS),
            tokens_per_s=tokens / max(duration_s, MIN_MS),
        )

    def _stage_times(self, key: "_TimesKey") -> StageTimes:
        """Return the times of stages; making them asks for many operators, so they are kept."""
        if key not in self._times:
            deployment = key.deployment
            self._times[key] = StageTimes(
                deployment.model,
                deployment.layout,
                deployment.formats,
                self.timers(deployment.system, deployment.backend),
                max_tokens=key.max_tokens,
                max_context=key.max_context,
                max_answers=key.max_answers,
            )
        return self._times[key]


@dataclass(frozen=True)
class _TimesKey:
    """What the times of stages depend on; ``deployment`` is described by the other fields."""

    deployment: Deployment = field(compare=False)
    model: ModelDescription
    system: str
    layout: Layout
    formats: Formats
    max_tokens: int
    max_context: int
    max_answers: int

    @classmethod
    def of(cls, setting: Setting) -> "_TimesKey":
        """Return the key of a setting: its flags only bound the grid, so many share one."""
        deployment = setting.deployment
        return cls(
            deployment=deployment,
            model=deployment.model,
            system=deployment.system.name,
            layout=deployment.layout,
            formats=deployment.formats,
            max_tokens=_next_power(setting.step_tokens + setting.requests),
            max_context=_next_power(deployment.longest_context),
            max_answers=_next_power(setting.requests),
        )


def _thread_slowdown(setting: Setting) -> float:
    """Return how much longer steps take with a setting's threads than with all cores.

    Operators were measured on all cores. Their time is taken as inverse to the number of threads;
    what memory bounds loses less, and trials correct it.
    """
    cores = setting.deployment.system.device.specs.get("cores", 0.0)
    if not setting.threads or not cores:
        return 1.0
    return max(cores / setting.threads, 1.0)


def _next_power(size: float) -> int:
    """Return the smallest power of two that is not below a size."""
    return int(2 ** ceil(np.log2(max(size, 1))))
