"""Options that several commands share, and what their text means."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from foretune.errors import ProblemError, UnknownName, UsageError
from foretune.objective import Objective
from foretune.problem import Problem

if TYPE_CHECKING:
    from foretune.collect import Runner, Timing
    from foretune.device import Device
    from foretune.kernel import Kernel
    from foretune.models import Predictor


def registered_completion(group: str) -> Callable[[str], list[str]]:
    """Return what completes the names of a group of the registry in a shell."""

    def complete(incomplete: str) -> list[str]:
        from foretune.registry import registered

        return [name for name in registered(group) if name.startswith(incomplete)]

    return complete


def _choice_completion(*names: str) -> Callable[[str], list[str]]:
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


KERNEL = typer.Argument(
    help="Name of a kernel ('foretune doctor' lists them), or your own: FILE.py:NAME.",
    autocompletion=registered_completion("kernels"),
)
ONLY_KERNEL = typer.Option(None, help="Use only this kernel, if the files hold several.")
PREDICTOR_HELP = "Predictor: a folder (also a campaign's), models:/NAME@ALIAS or runs:/ID"
PREDICTOR_OPTION = typer.Option(
    "auto", "--predictor", help=f"{PREDICTOR_HELP}; auto: the shipped one; none."
)
PREDICTOR = typer.Argument(help=f"{PREDICTOR_HELP}.")
RUNS = typer.Argument(help="Run tables (Parquet, or CSV with any columns).")
MAP = typer.Option(
    [], "--map", help="Column of a CSV file: 'time_ms=latency_us*0.001' (repeatable)."
)
DEVICE = typer.Option("cpu", "--device", help="cpu, cuda:0 or a device name.")
TRAINED_DEVICE = typer.Option(
    None, "--device", help="cpu, cuda:0 or a name. Default: the device of the training data."
)
JSON = typer.Option(
    False, "--json", help="Print one JSON object on stdout, everything else on stderr."
)
OBJECTIVE = typer.Option(
    "time",
    "--objective",
    help="What to minimize: time, energy or edp (energy × delay).",
    autocompletion=_choice_completion("time", "energy", "edp"),
)
MODEL = typer.Option(
    "xgboost",
    "--model",
    help="Kind of model: xgboost, random_forest or ensemble.",
    autocompletion=registered_completion("models"),
)
SEARCHER_HELP = (
    "surrogate, transfer, policy, tpe, gp, cmaes, random or exhaustive"
)
SEARCHER = typer.Option(
    "surrogate", "--searcher", help=SEARCHER_HELP, autocompletion=registered_completion("searchers")
)
_VALIDATE_HELP = "Validation: none, quick (hold out a fifth, once) or full (every fold)."
VALIDATE = typer.Option(
    "quick",
    "--validate",
    help=_VALIDATE_HELP,
    autocompletion=_choice_completion("none", "quick", "full"),
)
VALIDATE_FULL = typer.Option(
    "full",
    "--validate",
    help=_VALIDATE_HELP,
    autocompletion=_choice_completion("none", "quick", "full"),
)
SEED = typer.Option(0, "--seed", min=0, help="Seed of everything random.")
STORE = typer.Option(
    None,
    "--store",
    help="Store: path or database URL. Default: $FORETUNE_STORE, else your cache folder.",
)
NO_STORE = typer.Option(
    False, "--no-store", help="Do not read or write the store; measure everything."
)
RUNNER = typer.Option(
    "local", "--runner", help="local (this device) or ray (all equal devices of a cluster)."
)
RAY_ADDRESS = typer.Option(
    None, "--ray-address", envvar="RAY_ADDRESS",
    help="Address of the Ray cluster; auto: this machine's. Default: start one here.",
)  # fmt: skip
REGRET = typer.Option(
    None, "--regret", help="Stop when the expected regret is below this. Default with auto: 0.03."
)
SECONDS = typer.Option(
    None,
    "--seconds",
    help="Search for so many seconds, builds included; --budget is optional then.",
)
WAIT_QUIET = typer.Option(
    0.0,
    "--wait-quiet",
    min=0,
    help="Before comparing, wait up to this many seconds until the machine is quiet.",
)


def read_objective(text: str) -> Objective:
    """Return the objective called ``text``.

    Raises:
        UnknownName: there is none.
    """
    known = [objective.value for objective in Objective]
    if text not in known:
        raise UnknownName("objective", text, known)
    return Objective(text)


def read_problems(kernel: "Kernel", texts: list[str], seed: int = 0) -> list[Problem]:
    """Return the problems meant by ``texts``: each ``M=…,N=…;M=…,N=…`` or a number of drawn ones.

    Raises:
        UsageError: a text cannot be read, or names what the kernel does not have.
    """
    problems: dict[Problem, None] = {}
    for text in texts:
        if text.strip().isdigit():
            if int(text) < 1:
                raise UsageError("--problems 0 leaves nothing to run: give at least 1")
            problems.update(dict.fromkeys(kernel.training_problems(int(text), seed)))
            continue
        for part in text.split(";"):
            problem = kernel.problem(Problem.parse(part))
            check_memory(kernel, problem)
            problems.setdefault(problem)
    return list(problems)


def read_problem(kernel: "Kernel", text: str) -> Problem:
    """Return the one problem meant by ``text``.

    Raises:
        UsageError: it cannot be read, or is none of this kernel's.
    """
    problem = kernel.problem(Problem.parse(text))
    check_memory(kernel, problem)
    return problem


def check_memory(kernel: "Kernel", problem: Problem) -> None:
    """Do nothing if ``problem`` fits this machine's memory, or is for a device with its own.

    Raises:
        ProblemError: it does not.
    """
    import psutil

    if kernel.device_kind == "gpu":
        return
    needed, free = kernel.memory_bytes(problem), psutil.virtual_memory().available
    if needed > free:
        raise ProblemError(
            f"{problem} needs about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free: "
            "take a smaller problem"
        )


def read_local_device(name: str) -> "Device":
    """Return the device of this machine that ``name`` means.

    Raises:
        UnknownName: there is none.
    """
    from foretune.collect import local_device

    return local_device(name)


def make_runner(
    runner: str,
    ray_address: str | None,
    kernel: "Kernel",
    device: str,
    timing: "Timing | None" = None,
    limit_s: float = 30.0,
) -> "Runner":
    """Return the runner that ``--runner`` means, for devices called ``device``.

    Raises:
        UnknownName: there is no such runner or device.
        ForetuneError: there is no cluster to run on.
    """
    if runner not in ("local", "ray"):
        raise UnknownName("runner", runner, ("local", "ray"))
    if runner == "local":
        from foretune.collect import IsolatedRunner

        if ray_address and not os.environ.get("RAY_ADDRESS"):
            raise UsageError("--ray-address is of --runner ray: give both")
        return IsolatedRunner(read_local_device(device), timing, limit_s)
    from foretune.collect import RayRunner

    try:
        hardware: Device | str = read_local_device(device)
    except UnknownName:  # the cluster may have it
        hardware = device
    print("starting workers on Ray …", file=sys.stderr, flush=True)
    return RayRunner(kernel, hardware, timing, limit_s, address=ray_address)


def read_any_device(name: str) -> "Device":
    """Return the device of this machine, or the known one, that ``name`` means.

    Raises:
        UnknownName: there is none.
    """
    from foretune.device import find_device

    return read_local_device(name) if name == "cpu" or ":" in name else find_device(name)


def device_for(predictor: "Predictor", name: str | None) -> "Device":
    """Return the device that ``name`` means to ``predictor``: one it knows, else `read_any_device`.

    Raises:
        PredictorError: there is no name, and there are runs of several devices.
        UnknownName: there is no such device.
    """
    try:
        return predictor.device(name)
    except UnknownName:
        return read_any_device(str(name))


def reject_options(context: typer.Context, names: tuple[str, ...], message: str) -> None:
    """Check that none of the named options was typed.

    Raises:
        UsageError: one was; the message says ``message`` not.
    """
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{message} {name}: leave {flags[name]} out")


def read_store(store: str | None, no_store: bool) -> str | Literal[False] | None:
    """Return what ``--store`` and ``--no-store`` mean; None is the user's own.

    Raises:
        UsageError: both were given.
    """
    if store and no_store:
        raise UsageError("--store and --no-store exclude each other: give one of them")
    return False if no_store else store


def read_budget(text: str) -> int | Literal["auto"]:
    """Return what ``--budget`` means.

    Raises:
        UsageError: it is neither a number nor ``auto``, or leaves nothing to do.
    """
    if text == "auto":
        return "auto"
    if not text.lstrip("-").isdigit():
        raise UsageError(f"--budget {text}: give a number of measurements, or auto")
    return require_positive_int(int(text), "--budget")


def require_positive_int(value: int, option: str) -> int:
    """Return ``value`` if it is positive.

    Raises:
        UsageError: it is not.
    """
    if value < 1:
        raise UsageError(f"{option} {value} leaves nothing to do: give at least 1")
    return value


def require_positive(value: float, option: str) -> float:
    """Return ``value`` if it is above zero.

    Raises:
        UsageError: it is not.
    """
    if not value > 0:
        raise UsageError(f"{option} {value:g} leaves no time: give more than 0")
    return value


def parse_key_values(texts: Sequence[str], option: str) -> dict[str, str]:
    """Return column -> value of texts ``COLUMN=VALUE``.

    Raises:
        UsageError: one is of another form, or given twice; ``option`` is what the message calls it.
    """
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UsageError(f"{option} {text!r} is not of the form COLUMN=VALUE")
        if name.strip() in values:
            raise UsageError(f"{option} {name.strip()} is given twice: give it once")
        values[name.strip()] = value.strip()
    return values


def enable_cwd_imports() -> None:
    """Let modules in the current folder be imported, as Python itself would."""
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
