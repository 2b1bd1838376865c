"""Which form a task's folder has."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from foretune.device import Device
from foretune.problem import Problem
from foretune.tune.tasks.flashinfer_trace import find_trace, trace_task
from foretune.tune.tasks.functions import functions_task, has_functions
from foretune.tune.tasks.models import find_models, models_task
from foretune.tune.tasks.task import Task, TaskError

FORMS = (
    "reference.py and candidate.py, Python files with Model and ModelNew, or definitions and "
    "solutions of FlashInfer Trace"
)


@contextmanager
def read_task(
    folder: Path,
    problems: Sequence[Problem] = (),
    *,
    device: Device | None = None,
    solution: str = "",
    backward: bool = False,
) -> Iterator[Task]:
    """Read a task; its code can be loaded until the context ends.

    Args:
        folder: the folder of one task.
        problems: sizes; by default, those that the task has.
        device: where tensors are made; by default the CPU.
        solution: the name of the solution, if there are several.
        backward: also judge the gradients; for models only.

    Raises:
        TaskError: the folder has no task, or it is not clear which.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise TaskError(f"there is no folder {folder}: give a folder or FILE.py:NAME")
    torch_device = "cuda" if device is not None and device.kind == "gpu" else "cpu"
    models = find_models(folder, sorted(folder.glob("*.py")))
    trace = None if models else find_trace(folder, solution)
    if solution and trace is None:
        raise TaskError(f"{folder} has no solutions: --solution is for FlashInfer Trace only")
    if backward and models is None:
        raise TaskError(f"{folder} has no models: --backward is for Model and ModelNew only")

    if models is not None:
        yield models_task(*models, problems, torch_device, backward)
    elif trace is not None:
        with TemporaryDirectory(prefix="foretune-task-") as sources:
            yield trace_task(folder, *trace, problems, torch_device, Path(sources))
    elif has_functions(folder):
        yield functions_task(folder, problems)
    else:
        raise TaskError(f"{folder} has no task: give a folder with {FORMS}")
