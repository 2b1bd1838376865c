"""Tasks written as models: ``Model``, ``get_inputs``, ``get_init_inputs`` and ``ModelNew``.

This is KernelBench's form. ``get_init_inputs()`` returns the arguments of both constructors, and
``get_inputs()`` those of a call. Both read the sizes from constants at the top of the file, or take
them as parameters. A problem gives other sizes. See https://github.com/ScalingIntelligence/KernelBench
"""

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from foretune.collect.isolated_implementation import BUFFER, PARAMETER
from foretune.collect.wrapped.values import as_numpy
from foretune.problem import Problem
from foretune.tune.tasks.module_parts import ParsedModule, load_part
from foretune.tune.tasks.task import Task, TaskError, files_in, only_one
from foretune.values import Value

REFERENCE_CLASS = "Model"
CANDIDATE_CLASS = "ModelNew"
INPUTS = "get_inputs"
INIT_INPUTS = "get_init_inputs"
FORM = "models"


def find_models(folder: Path, files: Sequence[Path]) -> tuple[Path, Path] | None:
    """Return the files of reference and candidate among some Python files; None for another form.

    Raises TaskError if one of them is missing or ambiguous.
    """
    modules = [ParsedModule(file) for file in files]
    references = [m.file for m in modules if REFERENCE_CLASS in m.classes and INPUTS in m.functions]
    candidates = [m.file for m in modules if CANDIDATE_CLASS in m.classes]
    if not references and not candidates:
        return None
    reference = only_one(
        f"file with {REFERENCE_CLASS} and {INPUTS}()",
        [file.name for file in references],
        folder,
        "give the folder of one task",
    )
    candidate = only_one(
        f"file with {CANDIDATE_CLASS}",
        [file.name for file in candidates],
        folder,
        "give a folder with one candidate",
    )
    return folder / reference, folder / candidate


def models_task(
    reference: Path, candidate: Path, problems: Sequence[Problem], device: str, backward: bool
) -> Task:
    """Return the task of two files, which may be the same.

    Args:
        reference: the file with ``Model``, ``get_inputs`` and perhaps ``get_init_inputs``.
        candidate: the file with ``ModelNew``.
        problems: sizes that replace the file's; empty for the file's own.
        device: torch's name of the device, such as ``cpu``.
        backward: also compute the gradients of all inputs and parameters.
    """
    parsed = ParsedModule(reference)
    if reference == candidate:
        _check_joint_file(parsed)
    sizes = parsed.sizes([INPUTS, INIT_INPUTS])
    known = {*sizes, *parsed.parameters(INPUTS), *parsed.parameters(INIT_INPUTS)}
    for problem in problems:
        for name in problem:
            if name not in known:
                listed = ", ".join(sorted(known)) or "none"
                raise TaskError(f"{reference} has no size {name}: its sizes are {listed}")

    weight_seed = secrets.randbits(32)
    classes = {REFERENCE_CLASS: reference, CANDIDATE_CLASS: candidate}
    codes = {
        name: ModelCode(
            file,
            class_name=name,
            task_file=reference,
            weight_seed=weight_seed,
            device=device,
            backward=backward,
        )
        for name, file in classes.items()
    }
    return Task(
        form=FORM,
        folder=reference.parent,
        candidate=codes[CANDIDATE_CLASS],
        reference=codes[REFERENCE_CLASS],
        inputs=ModelInputs(reference, device),
        problems=tuple(problems) or (Problem(sizes),),
        files=files_in(reference.parent),
    )


def _check_joint_file(parsed: ParsedModule) -> None:
    """Refuse a file in which the candidate's statements could change the reference."""
    for name in parsed.redefined([REFERENCE_CLASS, INPUTS, INIT_INPUTS]):
        raise TaskError(
            f"{parsed.file} defines {name} more than once, and the reference needs it: write "
            f"{CANDIDATE_CLASS} in a file of its own"
        )


@dataclass(frozen=True)
class ModelInputs:
    """Makes the arguments of a call."""

    file: Path
    device: str

    def __call__(self, seed: int, **problem: Value) -> tuple[Any, ...]:
        """Return the tensors and numbers of one seed, on the device."""
        get_inputs = getattr(load_part(self.file, (INPUTS,), problem), INPUTS)
        seed_generators(seed)
        inputs = get_inputs(**_wanted(get_inputs, problem))
        return tuple(_on_device(value, self.device) for value in inputs)


@dataclass(frozen=True)
class ModelCode:
    """A class of a file as the function of its inputs.

    Both models start from the same weights: the same seed, and the same order of parameters.
    """

    file: Path
    class_name: str
    task_file: Path
    weight_seed: int
    device: str
    backward: bool

    @property
    def finite_inputs_only(self) -> bool:
        """Whether infinity and NaN are no inputs: gradients have no agreed values there."""
        return self.backward

    def for_problem(self, problem: Mapping[str, Value]) -> Callable[..., Any]:
        """Return the model's call for one problem's sizes."""
        import torch

        arguments, named = self._init_inputs(problem)
        parts = (self.class_name,) if self.class_name == REFERENCE_CLASS else None
        module = load_part(self.file, parts, problem)

        seed_generators(self.weight_seed)
        model = getattr(module, self.class_name)(*arguments, **named)
        if isinstance(model, torch.nn.Module):
            model = model.to(self.device)
        if self.backward:
            return ForwardAndBackward(model)
        return Forward(model)

    def _init_inputs(self, problem: Mapping[str, Value]) -> tuple[list[Any], dict[str, Any]]:
        module = load_part(self.task_file, (INIT_INPUTS,), problem)
        get_init_inputs = getattr(module, INIT_INPUTS, None)
        if get_init_inputs is None:
            return [], {}
        seed_generators(self.weight_seed)
        inputs = get_init_inputs(**_wanted(get_init_inputs, problem))
        if isinstance(inputs, Mapping):
            return [], dict(inputs)
        return [_on_device(value, self.device) for value in inputs], {}


@dataclass
class Forward:
    """A model's output."""

    model: Any

    def __call__(self, *inputs: Any) -> Any:
        """Return the output, which is not recorded for gradients."""
        import torch

        with torch.no_grad():
            return self.model(*inputs)

    def state(self) -> dict[str, Any]:
        """Return copies of all parameters and buffers by name, on the host."""
        return _state_of(self.model)


@dataclass
class ForwardAndBackward:
    """A model's output, and the gradients of its inputs and parameters by name.

    The gradients of the output differ from call to call: constant ones would give constant
    gradients of the inputs of a linear model, which a candidate could keep.
    """

    model: Any
    _seeds: list[int] = field(default_factory=list)
    _layouts: list[Any] = field(default_factory=list)
    _drawn: list[list[Any]] = field(default_factory=list)

    def prepare(self, seeds: Sequence[int]) -> None:
        """Draw the gradients of the next calls, if the outputs of a call are known."""
        self._seeds = list(seeds)
        self._drawn = [_gradients(self._layouts, seed) for seed in seeds] if self._layouts else []

    def __call__(self, *inputs: Any) -> dict[str, Any]:
        """Return the output and all gradients."""
        import torch

        leaves = [
            x.detach().requires_grad_()
            if isinstance(x, torch.Tensor) and x.is_floating_point()
            else x
            for x in inputs
        ]
        output = self.model(*leaves)
        tensors = [t for t in _flat(output) if isinstance(t, torch.Tensor) and t.requires_grad]
        torch.autograd.backward(tensors, self._next_gradients(tensors))

        named = {f"gradient of input {i}": x.grad for i, x in enumerate(leaves) if _has_grad(x)}
        for name, parameter in getattr(self.model, "named_parameters", dict)():
            if _has_grad(parameter):
                named[f"gradient of {name}"] = parameter.grad
                parameter.grad = None
        return {"output": _detached(output), **named}

    def state(self) -> dict[str, Any]:
        """Return copies of all parameters and buffers by name, on the host."""
        return _state_of(self.model)

    def _next_gradients(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the gradients of a call's outputs."""
        layouts = [(tuple(t.shape), t.dtype, t.device) for t in tensors]
        seed = self._seeds.pop(0) if self._seeds else 0
        drawn = self._drawn.pop(0) if self._drawn else None
        if drawn is not None and layouts == self._layouts:
            return drawn
        self._layouts = layouts
        return _gradients(layouts, seed)


def _gradients(layouts: Sequence[Any], seed: int) -> list[Any]:
    """Draw normal numbers for tensors of some shapes, types and devices."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator).to(device=device, dtype=dtype)
        for shape, dtype, device in layouts
    ]


def _state_of(model: Any) -> dict[str, Any]:
    state = {}
    for name, parameter in getattr(model, "named_parameters", dict)():
        state[f"{PARAMETER} {name}"] = np.array(as_numpy(parameter))
    for name, buffer in getattr(model, "named_buffers", dict)():
        state[f"{BUFFER} {name}"] = np.array(as_numpy(buffer))
    return state


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


def _wanted(function: Callable[..., Any], problem: Mapping[str, Value]) -> dict[str, Value]:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: problem[name] for name in names if name in problem}


def _on_device(value: Any, device: str) -> Any:
    is_movable = type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "to")
    return value.to(device) if is_movable else value


def _has_grad(value: Any) -> bool:
    return getattr(value, "grad", None) is not None


def _flat(output: Any) -> list[Any]:
    if isinstance(output, Mapping):
        return [part for value in output.values() for part in _flat(value)]
    if isinstance(output, list | tuple):
        return [part for value in output for part in _flat(value)]
    return [output]


def _detached(output: Any) -> Any:
    if isinstance(output, Mapping):
        return {name: _detached(value) for name, value in output.items()}
    if isinstance(output, list | tuple):
        return [_detached(value) for value in output]
    return output.detach() if hasattr(output, "detach") else output
