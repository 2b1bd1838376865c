"""Measuring what a serving engine's tuned files should hold, with the engine's own kernels.

For each layer and number of tokens the guess and the default are measured first, then the search
goes on, and its best is compared with the default side by side. All goes to the store, so an
interrupted run resumes.
"""

from collections.abc import Sequence
from dataclasses import replace

from foretune.collect.runner import Runner
from foretune.errors import MeasurementError, ProblemError
from foretune.measurement import Status
from foretune.plan.describe.description import ModelDescription
from foretune.plan.engine_files.guesses import (
    BLOCK_SHAPE,
    TOKEN_COUNTS,
    EngineFile,
    MeasuredEntry,
)
from foretune.plan.engine_files.layer import Layer
from foretune.plan.engine_files.tuned_layers import Guess
from foretune.plan.engine_files.vllm_kernels import (
    FP8_BLOCK,
    VllmExperts,
    VllmLayer,
    VllmLinear,
)
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.tune.store.cache import MeasurementCache, StoreLocation
from foretune.tune.tuner import tune_problem

__all__ = ["measure_file", "problem_of"]

DEFAULT_BUDGET = 16
"""Configurations measured for each number of tokens."""


def problem_of(layer: Layer, model: ModelDescription, tokens: int) -> tuple[VllmLayer, Problem]:
    """Return vLLM's kernel of a layer, and its problem.

    Args:
        layer: which a file's name says.
        model: that it belongs to: the name lacks the width of the tokens and their experts.
        tokens: of the call.

    Raises:
        ProblemError: the format of the layer is not measured.
    """
    known = {("", None): "bf16", ("fp8_w8a8", None): "fp8", ("fp8_w8a8", BLOCK_SHAPE): FP8_BLOCK}
    kind = known.get((layer.dtype, layer.block_shape))
    if kind is None or not (layer.experts or kind == FP8_BLOCK):
        raise ProblemError(f"{layer.dtype or '16 bit'} layers of this kind are not measured")
    if not layer.experts:
        linear = VllmLinear()
        return linear, linear.problem(M=tokens, N=layer.size, K=layer.depth)
    experts = VllmExperts()
    return experts, experts.problem(
        M=tokens, E=layer.experts, top_k=min(model.experts_per_token, layer.experts),
        N=layer.size, K=model.expert_hidden or model.hidden, dtype=kind,
    )  # fmt: skip


def measure_file(
    file: EngineFile,
    model: ModelDescription,
    runner: Runner,
    *,
    tokens: Sequence[int] = TOKEN_COUNTS,
    budget: int = DEFAULT_BUDGET,
    store: StoreLocation = None,
    progress: Progress = SILENT,
) -> EngineFile:
    """Return a file with what was measured; numbers of tokens that fail are named in it.

    Args:
        file: that the engine lacks.
        model: that is served.
        runner: measures, on the device that the file is for.
        tokens: numbers of tokens that get an entry.
        budget: configurations for each of them.
        store: where measurements are kept; see `foretune.tune_problem`.
        progress: told about each measurement.
    """
    measured: dict[int, MeasuredEntry] = {}
    failed: dict[int, str] = {}
    for count in tokens:
        try:
            kernel, problem = problem_of(file.layer, model, count)
            measured[count] = _measure(
                kernel, problem, runner, file.guesses.get(count), budget, store, progress
            )
        except (MeasurementError, ProblemError) as e:
            failed[count] = str(e)
            progress.say(f"{file.layer.sizes}, {count} tokens: {e}")
    if not measured:
        return replace(file, failed=failed)
    wins = any(entry.beats_default for entry in measured.values())
    return replace(
        file, status="measured" if wins else "default is best", measured=measured, failed=failed
    )


def _measure(
    kernel: VllmLayer, problem: Problem, runner: Runner, guess: Guess | None, budget: int,
    store: StoreLocation, progress: Progress,
) -> MeasuredEntry:  # fmt: skip
    space = kernel.space(problem)
    record = MeasurementCache.for_kernel(kernel, runner.device, store)
    known = {measurement.config for measurement in record.known(problem)}
    first = dict.fromkeys([kernel.default(problem), *([guess.config] if guess else [])])
    first = {config: None for config in first if config in space}
    new = [config for config in first if config not in known]
    for measurement in runner.run(kernel, problem, new):
        record.append(measurement)
    remaining = max(budget - len(known | first.keys()), 1)
    result = tune_problem(kernel, problem, runner, budget=remaining, store=store, progress=progress)
    if not any(step.status == Status.OK.value for step in result.trace):
        raise MeasurementError(f"no configuration of {kernel.name} runs for {problem}")
    winner = result.winner
    if not result.verified or winner.config is None:
        return MeasuredEntry(kernel.default(problem))
    return MeasuredEntry(winner.config, winner.ratio, winner.ratio_low, winner.ratio_high)
