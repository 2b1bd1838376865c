"""The fastest settings of a DuckDB query over a Parquet file: pip install duckdb."""

import sys
import tempfile
from pathlib import Path

import duckdb
import numpy as np

import foretune as ft

QUERY = """SELECT region, day % 7 AS weekday, sum(amount), count(DISTINCT buyer)
           FROM '{path}' WHERE day < 90 GROUP BY ALL ORDER BY ALL"""
SALES = """COPY (SELECT i * 7919 % 365 AS day, i * 31 % 50 AS region, i * 17 % 9973 AS buyer,
           i % 97 / 7 AS amount FROM range({rows}) t(i) ORDER BY day)
           TO '{path}' (ROW_GROUP_SIZE {group}, COMPRESSION {codec})"""
FILES = {}


def query(rows, group=122_880, codec="snappy", threads=2, keep_order=True):
    """Return the answer; the file with groups of so many rows is written once."""
    if (rows, group, codec) not in FILES:
        path = Path(tempfile.mkdtemp(), "sales.parquet")
        duckdb.sql(SALES.format(rows=rows, path=path, group=group, codec=codec))
        FILES[rows, group, codec] = path
    database = duckdb.connect(config={"threads": threads, "preserve_insertion_order": keep_order})
    return np.array(database.sql(QUERY.format(path=FILES[rows, group, codec])).fetchall(), float)


if __name__ == "__main__":
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    knobs = {
        "group": [2048, 16_384, 122_880, 1_000_000],
        "codec": ["snappy", "zstd", "uncompressed"],
        "threads": [1, 2, 4],
        "keep_order": [True, False],
    }
    best = ft.tune_function(query, knobs, (rows,), budget=14)
    print(best.config, f"{best.speedup:.2f}× the default's speed")
