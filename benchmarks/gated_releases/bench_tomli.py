"""Parses TOML texts with tomli, whose changelog names the releases that became faster.

foretune gate --base tomli==1.0.3 --head tomli==1.0.4 benchmarks/gated_releases/bench_tomli.py
"""

import tomli

TABLE = """
[server.{number}]
name = "server {number}"  # a comment
port = {number}
ratio = 0.5
tags = ["a", "b", 'literal']
started = 2021-07-01T12:00:00Z
limits = {{ memory = 1024, cpu = 2 }}
"""
STRINGS = 'text_{number} = "the quick brown fox jumps over the lazy dog"\n'
COMMENTS = "# the quick brown fox jumps over the lazy dog {number}\n"


def repeated(text, times):
    """Return a text as often as given, with its number."""
    return "".join(text.format(number=number) for number in range(times))


TABLES = repeated(TABLE, 50)
ALL_STRINGS = repeated(STRINGS, 300)
ALL_COMMENTS = repeated(COMMENTS, 300)


def bench_tables():
    """Fifty tables with values of all types."""
    return tomli.loads(TABLES)


def bench_strings():
    """Three hundred short strings."""
    return tomli.loads(ALL_STRINGS)


def bench_comments():
    """Three hundred comments."""
    return tomli.loads(ALL_COMMENTS)
