"""Trains the order of launches that comes with Foretune, on recorded tables of real GPUs.

    PYTHONPATH=src python benchmarks/launch_order.py TABLE.parquet…

What is learned goes to ``tune/triton/shipped/launches.npz``. Beside it, ``launches.json`` says from
what it was learned. The rows of the tables are not in it. `recorded.py` prints how good it is.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import recorded_tables
from launch_training import fit_order, save_order

from foretune.tune.triton.launch_order import SHIPPED

PROBLEMS = 1500


def sources(path: Path, kernels: Sequence[str]) -> list[str]:
    """Return who measured a table."""
    if path.suffix == ".jsonl":
        return ["foretune"]
    rows = pd.read_parquet(path, columns=["kernel", "source"])
    return sorted({text.split()[0] for text in rows["source"][rows["kernel"].isin(kernels)]})


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--problems", type=int, default=PROBLEMS, help="most problems of a table")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    options = parser.parse_args(argv)
    card: dict[str, object] = {
        "what": "an order of launches of Triton kernels that multiply tiles, and time ratios",
        "learned_by": "LambdaMART on columns of foretune.features.launches",
        "holds": "trees and a curve, no row of the tables",
        "tables": {},
    }
    problems = []
    for path in options.tables:
        tables = recorded_tables.read(path, options.problems)
        found = [r for some in tables.values() for r in some if r.is_product]
        problems += [r.learned for r in found]
        kernels = sorted({r.kernel for r in found})
        card["tables"] |= {
            path.name: {  # type: ignore[operator]
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "source": sources(path, kernels),
                "kernels": kernels,
                "device": found[0].call.device.name,
                "problems": len(found),
                "dtypes": dict(Counter(r.dtype for r in found)),
            }
        }
    order = fit_order(problems)
    save_order(order, options.out)
    text = json.dumps(card, indent=1)
    options.out.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
