"""``foretune warm-up``: choose for recorded calls before anybody waits."""

from pathlib import Path

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.console import progress_bar
from foretune.errors import UsageError


def warm_up(
    calls: Path = typer.Argument(help="File of calls, written by FORETUNE_RECORD_CALLS=FILE."),
    kernel: str = typer.Option(None, help="Only calls of this kernel: MODULE:NAME."),
    as_json: bool = options.JSON,
) -> None:
    """Tune Triton kernels ahead of time, for recorded calls.

    The program that makes the calls finds the choices there, and does not wait.
    """
    from foretune.lazy import require

    require("triton", "gpu", "warming up Triton kernels")
    from foretune.tune.triton.call_recorder import read_calls
    from foretune.tune.triton.warm_up import warm_up as warm

    wanted = [c for c in read_calls(calls) if kernel in (None, c.kernel)]
    if not wanted:
        raise UsageError(f"{calls} holds no call{f' of {kernel}' if kernel else ''}")
    options.enable_cwd_imports()
    output, done = Output(as_json), []
    with progress_bar() as progress:
        progress.start("warm up", len(wanted))
        for warmed in warm(wanted):
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
    output.table(
        f"{len(done)} calls",
        ("kernel", "ms", "measured", "configuration", "arguments"),
        [
            [
                str(d["kernel"]).partition(":")[2],
                f"{d['time_ms']:.3g}",
                str(d["measured"]),
                " ".join(f"{k}={v}" for k, v in d["config"].items()),
                str(d["arguments"]),
            ]
            for d in done
        ],
    )
    output.result({"calls": done})
