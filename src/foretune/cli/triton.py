"""``foretune inspect`` and ``foretune precompile``: Triton kernels compiled without a GPU."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.console import progress_bar
from foretune.errors import OutputError, UsageError

if TYPE_CHECKING:
    from foretune.collect.compiled import CompileResult

KERNEL = typer.Argument(help="The kernel: MODULE:NAME; the current folder is searched, too.")
ARG = typer.Option(
    [],
    "--arg",
    help="x=fp16* (a pointer, multiple of 16; fp16*2 of 2), n=4096, n=i32 (any multiple of 16); "
    "repeatable.",
)
CONFIG = typer.Option(
    [], "--config", help="BLOCK=128,num_warps=4 (repeatable). Default: those of its autotuner."
)
TARGET = typer.Option(..., "--target", help="sm_80, sm_90, sm_100, sm_120, gfx942, …")
JOBS = typer.Option(0, "--jobs", help="Parallel processes; 0: one per core.")
TIME_LIMIT = typer.Option(60.0, "--time-limit", help="Most seconds to compile a configuration.")
_MATRIX_UNITS = {0: "none", 2: "mma", 3: "wgmma", 5: "tcgen05"}


def inspect(
    kernel: str = KERNEL,
    arg: list[str] = ARG,
    config: list[str] = CONFIG,
    target: str = TARGET,
    ttgir: bool = typer.Option(
        False, "--ttgir", help="Only the first stages: fast, but without registers."
    ),
    jobs: int = JOBS,
    time_limit: float = TIME_LIMIT,
    as_json: bool = options.JSON,
) -> None:
    """Show registers, spills, shared memory and occupancy of compiled configurations.

    No GPU is needed, and nothing runs. Exits with 1 if a configuration fails.
    """
    from foretune.collect.compiled import FEATURES

    output = Output(as_json)
    outcomes = _compile(
        kernel, arg, config, target, jobs, time_limit, "ttgir" if ttgir else "full", ""
    )
    rows = [[_format_config(o.config), *_cells(o)] for o in outcomes if o.static]
    columns = ("config", "regs", "spill B", "shared B", "per SM, limit", "deep", "unit", "B", "s")
    if rows:
        output.table(f"{kernel} for {target}", columns, rows)
        output.say("per SM: resident blocks; deep: pipeline; B: bytes per access to global memory")
    _say_failures(output, outcomes)
    shown = {name for o in outcomes for name in o.static}
    output.result(
        {
            "kernel": kernel,
            "target": target,
            "configs": outcomes,
            "features": {name: what for name, what in FEATURES.items() if name in shown},
        }
    )
    _exit_if_any_failed(outcomes)


def precompile(
    kernel: str = KERNEL,
    arg: list[str] = ARG,
    config: list[str] = CONFIG,
    target: str = TARGET,
    cache_dir: Path = typer.Option(..., "--cache-dir", help="Triton's cache (TRITON_CACHE_DIR)."),
    jobs: int = JOBS,
    time_limit: float = TIME_LIMIT,
    as_json: bool = options.JSON,
) -> None:
    """Compile configurations into a Triton cache, so that launches elsewhere need not.

    Launch with the same Triton and TRITON_CACHE_DIR set to the folder, at the same path.
    Exits with 1 if a configuration fails.
    """
    output = Output(as_json)
    _check_writable(cache_dir)
    outcomes = _compile(kernel, arg, config, target, jobs, time_limit, "full", str(cache_dir))
    built = sum(o.ok for o in outcomes)
    seconds = sum(o.compile_s for o in outcomes if o.ok)
    output.say(
        f"{cache_dir}: {built} of {len(outcomes)} configurations of {kernel} for {target}, "
        f"{sum(o.cached for o in outcomes)} of them were there; {seconds:.1f} s of compilation"
    )
    _say_failures(output, outcomes)
    output.result(
        {
            "kernel": kernel,
            "target": target,
            "cache_dir": str(cache_dir),
            "built": built,
            "failed": len(outcomes) - built,
            "configs": outcomes,
        }
    )
    _exit_if_any_failed(outcomes)


def _check_writable(folder: Path) -> None:
    """Raise OutputError before minutes are spent on what cannot be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        raise OutputError(f"cannot write --cache-dir {folder}: {e.strerror or e}") from e


def _exit_if_any_failed(outcomes: "list[CompileResult]") -> None:
    if not all(o.ok for o in outcomes):
        raise typer.Exit(1)


def _compile(
    kernel: str, arg: list[str], config: list[str], target: str, jobs: int, time_limit: float,
    tier: str, cache_dir: str,
) -> "list[CompileResult]":  # fmt: skip
    from foretune.collect.compiled import compile_configs, get_target
    from foretune.collect.compiled.arguments import parse_argument, parse_config

    options.enable_cwd_imports()
    if jobs < 0:
        raise UsageError(f"--jobs {jobs}: give 0 (as many as there are cores) or more")
    arguments = dict(map(parse_argument, arg))
    configs = [parse_config(c) for c in config] or _autotuner_configs(kernel)
    found = get_target(target)
    outcomes: dict[int, CompileResult] = {}
    with progress_bar() as progress:
        progress.start("compiling", len(configs))
        for position, outcome in compile_configs(
            kernel,
            (),
            configs,
            found,
            kwargs=arguments,
            tier=tier,
            jobs=jobs or None,
            limit_s=options.require_positive(time_limit, "--time-limit"),
            cache_dir=cache_dir or None,
        ):
            outcomes[position] = outcome
            progress.advance(_format_config(outcome.config))
    return [outcomes[i] for i in range(len(configs))]


def _autotuner_configs(kernel: str) -> list[dict[str, Any]]:
    """Return the configurations of the kernel's autotuner; one without any settings if none."""
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
    unit = _MATRIX_UNITS.get(int(static.get("mma_version", 0)), "?")
    if "accumulator_registers" in static:
        unit = "mfma" if static.get("mma_version") else "none"
    width = static.get("global_width_bytes", static.get("load_width_bytes"))
    return [
        _format_number(static.get("registers")),
        f"{spilled:.0f}" if "registers" in static else "–",
        _format_number(static.get("shared_bytes")),
        per_sm,
        _format_number(static.get("pipeline_depth")),
        unit,
        "–" if width is None else f"{width:.3g}",
        f"{outcome.compile_s:.2f}",
    ]


def _format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _format_config(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items()) or "default"


def _say_failures(output: Output, outcomes: "list[CompileResult]") -> None:
    for outcome in outcomes:
        if not outcome.ok:
            output.say(f"{outcome.status}: {_format_config(outcome.config)}: {outcome.error}")
