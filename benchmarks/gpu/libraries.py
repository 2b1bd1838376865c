"""Kernels of other people's libraries on a GPU: stock Triton's tuning, and `foretune.patch_triton`.

One process calls the functions of flash-linear-attention (``fla-core``), Liger (``liger-kernel``),
FlagGems (``flag-gems``) and Unsloth (its grouped GEMM) as they are. Stock Triton measures every
configuration. A second process does the same calls with Triton patched before the libraries are
imported, starting from an empty store. Later problems of a kernel come after the first and can
learn from it. Inputs are equal, by seed.

    python benchmarks/gpu/libraries.py --minutes 1.25 --out libraries.jsonl
    python benchmarks/gpu/libraries.py --compile-only    # no GPU: fills Triton's cache of programs
    python benchmarks/gpu/libraries.py --minutes 0 --out libraries.jsonl    # prints a file

Printed are, per problem: configurations on the list, those that Foretune measured, the share of the
best performance that its choice keeps (both times from stock's own measurements, so noise lowers
it), the seconds until the first call returned, and whether the results agree. Programs that are in
Triton's cache are not compiled: without ``--compile-only`` before, seconds have compilation in
them. Foretune's first call of all also imports what Foretune needs. A library that is not installed
is left out, and said.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder)
    for folder in ("benchmarks", "tests/replay_gpu")
)

from library_cases import LIBRARIES
from library_rows import read
from library_side import BROKEN, side
from machine import markdown

HERE = Path(__file__).resolve()
MADE_UP = "made-up times"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.25, help="begin nothing new after them")
    parser.add_argument("--out", type=Path, default=Path("gpu-libraries.jsonl"))
    parser.add_argument("--libraries", nargs="*", default=list(LIBRARIES), choices=LIBRARIES)
    parser.add_argument("--kernels", nargs="*", help="only kernels with one of these in their name")
    parser.add_argument("--compile-only", action="store_true", help="no GPU: made-up times")
    parser.add_argument("--side", choices=("stock", "foretune"), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.side:
        side(options)
        return
    before = 0
    if options.minutes <= 0 and not options.out.exists():
        raise SystemExit(f"there is no file {options.out}")
    if options.minutes > 0:
        if not options.compile_only and not torch.cuda.is_available():
            raise SystemExit("no GPU here: --compile-only shows that the benchmark runs")
        before = len(read(options.out))
        run(options)
    print(report(read(options.out)[before:]))


def run(options: argparse.Namespace) -> None:
    """Run each side in a separate process."""
    begin = time.time()
    end = begin + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        options.work = Path(folder)
        # Foretune's process imports while stock's measures, and waits for its turn.
        with Side(options, "stock", begin + 0.68 * (end - begin)) as stock:
            stock.go()
            waiting = None if options.compile_only else Side(options, "foretune", end)
            stock.wait(begin + 0.75 * (end - begin))
        with waiting or Side(options, "foretune", end) as ours:
            ours.go()
            ours.wait(end + 5)


def report(rows: list[dict[str, Any]]) -> str:
    """Return the table and the notes."""
    where = next((f"{r['device']}; {r['versions']}" for r in rows if "device" in r), MADE_UP)
    lines = ["### Kernels of libraries under patch_triton", "", where, "", table(rows)]
    for row in rows:
        if "note" in row or "error" in row:
            said = row.get("note") or row["error"]
            name = " ".join(str(row[n]) for n in ("library", "kernel") if n in row)
            lines.append(f"- {row['side']}: {name}: {said.splitlines()[-1][:200]}")
    return "\n".join(lines)


class Side:
    """A process that makes the calls, started again if it breaks the device."""

    def __init__(self, options: argparse.Namespace, name: str, until: float) -> None:
        self.command = [
            sys.executable,
            str(HERE),
            "--side",
            name,
            "--out",
            str(options.out.resolve()),
            "--work",
            str(options.work),
            "--until",
            str(until),
            "--libraries",
            *options.libraries,
        ]
        if options.kernels:
            self.command += ["--kernels", *options.kernels]
        if options.compile_only:
            self.command += ["--compile-only"]
        self.until = until
        self.patient = options.compile_only
        self.work = options.work
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        environment = {
            **os.environ,
            "FLA_CACHE_RESULTS": "0",  # else results lie in the cache of programs
            "FORETUNE_STORE": str(self.work / "store.db"),
            "GEMS_VENDOR": "nvidia",  # else FlagGems runs commands to find out
        }
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            text=True,
            env=environment,
            stdout=sys.stderr.fileno(),
        )

    def go(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def wait(self, latest: float) -> None:
        """Wait until it is done, starting it again where it broke the device, or end it."""
        for _ in range(4):
            try:
                left = None if self.patient else max(latest - time.time(), 1)
                status = self.process.wait(timeout=left)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                return
            if (status >= 0 and status != BROKEN) or time.time() > self.until:
                return
            self.process = self._start()
            self.go()

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def table(rows: list[dict[str, Any]]) -> str:
    """Return one line per problem that both sides did."""
    lines = []
    for row in rows:
        if row["side"] != "foretune" or "seconds" not in row:
            continue
        share = row.get("share")
        equal = row.get("equal")
        sizes = " ".join(f"{n}={v}" for n, v in row["problem"].items())
        lines.append(
            [
                row["library"],
                row["kernel"],
                sizes,
                str(row.get("configs", "")),
                str(row["measured"]),
                "" if share is None else f"{share:.3f}",
                f"{row.get('stock_seconds', float('nan')):.2f}",
                f"{row['seconds']:.2f}",
                "" if equal is None else "yes" if equal else "no",
            ]
        )
    columns = [
        "library",
        "kernel",
        "problem",
        "configs",
        "measured",
        "kept",
        "stock s",
        "Foretune s",
        "equal",
    ]
    return markdown(columns, lines)


if __name__ == "__main__":
    main()
