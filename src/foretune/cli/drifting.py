"""``foretune drift``: does a predictor still hold?"""

from pathlib import Path

import typer

from foretune.cli import options
from foretune.cli.output import Output, percent
from foretune.cli.run_files import read_files

DRIFTED_EXIT_CODE = 1
"""The exit code."""


def drift(
    predictor: str = options.PREDICTOR,
    files: list[Path] = options.RUNS,
    kernel: str = options.ONLY_KERNEL,
    map_: list[str] = options.MAP,
    as_json: bool = options.JSON,
) -> None:
    """Check whether a predictor still holds on new measurements; exit code 1 if not.

    'foretune train --resume' then goes on with the fresh runs.
    """
    from foretune.models.saved.lookup import read_predictor
    from foretune.models.validation.drift import check_drift

    output = Output(as_json)
    found = check_drift(
        loaded := read_predictor(predictor), read_files(files, kernel, map_, loaded)
    )
    for target, d in found.items():
        rows = [
            ["inside the interval", percent(d.coverage), f"at least {percent(d.min_coverage)}"],
            ["median error", percent(d.median_error), f"about {percent(d.expected_error)}"],
            ["bias", percent(d.bias), f"up to {percent(d.bias_limit)}"],
            [f"change of {d.repeats} repeated runs", percent(d.change), ""],
        ]
        title = f"{target} of {d.rows} fresh runs"
        output.table(title, ("", "found", "expected"), rows)
    for target, d in found.items():
        output.say(f"{target}: {d.verdict}" + "".join(f"\n  {reason}" for reason in d.reasons))
    drifted = any(d.reasons for d in found.values())
    verdicts = {t: {"verdict": d.verdict, **vars(d)} for t, d in found.items()}
    output.result({"verdict": "drifted" if drifted else "ok", "targets": verdicts})
    if drifted:
        raise typer.Exit(DRIFTED_EXIT_CODE)
