"""The same table in many dialects: how many are read right, refused, read wrong.

Run: ``python benchmarks/dialects.py [--draws 2000] [--seed 0]``. A draw is a table of sizes, tiles
and times in a random dialect: separator, decimal mark, grouped thousands, unit and where it is
written, order of columns, encoding, line ends, quotes, comments, appended runs, a line that sums
up. It is written to a file and imported. Wrong means that a row is missing or has another number
than was written. It exits with 1 if one is read wrong.
"""

import argparse
import csv
import io
import math
import random
import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from foretune.datasets import import_runs
from foretune.errors import ForetuneError

UNITS_PER_MS = {"ns": 1e6, "us": 1e3, "ms": 1.0, "s": 1e-3}
SIZES = (1, 64, 1000, 1024, 12288, 1048576)
TILES = ("a", "64x64", "b c", "16_128")
MAPPING = {"problem.M": "M", "config.tile": "tile"}

Row = tuple[int, str, float]
"""Size, tile, milliseconds."""


@dataclass(frozen=True)
class Dialect:
    """How a table is written."""

    separator: str
    mark: str
    group: str
    unit: str
    place: str
    decimals: int
    order: tuple[str, ...]
    encoding: str
    line_end: str
    quoting: int
    comments: bool
    runs: int
    total: bool

    @classmethod
    def draw(cls, rng: random.Random) -> "Dialect":
        """Return a random dialect."""
        mark = rng.choice(".,")
        order = ["M", "tile", "time"]
        rng.shuffle(order)
        return cls(
            separator=rng.choice([",", ";", "\t", "|", "aligned"]),
            mark=mark,
            group=rng.choice(["", "", "," if mark == "." else ".", " ", "'", "\u00a0"]),
            unit=rng.choice(sorted(UNITS_PER_MS)),
            place=rng.choice(["name", "brackets", "cells", "second line", "nowhere"]),
            decimals=rng.randint(0, 4),
            order=tuple(order),
            encoding=rng.choice(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
            line_end=rng.choice(["\n", "\r\n"]),
            quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
            comments=rng.random() < 0.2,
            runs=rng.choice([1, 1, 2]),
            total=rng.random() < 0.2,
        )

    def number(self, text: str) -> str:
        """Return a plain number in this dialect."""
        whole, _, decimals = text.partition(".")
        if self.group:
            whole = f"{int(whole):,}".replace(",", self.group)
        return f"{whole}{self.mark}{decimals}" if decimals else whole


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    outcomes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "runs.csv")
        for _ in range(given.draws):
            dialect = Dialect.draw(rng)
            text, truth = write(dialect, rng)
            path.write_bytes(text.encode(dialect.encoding))
            outcome, reason = judge(path, truth)
            outcomes[outcome] += 1
            if outcome == "refused":
                reasons[reason] += 1
            elif outcome == "wrong":
                print(f"wrong: {reason}\n{dialect}\n{text}")
    print(f"{given.draws} draws, seed {given.seed}")
    for outcome in ("right", "refused", "wrong"):
        print(f"| {outcome} | {outcomes[outcome]} | {outcomes[outcome] / given.draws:.1%} |")
    print("\nrefused because:")
    for reason, count in reasons.most_common():
        print(f"| {reason} | {count} |")
    sys.exit(outcomes["wrong"] > 0)


def write(dialect: Dialect, rng: random.Random) -> tuple[str, list[Row]]:
    """Return a table in a dialect, and its rows."""
    unit = dialect.unit
    header = {
        "name": f"time_{unit}",
        "brackets": f"time [{unit}]",
    }.get(dialect.place, "time")
    lines: list[list[str]] = []
    truth: list[Row] = []
    total = 0.0
    for run in range(dialect.runs):
        order = list(dialect.order)
        if run:
            rng.shuffle(order)
        lines.append([header if column == "time" else column for column in order])
        if dialect.place == "second line":
            lines.append([unit if column == "time" else "-" for column in order])
        for _ in range(rng.randint(2, 5)):
            size = rng.choice(SIZES)
            tile = rng.choice(TILES)
            time = f"{math.exp(rng.uniform(math.log(0.01), math.log(9999))):.{dialect.decimals}f}"
            suffix = f" {unit}" if dialect.place == "cells" else ""
            cells = {
                "M": dialect.number(str(size)),
                "tile": tile,
                "time": dialect.number(time) + suffix,
            }
            lines.append([cells[column] for column in order])
            total += float(time)
            if float(time) > 0:  # times of zero are left out
                truth.append((size, tile, float(time) / UNITS_PER_MS[unit]))
    if dialect.total and dialect.place != "cells":
        words = {"M": "Total", "time": dialect.number(f"{total:.{dialect.decimals}f}")}
        lines.append([words.get(column, "") for column in order])
    return _text(dialect, lines), truth


def _text(dialect: Dialect, lines: list[list[str]]) -> str:
    comment = f"# measured by hand{dialect.line_end}" if dialect.comments else ""
    if dialect.separator == "aligned":
        widths = [max(len(cells[i]) for cells in lines) for i in range(len(lines[0]))]
        rows = (
            "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) for cells in lines
        )
        return comment + dialect.line_end.join(rows) + dialect.line_end
    buffer = io.StringIO(newline="")
    writer = csv.writer(
        buffer,
        delimiter=dialect.separator,
        quoting=dialect.quoting,  # type: ignore[arg-type]
        lineterminator=dialect.line_end,
    )
    writer.writerows(lines)
    return comment + buffer.getvalue()


def judge(path: Path, truth: list[Row]) -> tuple[str, str]:
    """Return whether a file is read right, refused or wrong, and why."""
    try:
        imported = import_runs(path, "generic", kernel="gemm", device="a GPU", mapping=MAPPING)
    except ForetuneError as e:
        return "refused", _kind(str(e), path)
    rows = [
        (row["problem.M"], row["config.tile"], row["time_ms"])
        for row in imported.runs.to_dict("records")
    ]
    if len(rows) != len(truth):
        return "wrong", f"{len(rows)} rows, not {len(truth)}"
    for (size, tile, time), (true_size, true_tile, true_time) in zip(rows, truth, strict=True):
        is_same = (size, str(tile)) == (true_size, true_tile)
        if not is_same or not math.isclose(time, true_time, rel_tol=1e-9):
            return "wrong", f"{(size, tile, time)} is not {(true_size, true_tile, true_time)}"
    return "right", ""


def _kind(message: str, path: Path) -> str:
    """Return a message without what differs from file to file."""
    plain = message.replace(f"{path}: ", "").replace(str(path), "it")
    plain = re.sub("the unit of .* is unknown.*", "the unit of the time is unknown", plain)
    return re.sub(r"['(]?[\d.,'\u00a0]*\d[\d.,'\u00a0]*[')]?|it has .*$", "…", plain)[:90]


if __name__ == "__main__":
    main()
