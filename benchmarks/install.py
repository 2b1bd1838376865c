"""What a fresh machine pays: seconds and megabytes of an installation, and of the first commands.

    python benchmarks/install.py [--extras ,learn,cpu]

Each extra is installed from this checkout into a new virtual environment, with the package index
and the cache that pip is set up for. Then a function is tuned there, by a user's five lines.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import heading, markdown

from foretune.collect import local_device

ROOT = Path(__file__).parents[1]
TUNED = """
import numpy as np
import foretune as ft
def mean(x, block=1): return [x[i:i + block].sum() for i in range(0, len(x), block)]
ft.tune_function(mean, {"block": [1, 16, 256]}, args=(np.ones(1000),), store=False)
"""


def main() -> None:
    """Install, measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--extras", default=",learn,cpu", help="comma-separated; empty: none")
    extras = parser.parse_args().extras.split(",")
    rows = [line(extra) for extra in extras]
    print(heading("Installing", local_device("cpu")))
    columns = ["extra", "packages", "MB", "install, s", "`foretune --help`, s", "function, s"]
    print(markdown(columns, rows))


def line(extra: str) -> list[str]:
    """Return what one extra costs, as cells of the table."""
    with tempfile.TemporaryDirectory(prefix="foretune-") as name:
        place = Path(name)
        run(sys.executable, "-m", "venv", place)
        python = place / "bin" / "python"
        wanted = f"{ROOT}[{extra}]" if extra else str(ROOT)
        install_s = run(python, "-m", "pip", "install", "--quiet", wanted)
        listed = subprocess.check_output([python, "-m", "pip", "list", "--format", "json"])
        (packages,) = place.glob("lib/python*/site-packages")
        sizes = (p.lstat().st_blocks * 512 for p in packages.rglob("*"))
        help_s = run(place / "bin" / "foretune", "--help")
        tune_s = run(python, "-c", TUNED, cwd=place)
        return [
            extra or "none",
            str(len(json.loads(listed))),
            f"{sum(sizes) / 2**20:,.0f}",
            f"{install_s:.0f}",
            f"{help_s:.1f}",
            f"{tune_s:.1f}",
        ]


def run(*command: object, cwd: Path | None = None) -> float:
    """Run a command and return the seconds it took."""
    start = time.monotonic()
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()[-500:]}")
    return time.monotonic() - start


if __name__ == "__main__":
    main()
