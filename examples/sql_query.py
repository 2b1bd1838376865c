"""Tune the settings of an SQL query: SQLite pragmas, and whether an index pays.

python examples/sql_query.py [ROWS]
"""

import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import foretune as ft

SETTINGS = {
    "index": [False, True],
    "cache_kib": [64, 512, 4096, 32768],
    "mmap_mib": [0, 16, 256],
    "temp_store": ["file", "memory"],
}
DEFAULT = {"index": False, "cache_kib": 4096, "mmap_mib": 0, "temp_store": "file"}
QUERY = "SELECT region, SUM(amount) FROM sales WHERE day BETWEEN 40 AND 44 GROUP BY region"


def create_database(path, rows):
    """Write a table of sales."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE sales (day INTEGER, region TEXT, amount REAL)")
        sales = ((i * 7919 % 365, f"region {i % 50}", i % 97 / 7) for i in range(rows))
        database.executemany("INSERT INTO sales VALUES (?, ?, ?)", sales)
    database.close()


def measure(path, config, repeats=5):
    """Return the median milliseconds of the query with these settings."""
    database = sqlite3.connect(path)
    try:
        database.execute("DROP INDEX IF EXISTS by_day")
        if config["index"]:
            database.execute("CREATE INDEX by_day ON sales (day)")
        database.execute(f"PRAGMA cache_size = -{config['cache_kib']}")
        database.execute(f"PRAGMA mmap_size = {config['mmap_mib'] << 20}")
        database.execute(f"PRAGMA temp_store = {config['temp_store']}")
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            database.execute(QUERY).fetchall()
            times.append(1e3 * (time.perf_counter() - start))
        return median(times)
    finally:
        database.close()


if __name__ == "__main__":
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 30_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sales.db")
        create_database(path, rows)
        found = ft.run_search(
            "surrogate", SETTINGS, lambda config: measure(path, config), budget=15, first=[DEFAULT]
        )
        default_ms = found.trace[0].time_ms
        print(f"{found.best}: {found.best_value:.2f} ms, default {default_ms:.2f} ms")
