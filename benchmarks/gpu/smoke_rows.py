"""Rows of `smoke.py` and `tools.py`, and what their items need."""

import json
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import foretune
from foretune.collect.timing import gpu_timer
from foretune.errors import describe_error

REAL = torch.cuda.is_available()
"""Whether anything is launched."""


def warm_gpu_timer() -> Any:
    """Return a timer of launches whose inputs are in the cache."""
    return gpu_timer(foretune.local_device("gpu"), warm_cache=True)


@dataclass
class Run:
    """Inputs of an item.

    Attributes:
        item: Its number.
        out: File of rows.
        folder: Folder of this run, with its stores of tuned results.
        driver: Replayed device, or None.
    """

    item: str
    out: Path
    folder: Path
    driver: Any = None
    start: float = field(default_factory=time.monotonic)

    def check(self, what: str, ok: bool, detail: str, **values: Any) -> None:
        """Write down whether something works."""
        seconds = round(time.monotonic() - self.start, 2)
        row = {"item": self.item, "what": what, "ok": bool(ok), "detail": detail, **values}
        append(self.out, {**row, "seconds": seconds})

    def leave_out(self, tool: str, reason: str) -> None:
        """Write down that the item cannot run: a tool is not installed, or cannot be used."""
        self.check("installed", True, f"{tool}: {reason}", absent=True)

    @contextmanager
    def checking(self, what: str) -> Iterator[None]:
        """Turn an error in the block into a row."""
        try:
            yield
        except Exception as e:
            self.check(what, False, describe_error(e)[:300], trace=traceback.format_exc()[-3000:])

    def store(self, name: str) -> Path:
        """Return the path of a tuning store."""
        return self.folder / f"{name}.db"


def append(out: Path, row: Mapping[str, Any]) -> None:
    """Append a row; several processes do."""
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, default=str) + "\n")


def rows_of(out: Path, item: str) -> list[dict[str, Any]]:
    """Return the rows of an item."""
    rows = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["item"] == item]
