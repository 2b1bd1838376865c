"""Tasks in the schema of FlashInfer Trace: find a definition and a solution, and make the task."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from foretune.problem import Problem
from foretune.tune.tasks.flashinfer_code import TraceCode
from foretune.tune.tasks.flashinfer_inputs import TraceInputs
from foretune.tune.tasks.flashinfer_schema import (
    Definition,
    Workload,
    is_definition,
    is_solution,
    read_definition,
    read_json,
    read_solution,
    read_workloads,
)
from foretune.tune.tasks.task import Task, TaskError, only_one

FORM = "flashinfer-trace"
REFERENCE_FILE = "foretune_reference.py"
REFERENCE_FUNCTION = "run"


def find_trace(folder: Path, wanted: str) -> tuple[Path, Path] | None:
    """Return the files of definition and solution; None if there are no definitions.

    ``wanted`` names the solution, if there are several. Raises TaskError if it is ambiguous.
    """
    definitions = {}
    solutions = {}
    for file in sorted(folder.rglob("*.json")):
        record = read_json(file)
        if is_definition(record):
            definitions[str(record["name"])] = file
        elif is_solution(record):
            solutions[str(record["name"])] = file
    if not definitions:
        return None

    names = [name for name in solutions if wanted in ("", name)]
    advice = "name one with --solution" if len(names) > 1 else f"solutions: {', '.join(solutions)}"
    solution_file = solutions[only_one("solution", names, folder, advice)]
    needed = str(read_json(solution_file)["definition"])
    if needed not in definitions:
        raise TaskError(f"{solution_file} solves {needed}, which has no definition in {folder}")
    return definitions[needed], solution_file


def trace_task(
    folder: Path,
    definition_file: Path,
    solution_file: Path,
    problems: Sequence[Problem],
    device: str,
    sources: Path,
) -> Task:
    """Return the task of one definition and one solution.

    Args:
        folder: the trace set; workloads lie in its ``*.jsonl`` files.
        definition_file: the definition's JSON.
        solution_file: the solution's JSON.
        problems: sizes of the variable axes; empty for those of the workloads.
        device: torch's name of the device.
        sources: an empty folder for the source files, which Triton reads.
    """
    definition = read_definition(definition_file)
    solution = read_solution(solution_file)
    workload_files = sorted(folder.rglob("*.jsonl"))
    workloads = [w for file in workload_files for w in read_workloads(file, definition)]

    # Given sizes replace the workloads, and then all inputs are random.
    if problems:
        for problem in problems:
            definition.check_sizes(problem)
        used_workloads = []
        used_files = []
    elif workloads:
        used_workloads = workloads
        used_files = workload_files
    else:
        sizes = ",".join(f"{name}=…" for name in definition.variable_axes)
        raise TaskError(f"{folder} has no workload of {definition.name}: add --problem {sizes}")
    _check_random_inputs(definition, used_workloads)
    inputs = TraceInputs(
        definition=definition, workloads=tuple(used_workloads), folder=folder, device=device
    )
    for file in inputs.stored_files():
        if not file.is_file():
            raise TaskError(
                f"{definition.name}: a workload stores inputs in {file}, which is not there"
            )

    reference_folder = sources / "reference"
    _write_sources(reference_folder, {REFERENCE_FILE: definition.reference})
    candidate_folder = sources / "candidate"
    _write_sources(candidate_folder, solution.sources)
    return Task(
        form=FORM,
        folder=folder,
        candidate=TraceCode(
            location=f"{candidate_folder / solution.file}:{solution.function}",
            definition=definition,
            writes_outputs=solution.writes_outputs,
            device=device,
        ),
        reference=TraceCode(
            location=f"{reference_folder / REFERENCE_FILE}:{REFERENCE_FUNCTION}",
            definition=definition,
            writes_outputs=False,
            device=device,
        ),
        inputs=inputs,
        problems=tuple(problems) or inputs.problems(),
        files=(definition_file, solution_file, *used_files, *inputs.stored_files()),
    )


def _check_random_inputs(definition: Definition, workloads: Sequence[Workload]) -> None:
    """Refuse random values where a constraint asks for certain ones, such as offsets."""
    if workloads:
        drawn = {name for workload in workloads for name in workload.random}
    else:
        drawn = set(definition.inputs)
    for constraint in definition.constraints:
        names_in_constraint = set(re.findall(r"\w+", constraint))
        for name in sorted(drawn & names_in_constraint):
            raise TaskError(
                f"{definition.name}: random values of {name} would not fulfil {constraint!r}: give "
                "a workload that stores them"
            )


def _write_sources(folder: Path, sources: Mapping[str, str]) -> None:
    """Write the files of ``sources``, by path in ``folder``."""
    for path, content in sources.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
