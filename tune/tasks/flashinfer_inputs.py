"""Arguments of a call in FlashInfer Trace: random, stored, or given by the workload."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.errors import MeasurementError
from foretune.problem import Problem
from foretune.tune.tasks.flashinfer_schema import Definition, Tensor, Workload
from foretune.tune.tasks.models import seed_generators
from foretune.values import Value

INTEGER_LIMITS = {"int8": 128, "int16": 1024, "int32": 1024, "int64": 1024}
"""Random integers lie between minus this and this, as in flashinfer-bench."""
SMALL_FLOATS = ("float8_e4m3fn", "float8_e5m2")
SMALL_FLOAT_LIMIT = 2.0
"""Magnitude of random numbers of these types."""
WORKLOAD = "workload"
"""Problem parameter that tells workloads of equal sizes apart."""


@dataclass(frozen=True)
class TraceInputs:
    """Makes the arguments of a call.

    Attributes:
        definition: the inputs and their order.
        workloads: whose sizes and values are used; empty if all inputs are random.
        folder: the trace set, in which stored inputs lie.
        device: torch's name of the device.
    """

    definition: Definition
    workloads: tuple[Workload, ...]
    folder: Path
    device: str

    def problems(self) -> tuple[Problem, ...]:
        """Return one problem per workload; equal sizes are told apart by the workload's name."""
        sizes = [Problem({**workload.axes}) for workload in self.workloads]
        are_unique = len(set(sizes)) == len(sizes)
        if are_unique:
            return tuple(sizes)
        return tuple(
            Problem({**workload.axes, WORKLOAD: workload.name}) for workload in self.workloads
        )

    def stored_files(self) -> list[Path]:
        """Return the files of stored inputs."""
        paths = set()
        for workload in self.workloads:
            for path, _ in workload.stored.values():
                paths.add(path)
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
        """Return the workload of that name or, without a name, of these sizes; None if none."""
        name = problem.get(WORKLOAD)
        sizes = {axis: size for axis, size in problem.items() if axis != WORKLOAD}
        for workload in self.workloads:
            has_sizes = name is None and {**workload.axes} == sizes
            if workload.name == name or has_sizes:
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


def torch_type(name: str) -> Any:
    """Return torch's type of that name; MeasurementError if it has none."""
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise MeasurementError(f"torch has no type {name}")
    return dtype


def random_tensor(shape: tuple[int, ...], dtype: str) -> Any:
    """Return a tensor of random values on the host: normal, small integers, or booleans.

    Raises MeasurementError for a type that torch does not have.
    """
    import torch

    torch_dtype = torch_type(dtype)
    if dtype == "bool":
        return torch.randint(0, 2, shape, dtype=torch_dtype)
    if dtype in INTEGER_LIMITS:
        limit = INTEGER_LIMITS[dtype]
        return torch.randint(-limit, limit, shape, dtype=torch_dtype)
    if dtype in SMALL_FLOATS:
        # Torch draws no numbers of eight bits: convert them.
        numbers = torch.randn(shape).clamp(-SMALL_FLOAT_LIMIT, SMALL_FLOAT_LIMIT)
        return numbers.to(torch_dtype)
    return torch.randn(shape, dtype=torch_dtype)


def _stored_tensor(file: Path, key: str) -> Any:
    try:
        from safetensors import safe_open
    except ImportError as e:
        raise MeasurementError(f"{file} needs safetensors: pip install safetensors") from e
    with safe_open(str(file), framework="pt") as tensors:
        return tensors.get_tensor(key)
