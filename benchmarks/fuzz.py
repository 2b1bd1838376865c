"""Does every decoder answer damaged files with a result or with one of our errors?

python benchmarks/fuzz.py [--inputs 1000] [--seed 0] [--only t4 vidur]

Samples of every kind of file that comes in are spoiled (`tests/toy/fuzzing.py`): bytes flipped, cut
out and put in, values of JSON, cells, arrays and nodes of trees replaced by hostile ones. Each
decoder works in a process of its own with 8 GB of memory and 10 seconds for an input, so that
crashes and hangs are counted. Of the exported store it counts, too, where changed bytes cost rows
and nothing said so.
"""

import argparse
import json
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "toy"))

SECONDS, MEMORY = 10, 8 << 30
COLUMNS = ("decoder", "inputs", "results", "our errors", "other errors", "crashes", "hangs")


def work(name: str, folder: Path, start: int, stop: int, seed: int) -> None:
    """Read inputs one after the other; print a line of JSON for each."""
    from fuzzing import DECODERS, spoiled

    from foretune.errors import ForetuneError

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    decoder = DECODERS[name]
    with tempfile.TemporaryDirectory() as place:
        here = Path(place) / "sample"
        shutil.copytree(folder, here)
        whole = decoder.read(here)
        for i in range(start, stop):
            shutil.rmtree(here)
            shutil.copytree(folder, here)
            path, data = spoiled(here, name, i, seed)
            path.write_bytes(data)
            try:
                rows = decoder.read(here)
                outcome, text = "results", ""
                if decoder.all_rows and i % 2 and rows < whole:
                    outcome, text = "other errors", f"{rows} of {whole} rows, without a word"
            except ForetuneError as e:
                outcome, text = "our errors", str(e)
                if "\n" in text or not text:
                    outcome, text = "other errors", f"not one line: {text!r}"
            except BaseException as e:
                outcome, text = "other errors", f"{type(e).__name__}: {e}"
            print(json.dumps([i, outcome, f"{path.name}: {text}"[:300]]), flush=True)


def fuzz(name: str, folder: Path, inputs: int, seed: int) -> tuple[Counter[str], dict[str, str]]:
    """Return how often each outcome was seen, and an example of each."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    at = 0
    while at < inputs:
        command = [sys.executable, __file__, "--work", name, str(folder), str(at), str(inputs)]
        process = subprocess.Popen(
            [*command, "--seed", str(seed)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        begun = at
        while at < inputs:
            ready, _, _ = select.select([process.stdout], [], [], SECONDS + 20 * (at == begun))
            line = process.stdout.readline() if ready else b""
            if not line:
                outcome = "crashes" if ready else "hangs"
                process.kill()
                counts[outcome] += 1
                examples.setdefault(outcome, f"input {at}, exit status {process.wait()}")
                at += 1
                break
            at, outcome, text = json.loads(line)
            counts[outcome] += 1
            examples.setdefault(outcome, f"input {at}: {text}")
            at += 1
        process.kill()
        process.wait()
    return counts, examples


def main() -> None:
    """Fuzz and print the table."""
    from fuzzing import DECODERS
    from machine import heading, markdown

    from foretune.collect import local_device

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(DECODERS))
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        name, folder, start, stop = given.work
        work(name, Path(folder), int(start), int(stop), given.seed)
        return
    rows, total, begun = [], Counter[str](), time.perf_counter()
    for name in given.only:
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            DECODERS[name].write(Path(place))
            counts, examples = fuzz(name, Path(place), given.inputs, given.seed)
        rows.append([name, f"{counts.total():,}", *(f"{counts[c]:,}" for c in COLUMNS[2:])])
        total += counts
        for outcome in COLUMNS[4:]:
            if outcome in examples:
                print(f"{name}, {outcome}: {examples[outcome]}", file=sys.stderr)
    rows.append(["all", f"{total.total():,}", *(f"{total[c]:,}" for c in COLUMNS[2:])])
    print(heading("Damaged files", local_device("cpu")))
    print(markdown(COLUMNS, rows))
    print(f"\n{time.perf_counter() - begun:.0f} seconds")
    sys.exit(bool(sum(total[c] for c in COLUMNS[4:])))


if __name__ == "__main__":
    main()
