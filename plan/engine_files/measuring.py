"""Measures the content of an engine's tuned files with the engine's own kernels.

For each layer and number of tokens, the guess and the default are measured first. Then the search
runs, and its best is verified against the default. All measurements go to the store, so an
interrupted run resumes.
"""

from collections.abc import Sequence
from dataclasses import replace

from foretune.collect.runner import Runner
from foretune.errors import MeasurementError, ProblemError
from foretune.measurement import Status
from foretune.plan.describe.description import ModelDescription
from foretune.plan.engine_files.guesses import BLOCK_SHAPE, TOKEN_COUNTS, EngineFile, MeasuredEntry
from foretune.plan.engine_files.layer import Layer
from foretune.plan.engine_files.tuned_layers import Guess
from foretune.plan.engine_files.vllm_kernels import FP8_BLOCK, VllmExperts, VllmLayer, VllmLinear
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.tune.store.cache import MeasurementCache, StoreLocation
from foretune.tune.tuner import tune_problem

DEFAULT_BUDGET = 16
"""Configurations measured per number of tokens."""


def problem_of(layer: Layer, model: ModelDescription, tokens: int) -> tuple[VllmLayer, Problem]:
    """Return vLLM's kernel of a layer, and its problem.

    ``model`` supplies the token width and experts per token, which file names lack. Raises
    ProblemError for unsupported formats.
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
    """Return a file with its measured entries; failures are recorded per number of tokens.

    ``runner`` measures on the file's device, ``budget`` configurations for each of the ``tokens``.
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
