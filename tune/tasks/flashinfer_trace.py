"""Tasks in the schema of FlashInfer Trace: definitions, solutions and workloads in JSON.

A definition has named axes, inputs and outputs, and a reference ``run`` in Python. A solution has
sources and an entry point. A workload gives the sizes of the variable axes, and says where the
values of each input come from. See https://bench.flashinfer.ai/docs/
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from foretune.errors import MeasurementError
from foretune.problem import Problem
from foretune.registry import object_at
from foretune.tune.tasks.models import seed_generators
from foretune.tune.tasks.task import Task, TaskError, only_one
from foretune.values import Value

FORM = "flashinfer-trace"
LANGUAGES = ("python", "triton")
"""Languages of solutions that need no build."""
REFERENCE_FILE = "foretune_reference.py"
REFERENCE_FUNCTION = "run"
INTEGER_RANGES = {"int8": 128, "int16": 1024, "int32": 1024, "int64": 1024}
"""Random integers lie between minus this and this, as in flashinfer-bench."""
SMALL_FLOATS = ("float8_e4m3fn", "float8_e5m2")
SMALL_FLOAT_LIMIT = 2.0
"""Magnitude of random numbers of these types."""
WORKLOAD = "workload"
"""Problem parameter that tells workloads of equal sizes apart."""


@dataclass(frozen=True)
class Definition:
    """What is computed: sizes, inputs, outputs, and the reference's source."""

    name: str
    axes: Mapping[str, int | None]
    inputs: Mapping[str, "Tensor"]
    outputs: Mapping[str, "Tensor"]
    reference: str
    constraints: tuple[str, ...]

    @property
    def variable_axes(self) -> list[str]:
        """Names of the axes whose size is the workload's."""
        return [name for name, size in self.axes.items() if size is None]

    def shape(self, tensor: "Tensor", problem: Mapping[str, Value]) -> tuple[int, ...]:
        """Return a tensor's shape for one problem."""
        sizes = {name: problem[name] if size is None else size for name, size in self.axes.items()}
        return tuple(int(sizes[axis]) for axis in tensor.axes or ())


@dataclass(frozen=True)
class Tensor:
    """An input or output: its axes (None for a scalar) and torch's name of its type."""

    axes: tuple[str, ...] | None
    dtype: str


@dataclass(frozen=True)
class Solution:
    """A candidate: its sources by path, and the function to call."""

    name: str
    definition: str
    sources: Mapping[str, str]
    file: str
    function: str
    writes_outputs: bool


@dataclass(frozen=True)
class Workload:
    """Sizes of the variable axes, and the inputs that are not random."""

    name: str
    axes: Mapping[str, int]
    scalars: Mapping[str, Value]
    stored: Mapping[str, tuple[str, str]]
    """Input -> file (relative to the trace set) and key in it."""
    random: tuple[str, ...]


def find_trace(folder: Path, wanted: str) -> tuple[Path, Path] | None:
    """Return the files of definition and solution; None if there are no definitions.

    ``wanted`` names the solution, if there are several. Raises TaskError if it is ambiguous.
    """
    definitions = {}
    solutions = {}
    for file in sorted(folder.rglob("*.json")):
        record = _read_json(file)
        if _is_definition(record):
            definitions[str(record["name"])] = file
        elif _is_solution(record):
            solutions[str(record["name"])] = file
    if not definitions:
        return None
    names = [name for name in solutions if wanted in ("", name)]
    advice = "name one with --solution" if len(names) > 1 else f"solutions: {', '.join(solutions)}"
    solution = solutions[only_one("solution", names, folder, advice)]

    needed = str(_read_json(solution)["definition"])
    if needed not in definitions:
        raise TaskError(f"{solution} solves {needed}, which has no definition in {folder}")
    return definitions[needed], solution


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
    inputs = TraceInputs(definition, tuple(workloads), folder, device)
    if problems:
        for problem in problems:
            _check_axes(definition, problem)
        inputs = TraceInputs(definition, (), folder, device)
    elif not workloads:
        sizes = ",".join(f"{name}=…" for name in definition.variable_axes)
        raise TaskError(f"{folder} has no workload of {definition.name}: add --problem {sizes}")
    _check_random_inputs(definition, inputs.workloads)

    reference = _write_sources(sources / "reference", {REFERENCE_FILE: definition.reference})
    candidate = _write_sources(sources / "candidate", solution.sources)
    for file in inputs.stored_files():
        if not file.is_file():
            raise TaskError(
                f"{definition.name}: a workload stores inputs in {file}, which is not there"
            )
    used = workload_files if not problems else []
    return Task(
        form=FORM,
        folder=folder,
        candidate=TraceCode(
            f"{candidate / solution.file}:{solution.function}",
            definition,
            solution.writes_outputs,
            device,
        ),
        reference=TraceCode(
            f"{reference / REFERENCE_FILE}:{REFERENCE_FUNCTION}", definition, False, device
        ),
        inputs=inputs,
        problems=tuple(problems) or inputs.problems(),
        files=(definition_file, solution_file, *used, *inputs.stored_files()),
    )


def read_definition(file: Path) -> Definition:
    """Read a definition; TaskError if a field is missing or of another kind."""
    record = _read_json(file)
    try:
        axes: dict[str, int | None] = {}
        for name, axis in record["axes"].items():
            if axis["type"] not in ("const", "var"):
                raise TaskError(f"{file}: axis {name} is {axis['type']!r}: const and var are known")
            axes[name] = int(axis["value"]) if axis["type"] == "const" else None
        definition = Definition(
            name=record["name"],
            axes=axes,
            inputs={name: _tensor(spec) for name, spec in record["inputs"].items()},
            outputs={name: _tensor(spec) for name, spec in record["outputs"].items()},
            reference=record["reference"],
            constraints=tuple(record.get("constraints") or ()),
        )
    except (KeyError, TypeError, AttributeError) as e:
        raise TaskError(f"{file} is no complete definition: {e} is missing or wrong") from e

    for name, tensor in [*definition.inputs.items(), *definition.outputs.items()]:
        for axis in tensor.axes or ():
            if axis not in definition.axes:
                raise TaskError(f"{file}: {name} has the axis {axis}, which is not defined")
    return definition


def read_solution(file: Path) -> Solution:
    """Read a solution; TaskError if a field is missing, or it has to be built first."""
    record = _read_json(file)
    try:
        spec = record["spec"]
        sources = {source["path"]: source["content"] for source in record["sources"]}
        entry_file, separator, function = spec["entry_point"].partition("::")
        language = spec["language"]
        definition = record["definition"]
    except (KeyError, TypeError) as e:
        raise TaskError(f"{file} is no complete solution: {e} is missing or wrong") from e

    if language not in LANGUAGES:
        raise TaskError(
            f"{file} is written in {language}, which is not built here: judge its Python function "
            "with 'foretune judge FILE.py:NAME REFERENCE.py:NAME'"
        )
    if not separator or entry_file not in sources:
        raise TaskError(f"{file}: the entry point {spec['entry_point']!r} is none of its sources")
    for path in sources:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise TaskError(f"{file}: the source {path} lies outside of the solution")
    return Solution(
        name=record["name"],
        definition=definition,
        sources=sources,
        file=entry_file,
        function=function,
        writes_outputs=bool(spec.get("destination_passing_style", True)),
    )


def read_workloads(file: Path, definition: Definition) -> list[Workload]:
    """Read the workloads of one definition from JSON lines; TaskError for a damaged line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as e:
        raise TaskError(f"{file} cannot be read as text: {e}") from e
    workloads = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if record.get("definition") == definition.name and record.get("workload"):
                workloads.append(_workload(record["workload"], definition))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise TaskError(f"{file}, line {number}, is no workload: {e}") from e
    unique = {workload.name: workload for workload in workloads}
    return list(unique.values())


def _workload(record: Mapping[str, Any], definition: Definition) -> Workload:
    given = record.get("inputs", {})
    kinds = {name: given.get(name, {"type": "random"})["type"] for name in definition.inputs}
    for name, kind in kinds.items():
        if kind not in ("random", "scalar", "safetensors"):
            raise TaskError(f"the input {name} is {kind!r}: random, scalar, safetensors are known")
    _check_axes(definition, record["axes"])
    return Workload(
        name=str(record["uuid"]),
        axes=record["axes"],
        scalars={n: given[n]["value"] for n, kind in kinds.items() if kind == "scalar"},
        stored={
            n: (given[n]["path"], given[n]["tensor_key"])
            for n, kind in kinds.items()
            if kind == "safetensors"
        },
        random=tuple(n for n, kind in kinds.items() if kind == "random"),
    )


def _check_axes(definition: Definition, sizes: Mapping[str, Any]) -> None:
    missing = [name for name in definition.variable_axes if name not in sizes]
    unknown = [name for name in sizes if name not in definition.variable_axes]
    if missing or unknown:
        known = ", ".join(definition.variable_axes)
        raise TaskError(
            f"{definition.name} has the variable axes {known}, not {', '.join(sizes) or 'none'}"
        )


def _check_random_inputs(definition: Definition, workloads: Sequence[Workload]) -> None:
    """Refuse random values where a constraint asks for certain ones, such as offsets."""
    drawn: set[str] = set()
    for workload in workloads:
        drawn |= {*workload.random}
    if not workloads:
        drawn = {*definition.inputs}
    for constraint in definition.constraints:
        for name in sorted(drawn & set(re.findall(r"\w+", constraint))):
            raise TaskError(
                f"{definition.name}: random values of {name} would not fulfil {constraint!r}: give "
                "a workload that stores them"
            )


@dataclass(frozen=True)
class TraceInputs:
    """Makes the arguments of a call: random, stored or given by the workload."""

    definition: Definition
    workloads: tuple[Workload, ...]
    folder: Path
    device: str

    def problems(self) -> tuple[Problem, ...]:
        """Return one problem per workload; equal sizes are told apart by the workload's name."""
        sizes = [Problem({**w.axes}) for w in self.workloads]
        are_unique = len(set(sizes)) == len(sizes)
        if are_unique:
            return tuple(sizes)
        return tuple(Problem({**w.axes, WORKLOAD: w.name}) for w in self.workloads)

    def stored_files(self) -> list[Path]:
        """Return the files of stored inputs."""
        paths = {path for w in self.workloads for path, _ in w.stored.values()}
        return [self.folder / path for path in sorted(paths)]

    def __call__(self, seed: int, **problem: Value) -> tuple[Any, ...]:
        """Return the arguments in the definition's order, on the device."""
        seed_generators(seed)
        workload = self._workload_of(problem)
        return tuple(
            self._input(name, tensor, workload, problem)
            for name, tensor in self.definition.inputs.items()
        )

    def _workload_of(self, problem: Mapping[str, Value]) -> Workload | None:
        wanted = problem.get(WORKLOAD)
        sizes = {k: v for k, v in problem.items() if k != WORKLOAD}
        for workload in self.workloads:
            if workload.name == wanted or (wanted is None and {**workload.axes} == sizes):
                return workload
        return None

    def _input(
        self,
        name: str,
        tensor: Tensor,
        workload: Workload | None,
        problem: Mapping[str, Value],
    ) -> Any:
        if workload is not None and name in workload.scalars:
            return workload.scalars[name]
        if workload is not None and name in workload.stored:
            path, key = workload.stored[name]
            return _stored_tensor(self.folder / path, key).to(self.device)
        drawn = random_tensor(self.definition.shape(tensor, problem), tensor.dtype)
        return drawn.item() if tensor.axes is None else drawn.to(self.device)


def random_tensor(shape: tuple[int, ...], dtype: str) -> Any:
    """Return a tensor of random values on the host: normal, small integers, or booleans.

    Raises MeasurementError for a type that torch does not have.
    """
    import torch

    kind = getattr(torch, dtype, None)
    if kind is None:
        raise MeasurementError(f"torch has no type {dtype}")
    if dtype == "bool":
        return torch.randint(0, 2, shape, dtype=kind)
    if dtype in INTEGER_RANGES:
        limit = INTEGER_RANGES[dtype]
        return torch.randint(-limit, limit, shape, dtype=kind)
    if dtype in SMALL_FLOATS:
        return torch.randn(shape).clamp(-SMALL_FLOAT_LIMIT, SMALL_FLOAT_LIMIT).to(kind)
    return torch.randn(shape, dtype=kind)


@dataclass(frozen=True)
class TraceCode:
    """A function of a definition's inputs, which returns a tuple of all outputs."""

    location: str
    definition: Definition
    writes_outputs: bool
    device: str

    def for_problem(self, problem: Mapping[str, Value]) -> Callable[..., tuple[Any, ...]]:
        """Return the function for one problem's sizes."""
        function = object_at(self.location)
        if self.writes_outputs:
            return self._with_new_outputs(function, problem)
        names = list(self.definition.outputs)

        def call(*inputs: Any) -> tuple[Any, ...]:
            result = function(*inputs)
            if isinstance(result, Mapping):
                result = tuple(result[name] for name in names)
            outputs = tuple(result) if isinstance(result, list | tuple) else (result,)
            if len(outputs) != len(names):
                raise MeasurementError(f"it returns {len(outputs)} outputs instead of {len(names)}")
            return outputs

        return call

    def _with_new_outputs(
        self, function: Callable[..., Any], problem: Mapping[str, Value]
    ) -> Callable[..., tuple[Any, ...]]:
        """Return a function that makes the outputs, and passes them as the last arguments."""
        import torch

        specs = [
            (self.definition.shape(tensor, problem), getattr(torch, tensor.dtype))
            for tensor in self.definition.outputs.values()
        ]

        def call(*inputs: Any) -> tuple[Any, ...]:
            outputs = tuple(torch.empty(s, dtype=kind, device=self.device) for s, kind in specs)
            function(*inputs, *outputs)
            return outputs

        return call


def _stored_tensor(file: Path, key: str) -> Any:
    try:
        from safetensors import safe_open
    except ImportError as e:
        raise MeasurementError(f"{file} needs safetensors: pip install safetensors") from e
    with safe_open(str(file), framework="pt") as tensors:
        return tensors.get_tensor(key)


def _tensor(spec: Mapping[str, Any]) -> Tensor:
    shape = spec["shape"]
    return Tensor(None if shape is None else tuple(shape), str(spec["dtype"]))


def _write_sources(folder: Path, sources: Mapping[str, str]) -> Path:
    for path, content in sources.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return folder


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise TaskError(f"{file} cannot be read as JSON: {e}") from e


def _is_definition(record: Any) -> bool:
    return isinstance(record, dict) and {"name", "axes", "inputs", "reference"} <= {*record}


def _is_solution(record: Any) -> bool:
    return isinstance(record, dict) and {"name", "definition", "sources", "spec"} <= {*record}
