"""Twenty functions of NumPy, pandas and pure Python, of 10 µs to 50 ms.

A revision does a share more work, which the file ``share.txt`` in the present folder says. Work
comes in equal parts, so the share of the parts is that of the time.
"""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd

SHARE = float(Path("share.txt").read_text())
PARTS = 1000
"""Parts of the work of the base; a share of 3 % are 30 parts more."""
WORDS = "the quick brown fox jumps over the lazy dog " * 4


def parts(base_parts=PARTS):
    """Return the number of parts that this revision works on."""
    return round(base_parts * (1.0 + SHARE))


def inputs_numpy_add(seed):
    return (np.random.default_rng(seed).random(64),)


def bench_numpy_add(x):
    """About 0.1 ms: small arrays, so that the calls count."""
    for _ in range(parts(200)):
        x + 1.0


def inputs_numpy_sqrt(seed):
    return (np.random.default_rng(seed).random(4096),)


def bench_numpy_sqrt(x):
    for _ in range(parts(200)):
        np.sqrt(x)


def inputs_numpy_sort(seed):
    return (np.random.default_rng(seed).random((parts(100), 512)),)


def bench_numpy_sort(x):
    np.sort(x, axis=1)


def inputs_numpy_cumsum(seed):
    return (np.random.default_rng(seed).random((parts(), 1024)),)


def bench_numpy_cumsum(x):
    x.cumsum(axis=1)


def inputs_numpy_exp(seed):
    return (np.random.default_rng(seed).random((parts(100), 64)),)


def bench_numpy_exp(x):
    """About 20 µs."""
    np.exp(x)


def inputs_numpy_products(seed):
    return (np.random.default_rng(seed).random((48, 48)),)


def bench_numpy_products(x):
    for _ in range(parts(100)):
        x @ x


def inputs_pandas_sum(seed):
    return (pd.Series(np.random.default_rng(seed).random(1000)),)


def bench_pandas_sum(x):
    for _ in range(parts(100)):
        x.sum()


def inputs_pandas_groups(seed):
    rng = np.random.default_rng(seed)
    return (pd.DataFrame({"key": rng.integers(0, 50, 500), "value": rng.random(500)}),)


def bench_pandas_groups(table):
    """About 20 ms."""
    for _ in range(parts(100)):
        table.groupby("key")["value"].mean()


def inputs_pandas_strings(seed):
    rng = np.random.default_rng(seed)
    return (pd.Series([f"item {n}" for n in rng.integers(0, 1000, parts(2000))]),)


def bench_pandas_strings(x):
    x.str.upper()


def inputs_pandas_rolling(seed):
    return (pd.Series(np.random.default_rng(seed).random(100)),)


def bench_pandas_rolling(x):
    for _ in range(parts(100)):
        x.rolling(10).mean()


def bench_python_sum():
    """About 10 µs."""
    sum(range(parts()))


def bench_python_loop():
    total = 0
    for i in range(parts(100_000)):
        total += i & 3
    return total


def bench_python_dict():
    counts: dict[int, int] = {}
    for i in range(parts(5000)):
        counts[i % 100] = counts.get(i % 100, 0) + 1
    return counts


def bench_python_join():
    ",".join([str(i) for i in range(parts(2000))])


def bench_python_sort():
    sorted(range(parts(10_000)), key=lambda i: -i)


class Point:
    """A point of a plane."""

    def __init__(self, x, y):
        self.x = x
        self.y = y

    def length(self):
        """Return the squared distance from 0."""
        return self.x * self.x + self.y * self.y


def bench_python_objects():
    return sum(Point(i, 1).length() for i in range(parts(2000)))


def bench_python_json():
    document = json.dumps({"words": WORDS.split(), "numbers": list(range(50))})
    for _ in range(parts(100)):
        json.loads(document)


def bench_python_regex():
    pattern = re.compile(r"(\w+) (fox|dog)")
    for _ in range(parts(200)):
        pattern.findall(WORDS)


def bench_python_fibonacci():
    """About 50 ms: calls that return at once."""

    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    for _ in range(parts(200)):
        fibonacci(12)


def bench_python_text():
    text = ""
    for i in range(parts(1000)):
        text += WORDS[i % 100]
    return text
