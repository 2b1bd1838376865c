"""``foretune predict OPERATOR --on DEVICE``: what an operator costs, without any training."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.cli.networks import parse_sizes
from foretune.cli.output import Output
from foretune.errors import UsageError
from foretune.values import short_number

if TYPE_CHECKING:
    from foretune.plan.operators.predicting import OperatorAnswer

LIMITS = {
    "compute": "compute",
    "memory": "memory bandwidth",
    "links": "links between devices",
    "launch": "its launch",
}
"""Bottleneck -> in words."""


def predict_operator(
    output: Output,
    operator: str,
    *,
    on: str,
    problem: str,
    engine: str,
    operators: Path | None,
    sweep: str,
    batch: str,
) -> None:
    """Print what an operator costs; a table if a size is swept."""
    from foretune.plan.operators.predicting import predict_questions
    from foretune.plan.operators.question import parse_question, read_question

    if not problem:
        raise UsageError(f"give --problem, the sizes of {operator}, like M=4096,N=4096,K=4096")
    if sweep and batch:
        raise UsageError("give --sweep or --batch, not both")
    if sweep or batch:
        name, values = _swept(operator, sweep, batch)
        given = _without(problem, operator, name)
        questions = [read_question(operator, {**given, name: value}) for value in values]
    else:
        name = ""
        questions = [parse_question(operator, problem)]
    answers = predict_questions(questions, on, engine=engine, operators=operators)

    if name:
        _show_table(output, answers, name)
    else:
        _show_one(output, answers[0])
    _say_source(output, answers[0])
    output.result({"answers": [asdict(a) for a in answers]} if name else asdict(answers[0]))


def _swept(operator: str, sweep: str, batch: str) -> tuple[str, list[int]]:
    """Return the size that varies, and its values."""
    from foretune.plan.operators.question import OPERATORS, operator_name

    if batch:
        # Without a phase, a sweep of batches means the decode as often as the prefill; both have a
        # size of this name.
        return OPERATORS[operator_name(operator)].load, parse_sizes(batch, "--batch")
    name, equals, values = sweep.partition("=")
    if not equals:
        raise UsageError(f"--sweep is {sweep!r}: write NAME=1,64,4096 or NAME=1..8192")
    return name.strip(), parse_sizes(values, "--sweep")


def _without(problem: str, operator: str, name: str) -> dict[str, object]:
    """Return the sizes of ``--problem`` except the one that is swept."""
    from foretune.plan.operators.question import OPERATORS, operator_name
    from foretune.space import Configuration

    given = dict(Configuration.parse(problem))
    aliases = OPERATORS[operator_name(operator, given)].aliases
    swept = aliases.get(name, name)
    return {key: value for key, value in given.items() if aliases.get(key, key) != swept}


def _show_one(output: Output, answer: "OperatorAnswer") -> None:
    low, high = short_number(answer.time_ms_low), short_number(answer.time_ms_high)
    sizes = ", ".join(f"{name}={size:g}" for name, size in answer.sizes.items())
    output.say(f"{answer.operator} on {answer.device}: {sizes} {answer.format}".rstrip())
    output.say(f"  {short_number(answer.time_ms)} ms (90 % interval {low}–{high} ms)")
    if answer.power_w is not None:
        output.say(f"  {short_number(answer.power_w)} W")
    share = f"{answer.limit_share:.0%} of the roofline"
    output.say(f"  limited by {LIMITS[answer.bottleneck]}, at {share}")


def _show_table(output: Output, answers: "list[OperatorAnswer]", name: str) -> None:
    first = answers[0]
    rows = []
    for answer in answers:
        size = next(value for key, value in answer.sizes.items() if key == _size_name(answer, name))
        interval = f"{short_number(answer.time_ms_low)}–{short_number(answer.time_ms_high)}"
        watts = "" if answer.power_w is None else short_number(answer.power_w)
        rows.append(
            [
                f"{size:g}",
                short_number(answer.time_ms),
                interval,
                watts,
                LIMITS[answer.bottleneck],
                f"{answer.limit_share:.0%}",
            ]
        )
    output.table(
        f"{first.operator} on {first.device} {first.format}".rstrip(),
        (name, "ms", "90 % interval", "W", "limited by", "of the roofline"),
        rows,
    )


def _size_name(answer: "OperatorAnswer", name: str) -> str:
    from foretune.plan.operators.question import OPERATORS

    return OPERATORS[answer.operator].aliases.get(name, name)


def _say_source(output: Output, answer: "OperatorAnswer") -> None:
    """Say where the times come from."""
    if answer.source == "predicted":
        names = ", ".join(f"{system.device}" for system in answer.nearest)
        output.say(f"  {answer.note}" if answer.note else "  predicted")
        output.say(f"  nearest measured: {names}")
    else:
        output.say(f"  {answer.source} with {answer.engine}'s kernels on {answer.device}")
