"""``foretune inspect`` and ``warm-up``: compile Triton kernels without a GPU, tune them early."""

from collections.abc import Mapping
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


def inspect(
    context: typer.Context,
    kernel: str = typer.Argument(help="The kernel: FILE.py:NAME or MODULE:NAME."),
    arg: list[str] = typer.Option(
        [],
        help="x=fp16* (a pointer, multiple of 16; fp16*2 of 2), n=4096, n=i32 (any multiple of "
        "16); repeatable.",
    ),
    config: list[str] = typer.Option(
        [], help="BLOCK=128,num_warps=4 (repeatable). Default: those of its autotuner."
    ),
    target: str | None = typer.Option(None, help="sm_80, sm_90, sm_100, sm_120, gfx942, …"),
    all_gpus: bool = typer.Option(
        False,
        "--all-gpus",
        help="Compile nothing: foretell which configurations cannot run on which architecture.",
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
    if all_gpus:
        if target is not None or cache_dir is not None:
            raise UsageError("--all-gpus compiles nothing: drop --target and --cache-dir")
        _foretell(output, kernel, arg, config)
        return
    if target is None:
        raise UsageError("give --target sm_90, or --all-gpus")
    if cache_dir is not None:
        require_writable(cache_dir, "--cache-dir")
    outcomes = _compile(kernel, arg, config, target, time_limit, cache_dir)
    rows = [[_format_config(o.config), *_cells(o)] for o in outcomes if o.static]
    columns = ("config", "regs", "spill B", "shared B", "per SM, limit", "s")
    if rows:
        output.table(f"{kernel} for {target}", columns, rows)
        output.say("per SM: resident blocks, and what limits them")
    for outcome in outcomes:
        if not outcome.ok:
            output.say(f"{outcome.status}: {_format_config(outcome.config)}: {outcome.error}")
    built = sum(o.ok for o in outcomes)
    if cache_dir is not None:
        cached = f"{sum(o.cached for o in outcomes)} of them already cached"
        output.say(f"{cache_dir}: {built} of {len(outcomes)} configurations, {cached}")
    shown = {name for o in outcomes for name in o.static}
    output.result(
        {
            "kernel": kernel,
            "target": target,
            "cache_dir": cache_dir and str(cache_dir),
            "built": built,
            "failed": len(outcomes) - built,
            "configs": outcomes,
            "features": {name: what for name, what in FEATURES.items() if name in shown},
        }
    )
    if built < len(outcomes):
        raise typer.Exit(1)


def _foretell(output: Output, kernel: str, arg: list[str], config: list[str]) -> None:
    """Print which configurations cannot run on which architecture; exit with 1 if none can."""
    from foretune.collect.compiled.arguments import parse_argument
    from foretune.collect.compiled.compile_pool import load_kernel
    from foretune.collect.compiled.foretelling import foretell
    from foretune.collect.compiled.gpu_targets import TARGETS

    configs = [Configuration.parse(c) for c in config] or _autotuner_configs(kernel)
    arguments = dict(map(parse_argument, arg))
    reasons = foretell(load_kernel(kernel), arguments, configs, list(TARGETS.values()))

    rows = []
    without_any = []
    for name, of_target in reasons.items():
        failures = [reason for reason in of_target if reason]
        if len(failures) == len(configs):
            without_any.append(name)
        most_frequent = max(failures, key=failures.count, default="")
        rows.append([name, f"{len(configs) - len(failures)} of {len(configs)}", most_frequent])
    output.table(kernel, ("architecture", "may run", "why not the others, for example"), rows)
    if without_any:
        output.say(f"No configuration runs on {', '.join(without_any)}: add a smaller one")
    output.result(
        {
            "kernel": kernel,
            "without_any": without_any,
            "targets": {
                name: [
                    {"config": config, "reason": reason}
                    for config, reason in zip(configs, of_target, strict=True)
                ]
                for name, of_target in reasons.items()
            },
        }
    )
    if without_any:
        raise typer.Exit(1)


def _compile(
    kernel: str,
    arg: list[str],
    config: list[str],
    target: str,
    time_limit: float,
    cache_dir: Path | None,
) -> "list[CompileResult]":
    from foretune.collect.compiled.arguments import parse_argument
    from foretune.collect.compiled.compile_pool import compile_configs
    from foretune.collect.compiled.gpu_targets import get_target

    configs = [Configuration.parse(c) for c in config] or _autotuner_configs(kernel)
    arguments = dict(map(parse_argument, arg))
    outcomes: dict[int, CompileResult] = {}
    with progress_bar() as progress:
        progress.start("compiling", len(configs))
        for position, outcome in compile_configs(
            kernel,
            (),
            configs,
            get_target(target),
            kwargs=arguments,
            limit_s=options.require_positive(time_limit, "--time-limit"),
            cache_dir=cache_dir and str(cache_dir),
        ):
            outcomes[position] = outcome
            progress.advance(_format_config(outcome.config))
    return [outcomes[i] for i in range(len(configs))]


def _autotuner_configs(kernel: str) -> list[dict[str, Any]]:
    from foretune.collect.compiled.compile_pool import load_kernel

    layer: Any = load_kernel(kernel)
    while layer is not None:
        if hasattr(layer, "configs"):
            return [config.all_kwargs() for config in layer.configs]
        layer = getattr(layer, "fn", None)
    return [{}]


def _cells(outcome: "CompileResult") -> list[str]:
    static = outcome.static
    spilled = static.get("spill_store_bytes", 0) + static.get("spill_load_bytes", 0)
    spilled += 4 * static.get("spilled_registers", 0)
    per_sm = "–"
    if "ctas_per_sm" in static:
        limiter = next(n for n in static if n.startswith("limited_by_") and static[n])
        per_sm = f"{static['ctas_per_sm']:.0f}, {limiter.removeprefix('limited_by_')}"
    figures = (
        static.get("registers"),
        spilled if "registers" in static else None,
        static.get("shared_bytes"),
    )
    counts = ("–" if value is None else f"{value:.0f}" for value in figures)
    return [*counts, per_sm, f"{outcome.compile_s:.2f}"]


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
    from foretune.tune.triton.warm_up import warm_up as warm

    wanted = [c for c in read_calls(calls) if kernel in (None, c.kernel)]
    if not wanted:
        raise UsageError(f"{calls} holds no call{f' of {kernel}' if kernel else ''}")
    root = options.root_options(context)
    store, output, done = root.required_store, Output(root.as_json), []
    with progress_bar() as progress:
        progress.start("warm up", len(wanted))
        for warmed in warm(wanted, store):
            done.append(
                {
                    "kernel": warmed.call.kernel,
                    "arguments": warmed.call.text,
                    "config": warmed.config.all_kwargs(),
                    "time_ms": warmed.time_ms,
                    "measured": warmed.measured,
                }
            )
            progress.advance(warmed.call.kernel)
    rows = [
        [
            str(d["kernel"]).partition(":")[2],
            f"{d['time_ms']:.3g}",
            str(d["measured"]),
            format_config(d["config"]),
            str(d["arguments"]),
        ]
        for d in done
    ]
    columns = ("kernel", "ms", "measured", "configuration", "arguments")
    output.table(counted(len(done), "call"), columns, rows)
    output.result({"calls": done})
