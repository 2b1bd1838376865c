"""All that fifteen minutes of a GPU should show, as one command: six parts, in this order.

    PYTHONPATH=src python benchmarks/gpu/quarter_hour.py --out runs --minutes 9
    PYTHONPATH=src python benchmarks/gpu/quarter_hour.py --out runs    # goes on where it ended
    PYTHONPATH=src python benchmarks/gpu/quarter_hour.py --out runs --minutes 0    # prints, no GPU
    PYTHONPATH=src python benchmarks/gpu/quarter_hour.py --out runs --replay --short    # rehearses

Every part is a script beside this one, in a process of its own. It may take the minutes of `PARTS`,
and ``--minutes`` bounds them all together. A part that hangs is killed a little later. What it
prints is in ``PART.txt``, and ``parts.jsonl`` says what each took: the next call with the same
folder leaves out what has come to its end.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # machine.py, beside this folder

from machine import markdown

HERE = Path(__file__).resolve().parent
GRACE_S = 45.0
"""What a part may take beyond its minutes: to start, to end what it has begun, and to print."""
MIN_MINUTES = 0.25
"""With less time left, no part begins."""


@dataclass(frozen=True)
class Part:
    """A script and its time.

    Attributes:
        name: Of the script, without its ending.
        minutes: In which it should begin all that it measures.
        options: Beside ``--out`` and ``--minutes``.
        short: Options of a rehearsal.
        writes_table: Whether ``--out`` is a folder; else it is the file of the part's rows.
    """

    name: str
    minutes: float
    options: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    writes_table: bool = True


POWER = (
    *("--windows", "60", "--repeated", "1", "--problems", "8"),
    *("--window-s", "0.5", "--warm-s", "0.2", "--idle-s", "0.8"),
    *("--kernels", "triton_gemm", "triton_attention", "triton_norm", "triton_quantized_gemm"),
)
"""Sixty configurations of problems that `breadth` has measured, with two windows each."""
PARTS = (
    Part("tf32", 1.0, short=("--sizes", "2048")),
    Part("breadth", 6.0, short=("--listed", "4", "--problems", "1")),
    Part("live", 2.0, short=("--listed", "6", "--problems", "1")),
    Part("power", 2.0, options=POWER, short=("--windows", "6", "--compilers", "1")),
    Part("tools", 2.0, writes_table=False),
    Part("unfit", 0.75, writes_table=False),
)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-runs"), metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=15.0, help="of all parts; 0: only print")
    parser.add_argument("--replay", action="store_true", help="made-up numbers, no GPU")
    parser.add_argument("--short", action="store_true", help="few configurations of each")
    parser.add_argument("--parts", nargs="*", choices=[part.name for part in PARTS])
    options = parser.parse_args(argv)
    parts = [part for part in PARTS if not options.parts or part.name in options.parts]

    options.out.mkdir(parents=True, exist_ok=True)
    log = options.out / "parts.jsonl"
    end_s = time.monotonic() + 60 * options.minutes
    failed = False
    for part in parts:
        minutes = minutes_of(part, log, end_s, options)
        if minutes is None:
            continue
        print(f"\n### {part.name}\n", flush=True)
        row = run(part, minutes, options)
        failed |= row["ended"] != "by itself"
        if options.minutes > 0:
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    print(f"\n### All parts\n\n{report(parts, log)}")
    if failed:
        raise SystemExit(1)


def minutes_of(part: Part, log: Path, end_s: float, options: argparse.Namespace) -> float | None:
    """Return the minutes that a part may take now; None if it should not run.

    A part ends before its time if nothing is left to measure, so it need not run again.
    """
    if options.minutes <= 0:
        return 0.0
    rows = rows_of(log, part)
    if any(row["ended"] == "by itself" and row["seconds"] < 60 * row["minutes"] for row in rows):
        print(f"{part.name} has come to its end before: left out")
        return None
    spent = sum(row["seconds"] for row in rows) / 60
    minutes = min(part.minutes - spent, (end_s - time.monotonic()) / 60)
    if minutes < MIN_MINUTES:
        print(f"{part.name} has no time left: left out")
        return None
    return minutes


def run(part: Part, minutes: float, options: argparse.Namespace) -> dict[str, Any]:
    """Run a part, print what it prints, and return what is noted of it."""
    out = options.out if part.writes_table else options.out / f"{part.name}.jsonl"
    command = [sys.executable, str(HERE / f"{part.name}.py"), "--out", str(out), *part.options]
    command += ["--minutes", f"{minutes:.3f}"]
    command += ["--replay"] if options.replay else []
    command += part.short if options.short else ()
    text_file = options.out / f"{part.name}.txt"

    start_s = time.monotonic()
    with text_file.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(60 * minutes + GRACE_S)
            ended = f"with code {code}" if code else "by itself"
        except subprocess.TimeoutExpired:
            ended = "killed, after its time"
        finally:
            # It has a session of its own, so what it started ends, too.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    print(text_file.read_text(encoding="utf-8", errors="replace"), flush=True)
    seconds = round(time.monotonic() - start_s, 1)
    return {"part": part.name, "minutes": minutes, "seconds": seconds, "ended": ended}


def rows_of(log: Path, part: Part) -> list[dict[str, Any]]:
    """Return what was noted of earlier runs of a part."""
    if not log.exists():
        return []
    rows = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["part"] == part.name]


def report(parts: list[Part], log: Path) -> str:
    """Return a table of the parts: the seconds of all their runs, and how the last one ended."""
    cells = []
    for part in parts:
        rows = rows_of(log, part)
        seconds = sum(row["seconds"] for row in rows)
        ended = rows[-1]["ended"] if rows else "has not run"
        cells.append([part.name, f"{part.minutes:g}", f"{seconds:.0f}", str(len(rows)), ended])
    return markdown(["part", "minutes", "seconds taken", "runs", "ended"], cells)


if __name__ == "__main__":
    main(sys.argv[1:])
