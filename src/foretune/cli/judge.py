"""``foretune judge``: checks whether an implementation is correct, and how much faster it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import Output, format_config
from foretune.errors import UsageError
from foretune.problem import Problem
from foretune.registry import is_code_location
from foretune.support.console import progress_bar
from foretune.values import short_number

if TYPE_CHECKING:
    from foretune.device import Device
    from foretune.tune.receipt import Terms
    from foretune.tune.roofline_share import RooflineShare
    from foretune.tune.tasks.task import Task
    from foretune.tune.verdict import Verdict

REFUSED_EXIT_CODE = 1
"""Exit code of code that is refused or slower."""
CANNOT_TELL_EXIT_CODE = 2
"""Exit code of ``--strict``, and of a verdict that neither confirms nor refutes a receipt."""

EXIT_CODES = {"agrees": 0, "disagrees": 1, "cannot tell": CANNOT_TELL_EXIT_CODE}
"""Exit code by how a new verdict compares with a receipt."""

IN_RECEIPT = (
    "problem",
    "beside",
    "tolerance",
    "max_seconds",
    "solution",
    "backward",
    "tune_seconds",
    "special_values",
)
"""Options that a receipt determines."""


def judge(
    context: typer.Context,
    candidate: str = typer.Argument(
        help="The function to judge, FILE.py:NAME; or a task's folder."
    ),
    reference: str = typer.Argument("", help="The reference: FILE.py:NAME. A folder has its own."),
    problem: list[str] = typer.Option(
        [], help="Arguments of --inputs, 'N=1024,M=64' (repeatable). A folder may have its own."
    ),
    inputs: str = typer.Option("", help="FILE.py:NAME. Default: 'inputs' in the reference's file."),
    beside: list[str] = typer.Option([], help="Another rival: 'blas=FILE.py:NAME' (repeatable)."),
    tolerance: float | None = typer.Option(
        None, help="Maximum relative error of an output. Default: by the type of its numbers."
    ),
    max_seconds: float = typer.Option(0.5, help="Seconds of timed rounds per process and problem."),
    strict: bool = typer.Option(False, "--strict", help="End with exit code 2 if inconclusive."),
    device: str = options.DEVICE,
    solution: str = typer.Option("", help="Name of the solution, if a folder has several."),
    backward: bool = typer.Option(False, help="Also judge the gradients of a folder's models."),
    explain: bool = typer.Option(False, help="Say what limits the candidate, and what to try."),
    tune_seconds: float = typer.Option(
        10.0, help="Seconds to tune a candidate with knobs (@tunable) per problem; 0: its defaults."
    ),
    special_values: bool = typer.Option(
        True, help="Also check zeros, large values, NaN and others that the reference accepts."
    ),
    receipt: Path | None = typer.Option(None, help="Write a receipt that others can verify."),
    sign: Path | None = typer.Option(None, help="Sign the receipt with this private SSH key."),
    verify_receipt: Path | None = typer.Option(
        None, help="Judge again, and compare with this receipt."
    ),
    signers: Path | None = typer.Option(
        None, help="OpenSSH's allowed_signers: one of them must have signed the receipt."
    ),
) -> None:
    """Check whether a function is correct, and faster than another.

    Each runs in a separate process, on inputs that it has never seen. Code that only looks fast is
    rejected with the reason and exit code 1; slower code is exit code 1, too.

    Example: foretune judge new.py:sums old.py:sums --problem N=1000

    Example: foretune judge my_task/ --receipt verdict.json
    """
    from foretune.collect.devices import local_device
    from foretune.tune import receipt as receipts

    _check_options(context)
    output = Output(options.root_options(context).as_json)
    problems = [Problem.parse(text) for text in problem]
    terms = receipts.Terms(
        tolerance=tolerance,
        session_s=max_seconds,
        backward=backward,
        solution=solution,
        tune_s=tune_seconds,
        special_values=special_values,
    )
    known = None
    if verify_receipt is not None:
        # The receipt says what to judge again, and how.
        known = receipts.read_receipt(verify_receipt, signers)
        problems = receipts.problems_of(known)
        terms = receipts.terms_of(known)

    judged_on = local_device(device, measure=False)
    rivals = options.parse_key_values(beside, "--beside", "NAME=FILE.py:NAME")
    with _task(
        candidate, reference, inputs=inputs, problems=problems, terms=terms, device=judged_on
    ) as task:
        if known is not None:
            receipts.check_files(known, task)
        verdict = _verdict(
            output, task, rivals=rivals, terms=terms, device=judged_on, explain=explain
        )
        _print_verdict(output, task, verdict)
        shares = _roofline_shares(verdict, device) if explain else []
        for share in shares:
            output.say(share.headline, wrapped=True)
        if receipt is not None:
            written = receipts.make_receipt(task, verdict, terms, judged_on)
            receipts.write_receipt(receipt, written, sign)
            output.say(f"receipt: {receipt}")

    result = verdict.to_dict()
    if explain:
        result["roofline"] = [share.to_dict() for share in shares]
    exit_code = _exit_code(verdict, strict)
    if known is not None:
        check = receipts.compare_with_receipt(known, verdict)
        output.say(f"receipt {check.headline}")
        result["receipt"] = check.to_dict()
        exit_code = EXIT_CODES[check.outcome]
    output.result(result)
    if exit_code:
        raise typer.Exit(exit_code)


def _check_options(context: typer.Context) -> None:
    """Raise UsageError for options that are wrong, or that do not go together."""
    given = context.params
    options.require_positive(given["max_seconds"], "--max-seconds")
    if not given["tune_seconds"] >= 0:
        raise UsageError(f"--tune-seconds {given['tune_seconds']} is no time: give at least 0")
    if given["sign"] is not None and given["receipt"] is None:
        raise UsageError("--sign needs a receipt: add --receipt FILE")
    if given["receipt"] is not None and given["beside"]:
        raise UsageError("a receipt has no other rivals: leave --beside or --receipt out")
    if given["verify_receipt"] is not None:
        options.reject_options(context, IN_RECEIPT, "a receipt determines")
    elif given["signers"] is not None:
        raise UsageError("--signers is for --verify-receipt FILE")


def _exit_code(verdict: "Verdict", strict: bool) -> int:
    if verdict.refused or verdict.outcome == "slower":
        return REFUSED_EXIT_CODE
    if strict and verdict.outcome == "inconclusive":
        return CANNOT_TELL_EXIT_CODE
    return 0


@contextmanager
def _task(
    candidate: str,
    reference: str,
    *,
    inputs: str,
    problems: list[Problem],
    terms: "Terms",
    device: "Device",
) -> Iterator["Task"]:
    """Read what the command line names: two functions, or a folder."""
    from foretune.tune.tasks.folder import read_task
    from foretune.tune.tasks.functions import locations_task

    if is_code_location(candidate):
        if not reference:
            raise UsageError(f"{candidate} needs a reference: add FILE.py:NAME")
        if not problems:
            raise UsageError("no problem is given: add --problem 'N=1024'")
        if terms.backward or terms.solution:
            raise UsageError("--backward and --solution are for folders: give a task's folder")
        yield locations_task(candidate, reference, inputs, problems)
        return

    if reference or inputs:
        raise UsageError(
            f"{candidate} is a folder, which has its own reference and inputs: give one argument, "
            "or FILE.py:NAME"
        )
    with read_task(
        Path(candidate),
        problems,
        device=device,
        solution=terms.solution,
        backward=terms.backward,
    ) as task:
        yield task


def _verdict(
    output: Output,
    task: "Task",
    *,
    rivals: dict[str, str],
    terms: "Terms",
    device: "Device",
    explain: bool,
) -> "Verdict":
    """Judge a task; a candidate with knobs is checked with its defaults, then tuned."""
    from foretune.tune.judge import judge as judge_functions
    from foretune.tune.tasks.knobs import TunedCode, may_have_knobs, tuned_task

    with progress_bar() as progress:

        def judge_task(task: "Task", check_only: bool = False) -> "Verdict":
            return judge_functions(
                task.candidate,
                task.reference,
                task.problems,
                inputs=task.inputs,
                rivals=rivals,
                tolerance=terms.tolerance,
                session_s=terms.session_s,
                special_values=terms.special_values,
                device=device,
                check_only=check_only,
                explain=explain,
                progress=progress,
            )

        if not terms.tune_s or not may_have_knobs(task):
            return judge_task(task)

        # Wrong code is refused before any time goes into tuning it.
        of_defaults = judge_task(task, check_only=True)
        if of_defaults.refused:
            return of_defaults
        progress.start("tuning the candidate", 1)
        tuned = tuned_task(task, terms.tune_s)
        if tuned is None:
            return judge_task(task)
        assert isinstance(tuned.candidate, TunedCode)
        for problem, choice in tuned.candidate.choices:
            output.say(f"tuned, {problem}: {format_config(dict(choice))}")
        return judge_task(tuned)


def _roofline_shares(verdict: "Verdict", device: str) -> "list[RooflineShare]":
    from foretune.collect.devices import local_device
    from foretune.tune.judge import CANDIDATE
    from foretune.tune.roofline_share import roofline_share

    measured = local_device(device)
    return [
        roofline_share(ruling.problem, ruling.work, ruling.time_ms[CANDIDATE], measured)
        for ruling in verdict.problem_verdicts
        if ruling.work is not None
    ]


def _print_verdict(output: Output, task: "Task", verdict: "Verdict") -> None:
    """Print the times of every problem, and the verdict in one line."""
    if verdict.problem_verdicts:
        names = sorted(verdict.problem_verdicts[0].time_ms)
        rows = []
        for ruling in verdict.problem_verdicts:
            times = [short_number(ruling.time_ms[name], 4) for name in names]
            gain = ruling.candidate
            speedup = f"{gain.ratio:.2f} ({gain.ratio_low:.2f}–{gain.ratio_high:.2f})"
            rows.append([str(ruling.problem), *times, speedup])
        output.table("Times in ms", ["problem", *names, "speed-up (99 %)"], rows)
    output.say(verdict.headline)
    if verdict.accepted and task.one_shape:
        output.say("It was checked on one shape only: add --problem for others.")
