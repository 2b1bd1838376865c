"""What an unknown kernel may be, by the names of its sizes.

A stranger's table has columns such as ``rows``, ``num_tokens`` or ``isl``. Such names are hints: if
a table has a name for each size of a family, the family is one `Reading` of the table. Which
reading is right, if any, is decided by the runs (`foretune.models.chosen_reading`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.family import Cells, Cost, Family, Quantity
from foretune.features.reading_templates import FORMAT_NAMES, TEMPLATES, Names, Template
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
        pairs = []
        for name, column in self.columns.items():
            _, _, short_name = column.partition(".")
            pairs.append(f"{name} = {short_name}")
        return f"read as {self.template.title}: {', '.join(pairs)}"


def possible_readings(runs: pd.DataFrame) -> list[Reading]:
    """Return the readings whose sizes all have a name in ``runs``."""
    # Names count without case; of equal names, the problem's column goes first.
    column_of_name: dict[str, str] = {}
    for column in [*columns_of(runs, "problem"), *columns_of(runs, "config")]:
        _, _, short_name = column.partition(".")
        column_of_name.setdefault(short_name.lower(), column)

    readings = []
    for template in TEMPLATES:
        columns = _matching_columns(template.sizes, column_of_name)
        is_complete = len(columns) == len(template.sizes)
        are_numbers = all(pd.api.types.is_numeric_dtype(runs[c]) for c in columns.values())
        if not is_complete or not are_numbers:
            continue

        # Optional sizes and settings are looked for among the other columns.
        others = {**template.optional, **template.settings, "format": FORMAT_NAMES}
        used = set(columns.values())
        unused = {name: column for name, column in column_of_name.items() if column not in used}
        columns |= _matching_columns(others, unused)
        readings.append(Reading(template, columns))
    return readings


def _matching_columns(names_of_size: Names, column_of_name: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each size that has one; a column stands for one size only."""
    columns: dict[str, str] = {}
    for size, names in names_of_size.items():
        for name in names:
            column = column_of_name.get(name)
            if column is not None and column not in columns.values():
                columns[size] = column
                break
    return columns


class ReadFamily(Family):
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
        """Return problem and configuration with the family's names, beside other columns."""
        columns = self.reading.columns
        used = set(columns.values())
        renamed_problem = {n: cells for n, cells in problem.items() if f"problem.{n}" not in used}
        renamed_config = {n: cells for n, cells in config.items() if f"config.{n}" not in used}

        # A table may have a size among its settings, or the other way around.
        settings = {*self.reading.template.settings, "format"}
        for name, column in columns.items():
            group, _, short_name = column.partition(".")
            table_cells = problem if group == "problem" else config
            family_cells = renamed_config if name in settings else renamed_problem
            family_cells[name] = table_cells[short_name]
        return renamed_problem, renamed_config
