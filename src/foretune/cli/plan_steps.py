"""``foretune plan steps``: step times of a running engine, learned from its log."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.errors import UsageError
from foretune.support.console import progress_bar
from foretune.support.files import atomic_write
from foretune.values import percent

if TYPE_CHECKING:
    from foretune.plan.steps.learned_steps import LearnedSteps

HEADINGS = ("held-out steps", "number", "median", "mean", "p95", "90 % int.", "linear law")


def steps(
    context: typer.Context,
    logs: list[str] = typer.Argument(
        help="vLLM's log with --enable-logging-iteration-details, forward pass metrics (JSON "
        "lines), or a replay table of SGLang's simulator."
    ),
    device: str = typer.Option(..., help="Name of the GPU or CPU that the engine ran on."),
    out: Path | None = typer.Option(None, help="Folder of the predictor to write."),
    sglang: Path | None = typer.Option(
        None, help="Write the model for SGLang's simulator (predictor ml) to this file."
    ),
    aisimulate: Path | None = typer.Option(
        None, help="Write the model for AISimulate (from_learned) to this JSON file."
    ),
) -> None:
    """Learn how long a step of your engine takes, from the steps that it logged.

    Every minute of the log is held out once and predicted; the errors there give the width of
    intervals. The predictor of --out has learned all steps: 'foretune predict FOLDER --problem
    answers=8,…' asks it.
    """
    from foretune.datasets.importers import import_runs
    from foretune.plan.steps.learned_steps import learn_steps

    root = options.root_options(context)
    output = Output(root.as_json)
    if out is None and sglang is None and aisimulate is None:
        raise UsageError("give --out FOLDER, --sglang FILE or --aisimulate FILE")
    with progress_bar() as progress:
        imported = import_runs(logs, "engine-steps", device=device, progress=progress)
    for note in [*imported.skipped.values(), *imported.notes]:
        output.say(f"note: {note}")
    learned = learn_steps(imported.runs, seed=root.seed)
    _show_errors(output, learned)
    _write(output, learned, out=out, sglang=sglang, aisimulate=aisimulate, seed=root.seed)

    written = {"out": out, "sglang": sglang, "aisimulate": aisimulate}
    output.result(
        {
            "steps": len(learned.runs),
            "errors": {kind: vars(errors) for kind, errors in learned.errors.items()},
            "notes": list(imported.notes),
            **{name: str(path) for name, path in written.items() if path is not None},
        }
    )


def _show_errors(output: Output, learned: "LearnedSteps") -> None:
    """Print the errors on held-out steps."""
    rows: list[list[str]] = [
        [
            kind,
            f"{errors.steps:,}",
            percent(errors.median),
            percent(errors.mean),
            percent(errors.p95),
            percent(errors.coverage),
            percent(errors.law_median),
        ]
        for kind, errors in learned.errors.items()
    ]
    output.table(f"{len(learned.runs):,} steps; errors of the predictor", HEADINGS, rows)


def _write(
    output: Output,
    learned: "LearnedSteps",
    *,
    out: Path | None,
    sglang: Path | None,
    aisimulate: Path | None,
    seed: int,
) -> None:
    """Write the predictor, and the models of other simulators."""
    from foretune.plan.steps.work import missing_kinds

    if out is not None:
        learned.predictor.save(out)
        output.say(f"predictor: {out}")
    if sglang is not None:
        import joblib

        from foretune.plan.steps import sglang_simulator

        made: Any = sglang_simulator.bundle(learned, seed)
        with atomic_write(sglang) as new:
            joblib.dump(made, new)
        _say_extrapolated(output, missing_kinds(learned, sglang_simulator.KINDS))
        output.say(f"SGLang's simulator: {sglang}")
    if aisimulate is not None:
        import json

        from foretune.plan.steps.aisimulate import AGGREGATED, STORES, artifact

        made = artifact(learned, seed)
        with atomic_write(aisimulate) as new:
            new.write_text(json.dumps(made), encoding="utf-8")
        if made["worker_type"] == AGGREGATED:
            _say_extrapolated(output, missing_kinds(learned, list(STORES)))
        output.say(f"AISimulate: {aisimulate}, worker type {made['worker_type']}")


def _say_extrapolated(output: Output, kinds: list[str]) -> None:
    """Say which kinds of steps nobody measured."""
    for kind in kinds:
        output.say(f"note: no step of the log has {kind}: times of such steps are extrapolated")
