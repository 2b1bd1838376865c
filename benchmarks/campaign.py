"""What does the main job cost? Time and memory of ``foretune campaign``, from an empty folder.

    python benchmarks/campaign.py matmul

The first run on a machine also probes the CPU (some 3 s) and makes MLflow's tables.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from machine import heading, markdown

from foretune.collect import local_device
from foretune.registry import absolute_location, is_code_location

COMMAND = "import sys; from foretune.cli import main; sys.exit(main())"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*", default=["matmul"], help="names or FILE.py:NAME")
    parser.add_argument("--preset", default="quick")
    options = parser.parse_args()
    print(heading(f"Campaigns, preset {options.preset}", local_device()))
    columns = ["kernel", "seconds", "peak GiB, all processes", "won", "speedup", "vs library"]
    columns += ["held-out median error"]
    print(markdown(columns, [run(kernel, options.preset) for kernel in options.kernels]))


def run(kernel: str, preset: str) -> list[str]:
    location = absolute_location(kernel) if is_code_location(kernel) else kernel
    command = [sys.executable, "-P", "-c", COMMAND, "campaign", location]
    command += ["--preset", preset, "--store", "none", "--json"]
    start = time.perf_counter()
    peak = 0
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, resident_bytes(watched))
            time.sleep(0.2)
        assert process.stdout is not None
        done = json.loads(process.stdout.read())
    seconds = time.perf_counter() - start
    best = done["best"]
    libraries = [b["library"]["winner_speedup"] for b in best if b["library"]]
    return [
        Path(kernel.partition(":")[0]).stem,
        f"{seconds:.0f}",
        f"{peak / 2**30:.2f}",
        f"{sum(b['verified'] for b in best)} of {len(best)}",
        " ".join(f"{b['speedup']:.2f}×" for b in best),
        " ".join(f"{s:.2f}×" for s in libraries),
        f"{100 * done['predictor']['time_ms']['grouped']['median_ape']:.0f} %",
    ]


def resident_bytes(process: psutil.Process) -> int:
    """Return the resident memory of a process and its children; shared pages count twice."""
    total = 0
    try:
        for each in [process, *process.children(recursive=True)]:
            total += each.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


if __name__ == "__main__":
    main()
