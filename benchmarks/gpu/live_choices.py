"""What was chosen in `live.py`: its file, and the table of what choices keep."""

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stage import markdown

from foretune.datasets.journal import truncate_partial_line
from foretune.problem import Problem

DEFAULT = "default"
BEST_LISTED = "best of the list"
PROPOSED = "proposed"
LEARNING = "auto, learning"
AUTO = "auto"
"""Ways of choosing that `report_of` names; all others are budgets."""
ROUNDS = "rounds"
"""The line with the times of a problem's choices, which took turns."""
MEAN_GOAL = 0.99
WORST_GOAL = 0.85
LOSS_GOAL = 1.5
"""Goals of "auto": shares of the best speed, and the loss relative to the promised one."""

Row = dict[str, Any]


class Choices:
    """What was chosen, in a file with a line each.

    Attributes:
        rows: All lines, those of earlier runs included.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        if path.exists():
            truncate_partial_line(path)
            self.rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    def append(self, kernel: str, problem: Problem, way: str, **values: Any) -> None:
        """Write one line."""
        row = {"kernel": kernel, "problem": dict(problem), "way": way, **values}
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, default=float) + "\n")

    def of(self, kernel: str, problem: Mapping[str, Any]) -> dict[str, Row]:
        """Return the lines of a problem by their way of choosing."""
        return {
            row["way"]: row
            for row in self.rows
            if row["kernel"] == kernel and row["problem"] == dict(problem)
        }


def report_of(choices: Choices) -> str:
    """Return a table of what each way keeps of the fastest, per kernel and over all."""
    complete = [row for row in choices.rows if row["way"] == ROUNDS and "time_ms" in row]
    failures = [
        f"{row['kernel']}, {row['way']}: {row['failed']}" for row in choices.rows if "failed" in row
    ]
    if not complete:
        return "\n".join(["nothing was compared: give it more --minutes", *failures])

    # What each way kept and measured, per kernel.
    found: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in complete:
        best_ms = min(row["time_ms"].values())
        chosen = choices.of(row["kernel"], row["problem"])
        for way, time_ms in row["time_ms"].items():
            kept = {**chosen.get(way, {}), "kept": best_ms / time_ms}
            found[row["kernel"]][way].append(kept)
            found["all"][way].append(kept)

    every = found.pop("all")
    rows = [
        _row(kernel, way, of_way)
        for kernel, ways in {**found, "all": every}.items()
        for way, of_way in ways.items()
    ]
    columns = ["kernel", "choice", "problems", "kept", "worst", "measured", "promised", "lost", "s"]
    verdict = [_verdict(every[AUTO])] if every[AUTO] else []
    return "\n".join([markdown(columns, rows), *failures, *verdict])


def _row(kernel: str, way: str, chosen: list[Row]) -> list[str]:
    kept = [row["kept"] for row in chosen]
    cells = [
        kernel,
        way,
        str(len(chosen)),
        f"{statistics.mean(kept):.3f}",
        f"{min(kept):.3f}",
    ]
    # Only the decorator's choices were measured on the way, and promised to lose little.
    if "measured" not in chosen[0]:
        return [*cells, "", "", f"{1 - statistics.mean(kept):.3f}", ""]
    return [
        *cells,
        f"{statistics.mean(row['measured'] for row in chosen):.1f}",
        f"{statistics.mean(row['promised'] for row in chosen):.3f}",
        f"{1 - statistics.mean(kept):.3f}",
        f"{statistics.mean(row['seconds'] for row in chosen):.1f}",
    ]


def _verdict(chosen: list[Row]) -> str:
    """Return whether "auto" reaches its goals, with the figures."""
    kept = [row["kept"] for row in chosen]
    lost = 1 - statistics.mean(kept)
    promised = statistics.mean(row["promised"] for row in chosen)
    reached = {
        f"mean {statistics.mean(kept):.3f} [{MEAN_GOAL}]": statistics.mean(kept) >= MEAN_GOAL,
        f"worst {min(kept):.3f} [{WORST_GOAL}]": min(kept) >= WORST_GOAL,
        f"lost {lost:.3f} of {promised:.3f} promised [{LOSS_GOAL} ×]": lost <= LOSS_GOAL * promised,
    }
    texts = [f"{text} {'met' if is_met else 'NOT met'}" for text, is_met in reached.items()]
    return f"auto, cold: {'; '.join(texts)}"
