"""Does every decoder answer spoiled files with a result or with one of our errors?

python benchmarks/fuzz.py [--inputs 1000000] [--seconds 600] [--seed 0] [--only t4 ncu]

Samples of every kind of file that comes in are spoiled (`tests/toy/spoiling.py`) and read in one
process per decoder (`tests/toy/fuzzing.py`), which has 8 GB of memory and 10 seconds for an input.
Decoders share the seconds of CPU equally. Unexpected are other errors, errors of more lines than
one, crashes, hangs, and measurements of an exported store that get lost without a word.
"""

import argparse
import json
import mmap
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests" / "toy"))

MEMORY = 8 << 30
MEMORY_DISK = Path("/dev/shm")
COLUMNS = ("decoder", "inputs", "accepted", "refused", "unexpected", "inputs/s")


def work(name: str, inputs: int, seconds: float, seed: int, start: int, at: Path) -> None:
    """Fuzz one decoder, keep the number of the present input in a file, and print the tally."""
    from fuzzing import fuzz

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    place = MEMORY_DISK if MEMORY_DISK.is_dir() else None
    with (
        at.open("r+b") as file,
        mmap.mmap(file.fileno(), 8) as number,
        tempfile.TemporaryDirectory(dir=place) as folder,
    ):

        def note(i: int) -> None:
            number[:] = i.to_bytes(8, "little")

        print(json.dumps(asdict(fuzz(name, Path(folder), inputs, seed, start, seconds, note))))


def run(name: str, inputs: int, seconds: float, seed: int, start: int) -> dict[str, Any]:
    """Return a decoder's tally; its process starts again behind an input that ends it."""
    total: dict[str, Any] = {"accepted": 0, "refused": 0, "unexpected": [], "seconds": 0.0}
    with tempfile.NamedTemporaryFile() as at:
        while inputs > 0 and total["seconds"] < seconds:
            at.seek(0)
            at.write(bytes(8))
            at.flush()
            left = seconds - total["seconds"]
            given = [name, inputs, left, seed, start, at.name]
            done = subprocess.run(
                [sys.executable, __file__, "--work", *map(str, given)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=None,
                check=False,
            )
            if done.returncode == 0:
                tally = json.loads(done.stdout)
                total = {key: total[key] + tally[key] for key in total}
                break
            reached = int.from_bytes(Path(at.name).read_bytes(), "little")
            total["unexpected"].append([reached, f"it ends the process: {done.returncode}"])
            inputs = inputs - (reached + 1 - start)
            start = reached + 1
            total["seconds"] += seconds / 10
    return total


def main() -> None:
    """Fuzz and print the table."""
    from fuzzing import DECODERS
    from machine import heading, markdown

    from foretune.collect import local_device

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(DECODERS))
    parser.add_argument("--work", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        name, inputs, seconds, seed, start, at = given.work
        work(name, int(inputs), float(seconds), int(seed), int(start), Path(at))
        return
    rows = []
    totals = [0, 0, 0]
    total_s = 0.0
    for i, name in enumerate(given.only):
        left = given.inputs - sum(totals)
        names = len(given.only) - i
        share = max(given.seconds - total_s, 1.0) / names
        tally = run(name, left, share, given.seed, given.start)
        counts = [tally["accepted"], tally["refused"], len(tally["unexpected"])]
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        total_s += tally["seconds"]
        for number, text in tally["unexpected"][:3]:
            print(f"{name}, input {number}: {text}", file=sys.stderr)
        rows.append([name, *_cells(counts, tally["seconds"])])
    rows.append(["all", *_cells(totals, total_s)])
    print(heading("Spoiled files", local_device("cpu")))
    print(markdown(COLUMNS, rows))
    print(f"\n{total_s:.0f} s of CPU")
    sys.exit(totals[2] > 0)


def _cells(counts: Sequence[int], seconds: float) -> list[str]:
    inputs = sum(counts)
    return [*(f"{n:,}" for n in (inputs, *counts)), f"{inputs / max(seconds, 1e-9):,.0f}"]


if __name__ == "__main__":
    main()
