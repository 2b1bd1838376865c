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
    if not (sweep or batch):
        question = parse_question(operator, problem)
        [answer] = predict_questions([question], on, engine=engine, operators=operators)
        _show_one(output, answer)
        _say_source(output, answer)
        output.result(asdict(answer))
        return

    size_name, sizes = _parse_sweep(operator, sweep, batch)
    other_sizes = _without(problem, operator, size_name)
    questions = [read_question(operator, {**other_sizes, size_name: size}) for size in sizes]
    answers = predict_questions(questions, on, engine=engine, operators=operators)
    _show_table(output, answers, size_name)
    _say_source(output, answers[0])
    output.result({"answers": [asdict(answer) for answer in answers]})


def _parse_sweep(operator: str, sweep: str, batch: str) -> tuple[str, list[int]]:
    """Return the size that ``--sweep`` or ``--batch`` varies, and its values."""
    from foretune.plan.operators.operator_specs import OPERATORS, operator_name

    if batch:
        # Without a phase, a sweep of batches means the decode as often as the prefill; both have a
        # size of this name.
        return OPERATORS[operator_name(operator)].load, parse_sizes(batch, "--batch")
    name, equals, values = sweep.partition("=")
    if not equals:
        raise UsageError(f"--sweep is {sweep!r}: write NAME=1,64,4096 or NAME=1..8192")
    return name.strip(), parse_sizes(values, "--sweep")


def _without(problem: str, operator: str, name: str) -> dict[str, object]:
    """Return the sizes of ``--problem`` except the one that is swept, by whichever name."""
    from foretune.plan.operators.operator_specs import OPERATORS, operator_name
    from foretune.space import Configuration

    sizes = dict(Configuration.parse(problem))
    aliases = OPERATORS[operator_name(operator, sizes)].aliases
    swept = aliases.get(name, name)
    return {key: size for key, size in sizes.items() if aliases.get(key, key) != swept}


def _show_one(output: Output, answer: "OperatorAnswer") -> None:
    sizes = ", ".join(f"{name}={size:g}" for name, size in answer.sizes.items())
    output.say(f"{answer.operator} on {answer.device}: {sizes} {answer.format}".rstrip())
    output.say(f"  {short_number(answer.time_ms)} ms (90 % interval {_interval(answer)} ms)")
    if answer.power_w is not None:
        output.say(f"  {short_number(answer.power_w)} W")
    limit = LIMITS[answer.bottleneck]
    output.say(f"  limited by {limit}, at {answer.limit_share:.0%} of the roofline")


def _interval(answer: "OperatorAnswer") -> str:
    return f"{short_number(answer.time_ms_low)}–{short_number(answer.time_ms_high)}"


def _show_table(output: Output, answers: "list[OperatorAnswer]", size_name: str) -> None:
    """Print a row per value of the size that was swept."""
    from foretune.plan.operators.operator_specs import OPERATORS

    first = answers[0]
    rows = []
    for answer in answers:
        aliases = OPERATORS[answer.operator].aliases
        size = answer.sizes[aliases.get(size_name, size_name)]
        watts = "" if answer.power_w is None else short_number(answer.power_w)
        rows.append(
            [
                f"{size:g}",
                short_number(answer.time_ms),
                _interval(answer),
                watts,
                LIMITS[answer.bottleneck],
                f"{answer.limit_share:.0%}",
            ]
        )
    output.table(
        f"{first.operator} on {first.device} {first.format}".rstrip(),
        (size_name, "ms", "90 % interval", "W", "limited by", "of the roofline"),
        rows,
    )


def _say_source(output: Output, answer: "OperatorAnswer") -> None:
    """Say where the times come from."""
    if answer.source == "predicted":
        names = ", ".join(f"{system.device}" for system in answer.nearest)
        output.say(f"  {answer.note}" if answer.note else "  predicted")
        output.say(f"  nearest measured: {names}")
    else:
        output.say(f"  {answer.source} with {answer.engine}'s kernels on {answer.device}")
