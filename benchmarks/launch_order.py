"""Trains the orders of launches that come with Foretune, on recorded tables of real GPUs.

    PYTHONPATH=src python benchmarks/launch_order.py TABLE… [--keep LISTS.pickle]

What is learned of kernels that multiply tiles goes to ``tune/triton/shipped/launches.npz``. Beside
it, ``launches.json`` says from what it was learned. The rows of the tables are not in it.
`recorded_left_out.py` prints how good it is.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from launch_training import fit_orders
from recorded_lists import ProblemList, read_or_load

from foretune.errors import ForetuneError
from foretune.tune.triton import launch_order

PROBLEMS = 60
"""Maximum number of problems of a list: more kernels teach, more problems of a kernel do not."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where the lists are kept")
    parser.add_argument("--problems", type=int, default=PROBLEMS, help="most problems of a list")
    parser.add_argument("--out", type=Path, default=launch_order.SHIPPED.parent)
    options = parser.parse_args(argv)

    lists = read_or_load(options.keep, options.tables, options.problems)
    problems = [p for of_kernel in lists for p in of_kernel.problems]
    orders = fit_orders([p.learned for p in problems if p.launches])
    options.out.mkdir(parents=True, exist_ok=True)
    orders.save(options.out / launch_order.SHIPPED.name)

    card = {
        "what": "orders of launches of Triton kernels, and time ratios",
        "learned_by": "LambdaMART on columns of foretune.features.launches, isotonic curves",
        "holds": "trees and curves, no row of the tables",
        "tables": {path.name: _entry(path, lists) for path in options.tables},
    }
    text = json.dumps(card, indent=1)
    (options.out / launch_order.SHIPPED.name).with_suffix(".json").write_text(text + "\n")
    print(text)


def _entry(path: Path, lists: Sequence[ProblemList]) -> dict[str, Any]:
    """Return what the card says of a table."""
    of_table = [of_kernel for of_kernel in lists if of_kernel.table == path.name]
    problems = [problem for of_kernel in of_table for problem in of_kernel.problems]
    kernels = sorted({problem.kernel for problem in problems})
    return {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "source": _sources(path, kernels),
        "kernels": kernels,
        "device": ", ".join(sorted({problem.device.name for problem in problems})),
        "problems": len(problems),
        "dtypes": dict(Counter(problem.dtype for problem in problems)),
    }


def _sources(path: Path, kernels: Sequence[str]) -> list[str]:
    """Return who measured a table."""
    if path.suffix == ".jsonl":
        return ["foretune"]
    rows = pd.read_parquet(path, columns=["kernel", "source"])
    return sorted({text.split()[0] for text in rows["source"][rows["kernel"].isin(kernels)]})


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ForetuneError as e:
        raise SystemExit(str(e)) from e
