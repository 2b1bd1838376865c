"""A gate's result as text: for a terminal of 80 columns, Markdown for a pull request, JUnit XML."""

import textwrap
from collections.abc import Iterator
from xml.etree import ElementTree

from foretune.tune.gate.gate import GateResult
from foretune.tune.gate.verdicts import OPEN, RED, BenchmarkVerdict, Word

TERMINAL_WIDTH = 80
INDENT = "    "
ORDER: tuple[Word, ...] = ("fails", "slower", "not compared", "cannot tell", "faster", "same")
"""Order of the verdicts: what needs attention comes first."""
SIGNS: dict[Word, str] = {
    "slower": "🔴",
    "fails": "🔴",
    "faster": "🟢",
    "same": "⚪",
    "cannot tell": "🟡",
    "not compared": "🟡",
}
MAX_CHANGES = 8
"""Changed packages that are named."""


def in_order(result: GateResult) -> list[BenchmarkVerdict]:
    """Return the verdicts by their words, the largest changes first."""
    return sorted(
        result.verdicts, key=lambda verdict: (ORDER.index(verdict.word), -abs(verdict.change))
    )


def terminal_text(result: GateResult) -> str:
    """Return lines of at most 80 columns: two per benchmark, and the headline last."""
    lines = []
    for verdict in in_order(result):
        lines += _fold(f"{verdict.word:<12} {verdict.label}", indent=" " * 13)
        lines += _fold(
            f"{verdict.change_text}   {verdict.values_text}", indent=" " * 13, first=True
        )
        if verdict.advice:
            lines += _fold(verdict.advice, indent=" " * 13, first=True)
    lines += [line for text in _notes(result) for line in _fold(text, indent="  ")]
    return "\n".join([*lines, *_fold(result.headline, indent="  ")])


def markdown(result: GateResult) -> str:
    """Return a comment for a pull request: the headline, a table, notes."""
    lines = [f"**Performance: {result.headline}**", ""]
    lines += ["| | benchmark | verdict | change | values |", "|---|---|---|---|---|"]
    for verdict in in_order(result):
        word = f"{verdict.word}: {verdict.advice}" if verdict.advice else verdict.word
        cells = [
            SIGNS[verdict.word],
            f"`{_cell(verdict.label)}`",
            _cell(word),
            verdict.change_text,
            verdict.values_text,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    notes = [f"- {_cell(text)}" for text in _notes(result)]
    return "\n".join([*lines, "", *notes, ""])


def junit(result: GateResult) -> str:
    """Return JUnit XML: a failure if slower or failing, skipped if it cannot be told."""
    verdicts = in_order(result)
    suite = ElementTree.Element(
        "testsuite",
        name="foretune gate",
        tests=str(len(verdicts)),
        failures=str(len(result.having(*RED))),
        errors="0",
        skipped=str(len(result.having(*OPEN))),
        time=f"{result.seconds:.3f}",
    )
    for verdict in verdicts:
        file, _, name = verdict.label.rpartition("::")
        case = ElementTree.SubElement(suite, "testcase", classname=file or "command", name=name)
        message = f"{verdict.word}: {verdict.change_text}"
        if verdict.word in RED:
            failure = ElementTree.SubElement(case, "failure", message=message)
            failure.text = verdict.headline
        elif verdict.word in OPEN:
            ElementTree.SubElement(case, "skipped", message=f"{message}; {verdict.advice}")
        else:
            ElementTree.SubElement(case, "system-out").text = verdict.headline
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _notes(result: GateResult) -> Iterator[str]:
    """Yield what a reader must know beside the verdicts."""
    for name, difference in result.output_differences.items():
        yield f"other output: {name}: {difference}"
    for name, reason in result.left_out.items():
        yield f"left out: {name}: {reason}"
    if result.changes:
        shown = list(result.changes[:MAX_CHANGES])
        if len(result.changes) > MAX_CHANGES:
            shown.append(f"{len(result.changes) - MAX_CHANGES} more")
        yield f"besides the code: {', '.join(shown)}"
    measured = f"{result.sessions} sessions in {result.seconds:.0f} s"
    disturbed = f"; {result.noise.disturbed}" if result.noise.disturbed else ""
    yield f"{measured}; a change of {result.relevant:.1%} counts{disturbed}"


def _fold(text: str, indent: str, first: bool = False) -> list[str]:
    """Break a text into lines; all but the first one are indented, or all of them."""
    return textwrap.wrap(
        text,
        TERMINAL_WIDTH,
        initial_indent=indent if first else "",
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def _cell(text: str) -> str:
    """Return a text that cannot end a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())
