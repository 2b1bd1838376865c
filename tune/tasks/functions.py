"""Tasks written as two functions, usually in ``reference.py`` and ``candidate.py``.

Both have a function of the same name; the reference's file also has ``inputs``. The sizes may stand
there as ``PROBLEMS = [{"rows": 100}, …]``.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from foretune.problem import Problem
from foretune.tune.tasks.module_parts import ParsedModule, modules_beside
from foretune.tune.tasks.task import Task, TaskError, files_in, only_one

FORM = "functions"
REFERENCE_FILE = "reference.py"
CANDIDATE_FILE = "candidate.py"
INPUTS = "inputs"
PROBLEMS = "PROBLEMS"


def has_functions(folder: Path) -> bool:
    """Whether a folder has this form."""
    return (folder / REFERENCE_FILE).is_file() and (folder / CANDIDATE_FILE).is_file()


def functions_task(folder: Path, problems: Sequence[Problem]) -> Task:
    """Return the task of a folder; TaskError if the function or the problems are not known."""
    reference = folder / REFERENCE_FILE
    candidate = folder / CANDIDATE_FILE
    parsed = ParsedModule(reference)
    # A candidate may assign what a compiler makes of a function: op = torch.compile(_op).
    offered = ParsedModule(candidate).names
    both = [n for n in parsed.functions if n in offered and n != INPUTS and not n.startswith("_")]
    name = only_one(
        "function that both files define",
        both,
        folder,
        "name them: 'foretune judge candidate.py:NAME reference.py:NAME'",
    )
    if not problems:
        problems = _own_problems(parsed)
    return Task(
        form=FORM,
        folder=folder,
        candidate=f"{candidate}:{name}",
        reference=f"{reference}:{name}",
        inputs=f"{reference}:{INPUTS}",
        problems=tuple(problems),
        files=files_in(folder),
    )


def locations_task(
    candidate: str, reference: str, inputs: str, problems: Sequence[Problem]
) -> Task:
    """Return the task of two functions, each ``FILE.py:NAME`` or ``MODULE:NAME``.

    ``inputs`` is empty for the function of that name in the reference's file.
    """
    source = reference.rpartition(":")[0] or reference
    inputs = inputs or f"{source}:{INPUTS}"
    sources = [location.rpartition(":")[0] for location in (candidate, reference, inputs)]
    files = {Path(source).resolve() for source in sources if source.endswith(".py")}
    existing = [file for file in files if file.is_file()]
    return Task(
        form=FORM,
        folder=Path(os.path.commonpath([file.parent for file in existing] or [Path.cwd()])),
        candidate=candidate,
        reference=reference,
        inputs=inputs,
        problems=tuple(problems),
        files=tuple(sorted(modules_beside(existing))),
    )


def _own_problems(reference: ParsedModule) -> list[Problem]:
    listed = reference.constant(PROBLEMS)
    sizes = [name for name in reference.parameters(INPUTS) if name != "seed"]
    if not isinstance(listed, list | tuple) or not listed:
        example = ",".join(f"{name}=…" for name in sizes) or "N=…"
        raise TaskError(
            f"{reference.file} lists no {PROBLEMS}: add --problem {example}, best several times"
        )
    if not all(isinstance(problem, dict) for problem in listed):
        raise TaskError(f"{PROBLEMS} of {reference.file} is no list of dictionaries of sizes")
    return [Problem(problem) for problem in listed]
