"""``foretune predict FILE.py:KERNEL --from code``: a CPU kernel that never ran, by its code."""

import typer

from foretune.cli import options
from foretune.cli.output import Output, format_config
from foretune.errors import UsageError

MAX_CONFIGURATIONS = 200
"""Larger spaces are sampled: every configuration is compiled."""


def rank_by_code(
    context: typer.Context, location: str, source: str, problem_text: str, top: int
) -> None:
    """Print the configurations with the smallest times by their compiled code."""
    import numpy as np

    from foretune.collect.compiled.llvm.calls import code_of, simulated_cycles
    from foretune.models.code_time import SHIPPED, CodePredictor, CodeTime
    from foretune.registry import get_kernel

    root = options.root_options(context)
    output, kernel = Output(root.as_json), get_kernel(location)
    model = CodeTime.load(SHIPPED if source == "code" else source)
    problem = options.read_problem(kernel, problem_text) if problem_text else kernel.problem()
    device = options.read_local_device("cpu")
    space = kernel.space(problem)
    indices = np.arange(len(space))
    if len(indices) > MAX_CONFIGURATIONS:
        indices = np.random.default_rng(root.seed).choice(
            indices, MAX_CONFIGURATIONS, replace=False
        )
        output.say(f"{MAX_CONFIGURATIONS} of {len(space):,} configurations, drawn at random")
    predicted = CodePredictor(kernel, model).predict_space(problem, space, device, indices)
    if predicted["time_ms"].isna().all():
        raise UsageError(f"no configuration of {kernel.name} compiles")
    times = predicted["time_ms"].to_numpy()
    best = [int(i) for i in np.argsort(times, kind="stable")[:top] if times[i] == times[i]]
    configs = [space[int(indices[i])] for i in best]
    entries = [
        {
            "config": dict(config), **predicted.loc[i].to_dict(),
            "simulated_cycles": simulated_cycles(code_of(kernel, problem, config)),
        }
        for i, config in zip(best, configs, strict=True)
    ]  # fmt: skip
    output.table(
        f"{kernel.name} {problem}: {len(predicted):,} configurations, by their code",
        ("ms", "90 % interval", "llvm-mca cycles", "configuration"),
        [
            [
                f"{e['time_ms']:.3g}",
                f"{e['time_ms_low']:.3g}–{e['time_ms_high']:.3g}",
                "–" if e["simulated_cycles"] is None else f"{e['simulated_cycles']:,.0f}",
                format_config(e["config"]),
            ]
            for e in entries
        ],
    )
    output.say(f"nothing ran; costs measured on {model.device}, this is {device.name}")
    output.result({"problem": dict(problem), "configurations": len(predicted), "configs": entries})
