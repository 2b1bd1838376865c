"""Options that several commands share, and their parsing."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

import typer

from foretune.device import Device, find_device
from foretune.errors import ProblemError, UnknownName, UsageError, require_known
from foretune.kernel import Kernel
from foretune.problem import Problem
from foretune.registry import get_kernel, load, registered
from foretune.values import counted

if TYPE_CHECKING:
    from foretune.collect.runner import Runner
    from foretune.collect.timing import Timing
    from foretune.models.predictor import Predictor
    from foretune.tune.job import SearchOptions

NO_STORE = "none"
RUNNERS = ("local", "ray")
GIB = 2**30
KERNEL_HELP = "A kernel's name ('foretune doctor' lists them), or FILE.py:NAME."
KERNEL = typer.Argument(
    "", help=KERNEL_HELP, autocompletion=lambda: list(registered("kernels")), show_default=False
)
PREDICTOR_HELP = "Predictor: a folder (also a campaign's), models:/NAME@ALIAS"
PREDICTOR = typer.Argument(help=f"{PREDICTOR_HELP}.")
DEVICE = typer.Option("cpu", help="cpu, cuda:0 or a device name.")
OBJECTIVE = typer.Option(
    "time",
    help="What to minimize: time, energy or edp (energy × delay).",
    autocompletion=lambda: ["time", "energy", "edp"],
)
MODEL = typer.Option(
    "xgboost",
    help="Kind of model: xgboost or random_forest.",
    autocompletion=lambda: list(registered("models")),
)
SEARCHER_HELP = "surrogate, policy, tpe, gp, cmaes, random or exhaustive"
SEARCHER = typer.Option(
    "surrogate", help=SEARCHER_HELP, autocompletion=lambda: list(registered("searchers"))
)
RUNNER = typer.Option("local", help="local (this device) or ray (all equal devices of a cluster).")
RAY_ADDRESS = typer.Option(
    None,
    envvar="RAY_ADDRESS",
    help="Address of the Ray cluster; auto: this machine's. Default: start one here.",
)


@dataclass(frozen=True)
class RootOptions:
    """Options of every command, accepted anywhere on the line."""

    as_json: bool = False
    given_seed: int | None = None
    store_name: str | None = None  # path or URL; ``none``: no store, None: the default one
    patience_s: float = 0.0  # seconds to wait for a quiet machine before a comparison

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        return self.given_seed or 0

    @property
    def store(self) -> str | Literal[False] | None:
        """The store in the form that Python functions take."""
        return False if self.store_name == NO_STORE else self.store_name

    @property
    def search(self) -> "SearchOptions":
        """The options of every search."""
        return {"seed": self.seed, "store": self.store, "patience_s": self.patience_s}

    @property
    def required_store(self) -> str | None:
        """The store, for commands that cannot work without one."""
        if self.store_name == NO_STORE:
            raise UsageError("this command needs the store: leave --store none out")
        return self.store_name


class Verification(TypedDict, total=False):
    """Options of a verification; those that are not given are left out."""

    verify_s: float
    verify_again: bool


def root_options(context: typer.Context) -> RootOptions:
    """Return the root's options of the command line that ``context`` belongs to."""
    root = context.find_root().obj
    return root if isinstance(root, RootOptions) else RootOptions()


def parse_budget(text: str) -> "SearchOptions":
    """Parse ``--budget``: ``10``, ``auto``, ``auto:0.03`` or ``60s``.

    With several, joined by commas, the search stops at the first.
    """
    message = f"--budget {text}: give a number of measurements, auto, auto:0.03 or 60s"
    budget: SearchOptions = {}
    for part in text.split(",") if text else ():
        if part.endswith("s"):
            seconds = _number(part.removesuffix("s"), message)
            budget["seconds"] = require_positive(seconds, "--budget", unit="s")
        elif part == "auto":
            budget.setdefault("budget", "auto")
        elif part.startswith("auto:"):
            budget.setdefault("budget", "auto")
            budget["regret"] = _number(part.removeprefix("auto:"), message)
        elif re.fullmatch(r"-?\d+", part):
            budget["budget"] = require_positive_int(int(part), "--budget")
        else:
            raise UsageError(message)
    return budget


def read_verification(context: typer.Context) -> Verification:
    """Return what a command's ``--verify-seconds`` and ``--verify-again`` say."""
    verification: Verification = {}
    seconds = context.params["verify_seconds"]
    if seconds is not None:
        verification["verify_s"] = require_positive(seconds, "--verify-seconds")
    if context.params["verify_again"]:
        verification["verify_again"] = True
    return verification


def _number(text: str, message: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(message) from None


def read_kernel(name: str) -> Kernel:
    """Return the kernel given as an argument."""
    if not name:
        raise UsageError("give a kernel: a name ('foretune doctor' lists them) or FILE.py:NAME")
    return get_kernel(name)


def read_problems(kernel: Kernel, texts: list[str], seed: int = 0) -> list[Problem]:
    """Parse ``--problems``: each text is ``M=…,N=…;M=…,N=…`` or a number of random problems."""
    problems: list[Problem] = []
    for text in texts:
        if text.strip().isdigit():
            count = int(text)
            if count < 1:
                raise UsageError("--problems 0 leaves nothing to run: give at least 1")
            problems += kernel.training_problems(count, seed)
        else:
            problems += [read_problem(kernel, part) for part in text.split(";")]
    return list(dict.fromkeys(problems))


def read_problem(kernel: Kernel, text: str) -> Problem:
    """Parse one problem of a kernel, and check that it fits in memory."""
    problem = kernel.problem(Problem.parse(text))
    check_memory(kernel, problem)
    return problem


def check_memory(kernel: Kernel, problem: Problem) -> None:
    """Raise ProblemError if a CPU kernel's problem does not fit in this machine's free memory."""
    import psutil

    if kernel.device_kind == "gpu":
        return
    needed = kernel.memory_bytes(problem)
    free = psutil.virtual_memory().available
    if needed > free:
        raise ProblemError(
            f"{problem} needs about {needed / GIB:.1f} GiB, {free / GIB:.1f} GiB are free: "
            "use a smaller problem"
        )


def read_local_device(name: str) -> Device:
    """Return the device of this machine named ``name``."""
    from foretune.collect.devices import local_device

    return local_device(name)


def make_runner(context: typer.Context, kernel: Kernel, timing: "Timing | None" = None) -> "Runner":
    """Return the runner for a command's options ``--runner``, ``--ray-address``, ``--device``."""
    runner = context.params["runner"]
    ray_address = context.params["ray_address"]
    device = context.params["device"]
    require_known("runner", runner, RUNNERS)
    if runner == "local":
        from foretune.collect.runner import IsolatedRunner

        if ray_address and not os.environ.get("RAY_ADDRESS"):
            raise UsageError("--ray-address needs --runner ray: give both")
        return IsolatedRunner(read_local_device(device), timing)

    try:
        hardware: Device | str = read_local_device(device)
    except UnknownName:  # the cluster may have it
        hardware = device
    print("starting workers on Ray …", file=sys.stderr, flush=True)
    # Loaded by name: who has no cluster does not need Ray.
    make_ray_runner = load("runners", runner)
    made = make_ray_runner(kernel, hardware, timing, address=ray_address)
    # A cluster that lacks nodes would only be slow.
    devices = counted(made.devices, "device")
    print(f"the cluster has {devices}", file=sys.stderr, flush=True)
    return made


def device_for(predictor: "Predictor", name: str | None) -> Device:
    """Return a training device of the predictor, else a device of this machine or a known one."""
    try:
        return predictor.device(name)
    except UnknownName:
        name = str(name)
        is_local = name == "cpu" or ":" in name
        return read_local_device(name) if is_local else find_device(name)


def reject_options(context: typer.Context, names: Sequence[str], message: str) -> None:
    """Raise UsageError if any of the command's parameters ``names`` was given on the command line.

    ``message`` starts the error, like "a kernel does not take".
    """
    flag_of_name = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name in names:
        if is_given(context, name):
            raise UsageError(f"{message} {name}: leave {flag_of_name[name]} out")


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether the command's parameter ``name`` was given on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def require_positive_int(value: int, option: str) -> int:
    """Return ``value``, or raise UsageError if it is below 1."""
    if value < 1:
        raise UsageError(f"{option} {value} leaves nothing to do: give at least 1")
    return value


def require_positive(value: float, option: str, unit: str = "") -> float:
    """Return ``value``, or raise UsageError unless it is above 0."""
    if not value > 0:
        raise UsageError(f"{option} {value:g}{unit} leaves no time: give more than 0")
    return value


def parse_key_values(
    texts: Sequence[str], option: str, form: str = "COLUMN=VALUE", known: Sequence[str] = ()
) -> dict[str, str]:
    """Parse texts of a ``form``; each key may occur once, and must be in ``known`` if given."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{option} {text!r} is not of the form {form}")
        if name in values:
            raise UsageError(f"{option} {name} is given twice: give it once")
        values[name] = value
    require_known(f"key of {option}", values, known or values)
    return values


def parse_numbers(texts: Sequence[str], option: str, known: Sequence[str]) -> Mapping[str, float]:
    """Parse texts ``KEY=NUMBER`` whose keys are among ``known``."""
    texts_by_key = parse_key_values(texts, option, form="KEY=VALUE", known=known)
    return {
        key: _number(text, f"{option} {key}={text}: give a number")
        for key, text in texts_by_key.items()
    }
