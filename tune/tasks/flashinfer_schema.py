"""The schema of FlashInfer Trace: definitions, solutions and workloads in JSON.

A definition has named axes, inputs and outputs, and a reference ``run`` in Python. A solution has
sources and an entry point. A workload gives the sizes of the variable axes, and says where the
values of each input come from. See https://bench.flashinfer.ai/docs/
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from foretune.tune.tasks.task import TaskError
from foretune.values import Value

LANGUAGES = ("python", "triton")
"""Languages of solutions that need no build."""
INPUT_KINDS = ("random", "scalar", "safetensors")
"""Where a workload's values of an input may come from."""
DEFINITION_FIELDS = {"name", "axes", "inputs", "reference"}
SOLUTION_FIELDS = {"name", "definition", "sources", "spec"}
"""Fields by which records are told apart."""


@dataclass(frozen=True)
class Tensor:
    """An input or output: its axes (None for a scalar) and torch's name of its type."""

    axes: tuple[str, ...] | None
    dtype: str


@dataclass(frozen=True)
class Definition:
    """What is computed: sizes, inputs, outputs, and the reference's source.

    ``axes`` has the size of each axis; None if it is the workload's. ``constraints`` are Python
    expressions over axes and inputs.
    """

    name: str
    axes: Mapping[str, int | None]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    reference: str
    constraints: tuple[str, ...]

    @property
    def variable_axes(self) -> list[str]:
        """Names of the axes whose size is the workload's."""
        return [name for name, size in self.axes.items() if size is None]

    def shape(self, tensor: Tensor, problem: Mapping[str, Value]) -> tuple[int, ...]:
        """Return a tensor's shape for one problem."""
        sizes = {name: problem[name] if size is None else size for name, size in self.axes.items()}
        return tuple(int(sizes[axis]) for axis in tensor.axes or ())

    def check_sizes(self, sizes: Mapping[str, Any]) -> None:
        """Raise TaskError unless ``sizes`` has exactly the variable axes."""
        if set(sizes) != set(self.variable_axes):
            known = ", ".join(self.variable_axes)
            given = ", ".join(sizes) or "none"
            raise TaskError(f"{self.name} has the variable axes {known}, not {given}")


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


def read_json(file: Path) -> Any:
    """Read a JSON file; TaskError if it cannot be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise TaskError(f"{file} cannot be read as JSON: {e}") from e


def is_definition(record: Any) -> bool:
    """Return whether a record of JSON is a definition."""
    return isinstance(record, dict) and record.keys() >= DEFINITION_FIELDS


def is_solution(record: Any) -> bool:
    """Return whether a record of JSON is a solution."""
    return isinstance(record, dict) and record.keys() >= SOLUTION_FIELDS


def read_definition(file: Path) -> Definition:
    """Read a definition; TaskError if a field is missing or of another kind."""
    record = read_json(file)
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
    record = read_json(file)
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
            f"{file} is written in {language}, which is not built here: add a Python source that "
            "builds and calls it, make that the entry point, and write python as its language"
        )
    if not separator or entry_file not in sources:
        raise TaskError(f"{file}: the entry point {spec['entry_point']!r} is none of its sources")
    for path in sources:
        # The sources are written to a folder, and must stay in it.
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

    # The same workload may stand in several lines, one for each solution that ran on it.
    workloads: dict[str, Workload] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if record.get("definition") == definition.name and record.get("workload"):
                workload = _workload(record["workload"], definition)
                workloads[workload.name] = workload
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise TaskError(f"{file}, line {number}, is no workload: {e}") from e
    return list(workloads.values())


def _workload(record: Mapping[str, Any], definition: Definition) -> Workload:
    given = record.get("inputs", {})
    scalars: dict[str, Value] = {}
    stored: dict[str, tuple[str, str]] = {}
    random: list[str] = []
    for name in definition.inputs:
        # An input that the workload does not name is random.
        source = given.get(name, {"type": "random"})
        kind = source["type"]
        if kind == "random":
            random.append(name)
        elif kind == "scalar":
            scalars[name] = source["value"]
        elif kind == "safetensors":
            stored[name] = (source["path"], source["tensor_key"])
        else:
            known = ", ".join(INPUT_KINDS)
            raise TaskError(f"the input {name} is {kind!r}: {known} are known")
    definition.check_sizes(record["axes"])
    return Workload(
        name=str(record["uuid"]),
        axes=record["axes"],
        scalars=scalars,
        stored=stored,
        random=tuple(random),
    )


def _tensor(spec: Mapping[str, Any]) -> Tensor:
    shape = spec["shape"]
    axes = None if shape is None else tuple(shape)
    return Tensor(axes=axes, dtype=str(spec["dtype"]))
