"""The folder of benchmarks is on the path, behind everything else: it has the hosts."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

if str(BENCHMARKS) not in sys.path:
    sys.path.append(str(BENCHMARKS))
