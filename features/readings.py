"""What an unknown kernel may be, by the names of its sizes.

A stranger's table has columns such as ``rows``, ``num_tokens`` or ``isl``. Such names are hints. A
`Template` lists the names that a table may give to the sizes of a family; if the table has one for
each size, the family with these columns is a `Reading` of the table. There may be several, because
``n`` or ``h`` is a size of many families. Which of them is right, if any, is decided by the runs
(`foretune.models.chosen_reading`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.family import Cells, Cost, Family, Quantity
from foretune.features.reading_templates import TEMPLATES, TEXTS, Template
from foretune.registry import load


@dataclass(frozen=True)
class Reading:
    """A family, and which columns are its sizes.

    ``columns`` maps sizes and settings of the family to columns of the table.
    """

    template: Template
    columns: Mapping[str, str]

    def __str__(self) -> str:
        """Return the reading in words: ``read as a matrix product: M = rows, …``."""
        pairs = [f"{size} = {column.partition('.')[2]}" for size, column in self.columns.items()]
        return f"read as {self.template.called}: {', '.join(pairs)}"


def possible_readings(runs: pd.DataFrame) -> list[Reading]:
    """Return the readings whose sizes all have a name in ``runs``."""
    # A size is one of the problem: a column of the configuration counts only if no column of the
    # problem has its name.
    column_of_name: dict[str, str] = {}
    for column in [*columns_of(runs, "problem"), *columns_of(runs, "config")]:
        name = column.partition(".")[2].lower()
        column_of_name.setdefault(name, column)
    are_numbers = {
        column: pd.api.types.is_numeric_dtype(runs[column]) for column in column_of_name.values()
    }

    readings = []
    for template in TEMPLATES:
        # Every size needs a column of numbers.
        columns = _named_columns(template.sizes, column_of_name)
        has_all_sizes = len(columns) == len(template.sizes)
        if not has_all_sizes or not all(are_numbers[column] for column in columns.values()):
            continue

        # A name of an optional size may stand for something else: its texts are no sizes.
        unused = {
            n: column for n, column in column_of_name.items() if column not in columns.values()
        }
        others = _named_columns({**template.optional, **template.settings}, unused)
        for size, column in others.items():
            if size in TEXTS or are_numbers[column]:
                columns[size] = column
        readings.append(Reading(template, columns))
    return readings


def _named_columns(
    names_of_size: Mapping[str, Sequence[str]], column_of_name: Mapping[str, str]
) -> dict[str, str]:
    """Return the column of each size that has one; see `Template` for what comes first."""
    columns: dict[str, str] = {}
    for size, names in names_of_size.items():
        candidates = [column_of_name[name] for name in names if name in column_of_name]
        unused = [column for column in candidates if column not in columns.values()]
        if unused:
            columns[size] = unused[0]
    return columns


class RenamedFamily(Family):
    """A family whose sizes have other names in the table."""

    def __init__(self, name: str, reading: Reading) -> None:
        self.name = name
        self.reading = reading
        self.inner: Family = load("families", reading.template.family)()

    @cached_property
    def source_hash(self) -> str:
        """Hash of the family's code."""
        return self.inner.source_hash

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return the work of one launch."""
        return self.inner.cost(*self._renamed(problem, config))

    def launch_parts_ms(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return the time of one launch by each limit alone."""
        return self.inner.launch_parts_ms(*self._renamed(problem, config), device)

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return the family's features."""
        return self.inner.derived(*self._renamed(problem, config), device)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        template = self.reading.template
        return {"family": template.family, "columns": dict(self.reading.columns)}

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> Self:
        """Return the family that `to_json` wrote."""
        template = next(t for t in TEMPLATES if t.family == data["family"])
        return cls(name, Reading(template, dict(data["columns"])))

    def _renamed(self, problem: Cells, config: Cells) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return problem and configuration with the family's names, beside other columns.

        A size becomes one of the problem, a setting one of the configuration, wherever the table
        has it.
        """
        column_of_size = self.reading.columns
        renamed_columns = set(column_of_size.values())
        renamed_problem = {
            name: cells
            for name, cells in problem.items()
            if f"problem.{name}" not in renamed_columns
        }
        renamed_config = {
            name: cells for name, cells in config.items() if f"config.{name}" not in renamed_columns
        }
        for size, column in column_of_size.items():
            group, _, name = column.partition(".")
            cells = problem[name] if group == "problem" else config[name]
            if size in self.reading.template.settings:
                renamed_config[size] = cells
            else:
                renamed_problem[size] = cells
        return renamed_problem, renamed_config
