"""What measuring processes print: `collect/printed_output.py`."""

import os
import subprocess
import sys

from foretune.collect.printed_output import MAX_BYTES, MAX_LINES, NOTICE, PrintedOutput, _Limit


def talk(x, k=1):
    print("the function says something", k)
    return x.sum()


TALKING = """
import sys, warnings
warnings.simplefilter("ignore")
import foretune as ft, numpy as np
sys.path.insert(0, {folder!r})
from test_printed_output import talk
if __name__ == "__main__":
    options = dict(budget=3, verify_s=0.0, progress=False, store=False)
    ft.tune_function(talk, {{"k": [1, 2, 3]}}, args=(np.ones(4),), **options)
"""


def test_limit_shows_first_lines():
    limit = _Limit(lines=3, length=100)
    assert limit.take(b"a\nb\n") == b"a\nb\n"
    assert not limit.is_reached()
    assert limit.take(b"c\nd\ne\n") == b"c\n"
    assert limit.is_reached()


def test_limit_shows_beginning_of_long_line():
    limit = _Limit(lines=3, length=5)
    assert limit.take(b"123456789\n") == b"12345"
    assert limit.is_reached()


def test_printed_output_never_blocks_who_prints():
    printed = PrintedOutput()
    for _ in range(100):
        os.write(printed.file(), b"x" * 10_000)  # a pipe holds 64 KiB that nobody reads
    del printed


def test_tune_function_that_prints_does_not_flood_terminal():
    folder = os.path.dirname(__file__)
    run = subprocess.run(
        [sys.executable, "-c", TALKING.format(folder=folder)],
        capture_output=True,
        check=True,
        timeout=300,
    )
    assert run.stdout == b""
    shown = run.stderr.count(b"the function says something")
    assert 1 <= shown <= MAX_LINES
    assert len(run.stderr) < 10 * MAX_BYTES
    assert run.stderr.count(NOTICE) == 1
