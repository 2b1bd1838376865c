"""Scores of CPUs never seen: what public measurements allow to be said.

Run: ``python benchmarks/cpus.py perfcast_train.csv``, the public part of PerfCastDB
(github.com/xiaoman-liu/NCPP, Apache-2.0). Prints, per suite, how many tests it has, on how many CPU
models each of them ran, and how far repeated runs of one test lie apart. A model of a test's score
by a CPU's characteristics needs tests that ran on several CPUs.
"""

import argparse
from pathlib import Path

import pandas as pd
from machine import markdown

SUITE, TEST, SCORE, CPU = (
    "RESULT.WorkloadName",
    "RESULT.TestName",
    "RESULT.Value",
    "SVR.CPU.CPU Model",
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    print(markdown(*scores(pd.read_csv(parser.parse_args().table))), end="")


def scores(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows, one per suite."""
    rows = []
    for suite, own in table.groupby(SUITE):
        tests = own.groupby(TEST)
        models = tests[CPU].nunique()
        spread = ((tests[SCORE].max() - tests[SCORE].min()) / tests[SCORE].median()).max()
        rows.append(
            [
                str(suite),
                str(len(models)),
                str(len(own)),
                str(models.max()),
                f"{100 * spread:.1f} %",
            ]
        )
    return ["suite", "tests", "scores", "most CPU models of a test", "largest spread"], rows


if __name__ == "__main__":
    main()
