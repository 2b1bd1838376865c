"""``predict-from-code``: ranks the configurations of a CPU kernel by their compiled code."""

from pathlib import Path

import numpy as np
import typer

from foretune.collect import local_device
from foretune.errors import ForetuneError
from foretune.problem import Problem
from foretune.registry import get_kernel
from predict_from_code.code_time import SHIPPED, CodePredictor, CodeTime

MAX_COMPILED = 200
"""Larger spaces are sampled: every configuration is compiled."""


def rank(
    kernel: str = typer.Argument(help="FILE.py:NAME, a function of numba.njit or a source in C."),
    problem: str = typer.Option("", help="M=…,N=…,… Default: the kernel's."),
    top: int = typer.Option(10, min=1, help="Number of best configurations to show."),
    costs: Path = typer.Option(SHIPPED, help="File of costs, written by measure_costs.py --out."),
    seed: int = typer.Option(0, help="Seed of the sample from a large space."),
) -> None:
    """Rank the configurations of a CPU kernel by their compiled code. Nothing runs."""
    chosen = get_kernel(kernel)
    model = CodeTime.load(costs)
    asked = chosen.problem(Problem.parse(problem)) if problem else chosen.problem()
    space = chosen.space(asked)
    device = local_device("cpu", measure=False)

    indices = np.arange(len(space))
    if len(indices) > MAX_COMPILED:
        indices = np.random.default_rng(seed).choice(indices, MAX_COMPILED, replace=False)
        typer.echo(f"{MAX_COMPILED} of {len(space):,} configurations, drawn at random")

    predicted = CodePredictor(chosen, model).predict_space(asked, space, device, indices)
    best = predicted.dropna().sort_values("time_ms", kind="stable").head(top)
    if best.empty:
        raise ForetuneError(f"no configuration of {chosen.name} compiles")

    typer.echo(f"{chosen.name} {asked}: {len(predicted):,} configurations, by their code")
    for row in best.itertuples():
        interval = f"{row.time_ms_low:.4g}–{row.time_ms_high:.4g}"
        values = space[int(indices[row.Index])].items()
        config = ", ".join(f"{name}={value}" for name, value in values)
        typer.echo(f"{row.time_ms:10.4g} ms  (90 % interval {interval})  {config}")
    typer.echo(f"nothing ran; costs measured on {model.device}, this is {device.name}")


def main() -> None:
    """Run the command; errors of Foretune are one line."""
    try:
        typer.run(rank)
    except ForetuneError as error:
        raise SystemExit(f"error: {error}") from error
