"""``foretune judge``: checks whether an implementation is correct, and how much faster it is."""

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.problem import Problem
from foretune.support.console import progress_bar
from foretune.values import short_number


def judge(
    context: typer.Context,
    candidate: str = typer.Argument(help="The function to judge: FILE.py:NAME."),
    reference: str = typer.Argument(help="The reference: FILE.py:NAME."),
    problem: list[str] = typer.Option(
        ..., help="Arguments of --inputs, 'N=1024,M=64' (repeatable)."
    ),
    inputs: str = typer.Option("", help="FILE.py:NAME. Default: 'inputs' in the reference's file."),
    beside: list[str] = typer.Option([], help="Another rival: 'blas=FILE.py:NAME' (repeatable)."),
    tolerance: float | None = typer.Option(
        None, help="Maximum relative error of an output. Default: by the type of its numbers."
    ),
    max_seconds: float = typer.Option(0.5, help="Seconds of timed rounds per process and problem."),
    strict: bool = typer.Option(False, "--strict", help="End with exit code 2 if inconclusive."),
    device: str = options.DEVICE,
) -> None:
    """Check whether a function is correct, and faster than another.

    Each runs in a separate process, on inputs that it has never seen. Code that only looks fast is
    rejected with the reason and exit code 1; slower code is exit code 1, too.

    Example: foretune judge new.py:sums old.py:sums --problem N=1000
    """
    from foretune.collect.devices import local_device
    from foretune.tune.judge import judge as judged

    options.require_positive(max_seconds, "--max-seconds")
    output = Output(options.root_options(context).as_json)
    with progress_bar() as progress:
        verdict = judged(
            candidate,
            reference,
            [Problem.parse(text) for text in problem],
            inputs=inputs or f"{reference.rpartition(':')[0] or reference}:inputs",
            rivals=options.parse_key_values(beside, "--beside", "NAME=FILE.py:NAME"),
            tolerance=tolerance,
            session_s=max_seconds,
            device=local_device(device, measure=False),
            progress=progress,
        )
    if verdict.problem_verdicts:
        names = sorted(verdict.problem_verdicts[0].time_ms)
        rows = []
        for ruling in verdict.problem_verdicts:
            times, found = [short_number(ruling.time_ms[n], 4) for n in names], ruling.candidate
            speedup = f"{found.ratio:.2f} ({found.ratio_low:.2f}–{found.ratio_high:.2f})"
            rows.append([str(ruling.problem), *times, speedup])
        output.table("Times in ms", ["problem", *names, "speed-up (99 %)"], rows)
    output.say(verdict.headline)
    output.result(verdict.to_dict())
    if verdict.refused or verdict.outcome == "slower":
        raise typer.Exit(1)
    if strict and verdict.outcome == "inconclusive":
        raise typer.Exit(2)
