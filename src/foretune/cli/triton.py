"""``foretune inspect`` and ``warm-up``: compile Triton kernels without a GPU, tune them early."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.output import Output, format_config
from foretune.errors import UsageError
from foretune.space import Configuration
from foretune.support.console import progress_bar
from foretune.support.files import require_writable
from foretune.support.lazy import require
from foretune.tune.doors import patch_server
from foretune.values import counted

if TYPE_CHECKING:
    from foretune.collect.compiled.compile_result import CompileResult
MIN_PROPOSED = 3
MAX_PROPOSED = 16
"""Bounds of ``--propose``."""
LIMIT_PREFIX = "limited_by_"
"""Begins the features that say what limits the resident blocks."""


def inspect(
    context: typer.Context,
    kernel: str = typer.Argument(help="The kernel: FILE.py:NAME or MODULE:NAME."),
    arg: list[str] = typer.Option(
        [],
        help="x=fp16* (a pointer, multiple of 16; fp16*2 of 2), x=fp16[M,K] (a tensor), n=4096, "
        "n=i32 (any multiple of 16); repeatable.",
    ),
    config: list[str] = typer.Option(
        [], help="BLOCK=128,num_warps=4 (repeatable). Default: those of its autotuner."
    ),
    target: str | None = typer.Option(None, help="sm_80, sm_90, sm_100, sm_120, gfx942, …"),
    all_gpus: bool = typer.Option(
        False,
        "--all-gpus",
        help="Compile nothing: predict which configurations cannot run on which architecture.",
    ),
    propose: int | None = typer.Option(
        None,
        help="With --all-gpus: also propose so many configurations of a product for each "
        "architecture, from 3 to 16.",
    ),
    problem: list[str] = typer.Option(
        [], help="With --propose: sizes of a problem, M=512,N=512,K=4096; repeatable."
    ),
    cache_dir: Path | None = typer.Option(
        None,
        help="Keep the compiled configurations in this Triton cache. Launches with the same Triton "
        "and TRITON_CACHE_DIR set to it, at the same path, need not compile.",
    ),
    time_limit: float = typer.Option(60.0, help="Maximum seconds to compile a configuration."),
) -> None:
    """Show registers, spills, shared memory and occupancy of compiled configurations.

    No GPU is needed, and nothing runs. Exits with 1 if a configuration fails; with --all-gpus, if
    an architecture has no configuration that may run.
    """
    from foretune.collect.compiled.static_features import FEATURES

    output = Output(options.root_options(context).as_json)
    _check_inspected_gpus(target, all_gpus=all_gpus, cache_dir=cache_dir)
    _check_proposals(propose, problem, all_gpus=all_gpus)
    if all_gpus:
        _foretell(output, kernel, arg, config, n_proposed=propose, problem_texts=problem)
        return
    assert target is not None
    if cache_dir is not None:
        require_writable(cache_dir, "--cache-dir")
    outcomes = _compile(
        kernel, arg, config, target=target, time_limit=time_limit, cache_dir=cache_dir
    )

    rows = [[_format_config(o.config), *_cells(o)] for o in outcomes if o.static]
    if rows:
        columns = ("config", "regs", "spill B", "shared B", "per SM, limit", "s")
        output.table(f"{kernel} for {target}", columns, rows)
        output.say("per SM: resident blocks, and what limits them")
    for outcome in outcomes:
        if not outcome.ok:
            output.say(f"{outcome.status}: {_format_config(outcome.config)}: {outcome.error}")
    n_built = sum(outcome.ok for outcome in outcomes)
    if cache_dir is not None:
        n_cached = sum(outcome.cached for outcome in outcomes)
        output.say(
            f"{cache_dir}: {n_built} of {len(outcomes)} configurations, "
            f"{n_cached} of them already cached"
        )

    shown_features = set().union(*(outcome.static for outcome in outcomes))
    output.result(
        {
            "kernel": kernel,
            "target": target,
            "cache_dir": cache_dir and str(cache_dir),
            "built": n_built,
            "failed": len(outcomes) - n_built,
            "configs": outcomes,
            "features": {
                name: meaning for name, meaning in FEATURES.items() if name in shown_features
            },
        }
    )
    if n_built < len(outcomes):
        raise typer.Exit(1)


def _check_inspected_gpus(target: str | None, *, all_gpus: bool, cache_dir: Path | None) -> None:
    """Raise UsageError unless either one architecture is given, or all are."""
    if all_gpus and (target is not None or cache_dir is not None):
        raise UsageError("--all-gpus compiles nothing: drop --target and --cache-dir")
    if target is None and not all_gpus:
        raise UsageError("give --target sm_90, or --all-gpus")


def _check_proposals(propose: int | None, problem: list[str], *, all_gpus: bool) -> None:
    """Raise UsageError if the options of proposals do not fit."""
    if propose is None:
        if problem:
            raise UsageError("--problem is for --propose: give sizes with --arg")
        return
    if not all_gpus:
        raise UsageError("--propose needs --all-gpus")
    if not MIN_PROPOSED <= propose <= MAX_PROPOSED:
        raise UsageError(f"--propose {propose}: give {MIN_PROPOSED} to {MAX_PROPOSED}")


def _foretell(
    output: Output,
    kernel: str,
    arg: list[str],
    config: list[str],
    *,
    n_proposed: int | None,
    problem_texts: list[str],
) -> None:
    """Print which configurations cannot run on which architecture; exit with 1 if none can."""
    from foretune.collect.compiled.compile_pool import load_kernel
    from foretune.collect.compiled.compile_result import shown_configuration
    from foretune.collect.compiled.foretelling import foretell
    from foretune.collect.compiled.gpu_targets import TARGETS

    configs = _given_configs(config) or _autotuner_configs(kernel)
    problems = _problems(kernel, arg, problem_texts)
    arguments = problems[0]
    reasons_of_target = foretell(load_kernel(kernel), arguments, configs, list(TARGETS.values()))

    rows = []
    targets_without_any = []
    for target, reasons in reasons_of_target.items():
        failures = [reason for reason in reasons if reason]
        if len(failures) == len(configs):
            targets_without_any.append(target)
        may_run = f"{len(configs) - len(failures)} of {len(configs)}"
        most_frequent = max(failures, key=failures.count, default="")
        rows.append([target, may_run, most_frequent])
    output.table(kernel, ("architecture", "may run", "why not the others, for example"), rows)
    if any("maxnreg" in config for config in configs):
        output.say("Registers are not foretold: --target shows whether maxnreg suffices")
    if targets_without_any:
        names = ", ".join(targets_without_any)
        output.say(f"No configuration runs on {names}: add a smaller one")

    proposed = {}
    if n_proposed is not None:
        proposed = _propose(output, kernel, problems, configs, n_proposed)

    configs_of_target = {}
    for target, reasons in reasons_of_target.items():
        configs_of_target[target] = [
            {"config": shown_configuration(config), "reason": reason}
            for config, reason in zip(configs, reasons, strict=True)
        ]
    output.result(
        {
            "kernel": kernel,
            "without_any": targets_without_any,
            "targets": configs_of_target,
            "proposed": proposed,
        }
    )
    if targets_without_any:
        raise typer.Exit(1)


def _problems(kernel: str, arg: list[str], problem_texts: list[str]) -> list[dict[str, Any]]:
    """Return the arguments of each problem; without problems, those that were given alone."""
    from foretune.collect.compiled.compile_pool import load_kernel
    from foretune.tune.triton.parameters import undecorated_kernel

    names = undecorated_kernel(load_kernel(kernel)).arg_names
    problems = []
    for text in problem_texts or [""]:
        sizes = _sizes(text)
        # A size that is not used would be another problem than the user means.
        unused = [name for name in sizes if name not in names and not _is_named(name, arg)]
        if unused:
            raise UsageError(
                f"--problem {text}: {unused[0]} is no argument of the kernel, and no size in --arg"
            )
        own = {name: size for name, size in sizes.items() if name in names}
        arguments = _arguments(arg, sizes)
        twice = [name for name in own if name in arguments]
        if twice:
            raise UsageError(f"{twice[0]} is given by --problem and by --arg: drop one")
        problems.append({**own, **arguments})
    return problems


def _arguments(texts: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the arguments of ``--arg`` by name; UsageError if one is given twice."""
    from foretune.collect.compiled.arguments import parse_argument

    arguments: dict[str, Any] = {}
    for text in texts:
        name, value = parse_argument(text, sizes)
        if name in arguments:
            raise UsageError(f"--arg {name} is given twice: drop one")
        arguments[name] = value
    return arguments


def _sizes(text: str) -> dict[str, int]:
    """Return the sizes of a problem's text; raise UsageError for other values."""
    sizes = {}
    for name, value in Configuration.parse(text).items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"--problem {text}: {name}={value} is no size: give a whole number")
        sizes[name] = value
    return sizes


def _is_named(size: str, arg: list[str]) -> bool:
    """Whether a value of an ``--arg`` names a size."""
    values = (text.partition("=")[2] for text in arg)
    return any(size in re.findall(r"\w+", value) for value in values)


def _propose(
    output: Output,
    kernel: str,
    problems: list[dict[str, Any]],
    listed: Sequence[Mapping[str, Any]],
    count: int,
) -> dict[str, list[Configuration]]:
    """Print and return the proposed configurations of each architecture."""
    from foretune.collect.compiled.compile_pool import load_kernel
    from foretune.device import find_device
    from foretune.tune.triton.proposals import CLASSES, propose

    function = load_kernel(kernel)
    authors = [Configuration(config) for config in listed]
    proposed = {
        target: propose(function, problems, authors, find_device(name), count=count)
        for target, name in CLASSES.items()
    }
    rows = [
        [target, _format_config(config)]
        for target, configs in proposed.items()
        for config in configs
    ]
    without_any = [target for target, configs in proposed.items() if not configs]
    if without_any:
        output.say(f"No proposal runs on {', '.join(without_any)}")
    output.table("Proposed, the most useful first", ("architecture", "configuration"), rows)
    output.say(
        "Nothing was measured. On recorded times, sm_80's proposals beat authors' lists, sm_90's "
        "were no better than random; others are unchecked. Let foretune.autotune choose among them."
    )
    return proposed


def _compile(
    kernel: str,
    arg: list[str],
    config: list[str],
    *,
    target: str,
    time_limit: float,
    cache_dir: Path | None,
) -> "list[CompileResult]":
    """Compile every configuration, and return what came out, in their order."""
    from foretune.collect.compiled.compile_pool import compile_configs
    from foretune.collect.compiled.gpu_targets import get_target

    configs = _given_configs(config) or _autotuner_configs(kernel)
    outcomes: dict[int, CompileResult] = {}
    with progress_bar() as progress:
        progress.start("compiling", len(configs))
        compiled = compile_configs(
            kernel,
            (),
            configs,
            get_target(target),
            kwargs=_arguments(arg, {}),
            limit_s=options.require_positive(time_limit, "--time-limit"),
            cache_dir=cache_dir and str(cache_dir),
        )
        for position, outcome in compiled:  # as they finish
            outcomes[position] = outcome
            progress.advance(_format_config(outcome.config))
    return [outcomes[position] for position in range(len(configs))]


def _given_configs(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the configurations of the command line; None is Python's, as in a kernel's list."""
    parsed = [Configuration.parse(text) for text in texts]
    return [
        {name: None if value == "None" else value for name, value in config.items()}
        for config in parsed
    ]


def _autotuner_configs(kernel: str) -> list[dict[str, Any]]:
    """Return the configurations of the kernel's autotuner, which decorators may surround."""
    from foretune.collect.compiled.compile_pool import load_kernel

    layer: Any = load_kernel(kernel)
    while layer is not None:
        if hasattr(layer, "configs"):
            return [config.all_kwargs() for config in layer.configs]
        layer = getattr(layer, "fn", None)
    return [{}]


def _cells(outcome: "CompileResult") -> list[str]:
    """Return a compiled configuration's cells; a dash for what is unknown."""
    static = outcome.static
    registers = spilled_bytes = shared_bytes = blocks = "–"
    if "registers" in static:
        registers = f"{static['registers']:.0f}"
        # NVIDIA's compiler counts bytes, AMD's registers of four bytes.
        stores_and_loads = static.get("spill_store_bytes", 0) + static.get("spill_load_bytes", 0)
        spilled_bytes = f"{stores_and_loads + 4 * static.get('spilled_registers', 0):.0f}"
    if "shared_bytes" in static:
        shared_bytes = f"{static['shared_bytes']:.0f}"
    if "ctas_per_sm" in static:
        limits = [name for name in static if name.startswith(LIMIT_PREFIX) and static[name]]
        blocks = f"{static['ctas_per_sm']:.0f}, {limits[0].removeprefix(LIMIT_PREFIX)}"
    return [registers, spilled_bytes, shared_bytes, blocks, f"{outcome.compile_s:.2f}"]


def _format_config(config: Mapping[str, Any]) -> str:
    return format_config(config) or "default"


def warm_up(
    context: typer.Context,
    calls: Path = typer.Argument(help="File of calls, written by FORETUNE_RECORD_CALLS=FILE."),
    kernel: str = typer.Option(None, help="Only calls of this kernel: MODULE:NAME."),
) -> None:
    """Tune recorded calls of Triton kernels ahead of use.

    The program then finds the choices in the store, and does not wait for tuning. For a server's
    kernels, which a library decorates, set FORETUNE_TRITON=4 (four measurements per call).
    """
    require("triton", "gpu", "warming up Triton kernels")
    patch_server()
    from foretune.tune.triton.call_recorder import read_calls
    from foretune.tune.triton.warm_up import warm_up as warm_up_calls

    chosen = [call for call in read_calls(calls) if kernel in (None, call.kernel)]
    if not chosen:
        of_kernel = f" of {kernel}" if kernel else ""
        raise UsageError(f"{calls} holds no call{of_kernel}")
    root = options.root_options(context)
    output = Output(root.as_json)
    entries = []
    rows = []
    with progress_bar() as progress:
        progress.start("warm up", len(chosen))
        for warmed in warm_up_calls(chosen, root.required_store):
            config = warmed.config.all_kwargs()
            entries.append(
                {
                    "kernel": warmed.call.kernel,
                    "arguments": warmed.call.text,
                    "config": config,
                    "time_ms": warmed.time_ms,
                    "measured": warmed.measured,
                }
            )
            _, _, name = warmed.call.kernel.partition(":")
            rows.append(
                [
                    name,
                    f"{warmed.time_ms:.3g}",
                    str(warmed.measured),
                    format_config(config),
                    warmed.call.text,
                ]
            )
            progress.advance(warmed.call.kernel)
    columns = ("kernel", "ms", "measured", "configuration", "arguments")
    output.table(counted(len(entries), "call"), columns, rows)
    output.result({"calls": entries})
