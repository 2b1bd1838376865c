"""What the columns of anybody's table are: sizes, configuration, results, or numbers of rows.

A stranger's table has one row per run, and columns of any names. Only names that mean the same
everywhere are read, and one line tells how (`ColumnRoles.explained`). A column that may be a result
of the run, without such a name, is asked for: a predictor that learns from results is of no use
before the run.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.decimal_marks import POINT, plain_number
from foretune.datasets.schema import is_run_column
from foretune.datasets.time_units import is_other_time, names_the_time_of_a_run, words_of
from foretune.errors import UsageError

DEVICE_NAMES = {
    *("device", "gpu", "device_name", "gpu_name", "gpu_model", "hardware", "accelerator"),
}
"""Columns, in lower case, that name the device of each row, if they hold texts."""

ROW_NUMBER_NAMES = {
    *("", "unnamed: 0", "index", "idx", "id", "row", "row_id", "#", "no", "nr"),
    *("run", "run_id", "trial", "trial_id", "rep", "repeat", "repetition"),
    *("timestamp", "date", "datetime"),
}
"""Columns, in lower case, that number rows or repeats."""

RESULT_WORDS = {
    *("tflops", "gflops", "mflops", "tflop", "gflop", "tops", "gops", "mfu"),
    *("gbps", "tbps", "gbs", "mbps", "bandwidth", "throughput", "tput", "qps"),
    *("speedup", "efficiency", "util", "utilization", "memutil", "gpuutil"),
    *("temp", "temperature", "clk", "memclk", "smclk", "freq", "frequency"),
    *("std", "stddev", "stdev", "variance", "energy", "joule", "joules"),
    *("error", "err", "rmse", "mse", "maxdiff"),
    *("sol", "roofline"),
}
"""Words in names of columns that hold what a run gave, beside its time."""
UNIT_WORDS = {"unit", "units"}
"""Words in names of columns of texts that say in which unit a result is."""
RATE_ENDINGS = ("/s", "/sec", "_per_s", "_per_sec", "per_second")
"""Ends of names of such columns, in lower case."""

RATE_WORD = re.compile(r"(?<![a-z])[kmgtp](fl)?ops?(?![a-z])")
"""A rate of operations in lower case: mixed case, like GFLOPs, hides it among words."""
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
"""A day, or a moment, of ISO 8601: it says when a run was, and nothing about it."""

MEASURING_WORDS = {"iterations", "iters", "warmup", "repeats", "repetitions", "reps", "samples"}
"""Words of columns that may say how a run was measured, or how much it had to do."""

CONFIGURATION_WORDS = {
    *("kernel", "op", "operator", "algo", "algorithm", "variant", "implementation", "impl"),
    *("backend", "library", "lib", "solver", "provider", "version"),
    *("block", "blocks", "blocksize", "tile", "tiles", "tilesize", "warp", "warps"),
    *("stage", "stages", "unroll", "vec", "vector", "vectorize", "threads", "nthreads"),
    *("splitk", "swizzle", "schedule", "cluster", "waves", "pipeline", "pipelines"),
}
"""Words in names of columns that hold how a kernel was built or launched."""
CONFIGURATION_NAMES = {
    *("name", "bm", "bn", "bk", "split_k", "group_m", "layout", "alpha", "beta"),
}
"""The same, as whole names in lower case."""

OUTER_CONFIGURATION = {
    *("config", "cfg", "configuration", "tunables", "knobs", "launch", "launch_params"),
}
OUTER_SIZES = {"problem", "problem_size", "shape", "shapes", "size", "sizes", "dims", "dimensions"}
"""Names of objects in JSON, in lower case, that tell what is in them: ``cfg.BM``, ``shape.M``."""

POWER_WORDS = {"power", "watt", "watts"}
"""Words in names of columns with a power."""
OTHER_POWERS = {"limit", "cap", "tdp", "idle", "max", "min", "peak", "state", "mode"}
"""Words in names of columns with another power than that of the run."""
MW = "mw"
"""The unit in the name of a column of milliwatts."""
MAX_WATTS = 5000.0
"""No board draws more: such numbers have another unit."""

MIN_ROWS = 20
"""Rows of a table in which a column of fractions may be a result."""
MIN_DISTINCT_SHARE = 0.9
"""Such a column may be one if it has another fraction in nearly every row."""


class Role(Enum):
    """What a column is."""

    SIZE = "size"
    CONFIGURATION = "configuration"
    RESULT = "result"
    ROW_NUMBER = "row number"
    DEVICE = "device"
    POWER = "power"
    DOUBTFUL = "doubtful"
    """A result, or part of the problem or the configuration."""
    RUN_COLUMN = "run column"
    """A column with the name of a run table's column."""


@dataclass(frozen=True)
class ColumnRoles:
    """The columns of a table by what they are.

    Attributes:
        sizes: columns of the problem.
        configuration: columns of how the kernel was built or launched.
        left_out: results and numbers of rows.
        run_columns: columns with the name of a run table's column, which they are.
        doubtful: results, or part of the problem or the configuration.
        device: the column that names each row's device; None if there is none.
        power: the column with the power of each run; None if there is none.
        texts: sizes that are texts though they begin like numbers -> one of them.
    """

    sizes: list[str]
    configuration: list[str]
    left_out: list[str]
    run_columns: list[str]
    doubtful: list[str]
    device: str | None
    power: str | None
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def power_source(self) -> str:
        """The expression for the watts; needs a column of power."""
        assert self.power is not None
        return f"{self.power}*0.001" if _is_in_mw(self.power) else self.power

    def require_no_doubt(self) -> None:
        """Raise UsageError for a doubtful column."""
        for column in self.doubtful:
            raise UsageError(
                f"column {column!r} may be a result of the runs, or part of the problem or the "
                f"configuration: --ignore {column} leaves it out, --sizes takes it, or --map "
                f"config.{column}={column}"
            )

    @property
    def explained(self) -> str:
        """One line on how the columns were read; empty if all are named as in a run table."""
        parts = []
        if self.sizes:
            parts.append(f"sizes {', '.join(self.sizes)}")
        if self.configuration:
            parts.append(f"configuration {', '.join(self.configuration)}")
        if self.device is not None:
            parts.append(f"devices from {self.device}")
        if self.power is not None:
            unit = "mW" if _is_in_mw(self.power) else "W"
            parts.append(f"power in {unit} from {self.power}")
        if self.left_out:
            parts.append(f"left out {', '.join(self.left_out)}")
        for column, cell in self.texts.items():
            parts.append(f"{column} as texts, like {cell!r}: numbers would tell what lies between")
        if parts and self.run_columns:
            parts.append(f"as named {', '.join(self.run_columns)}")
        return "; ".join(parts)


def column_roles(
    table: pd.DataFrame, *, sizes: Collection[str] = (), taken: Collection[str] = ()
) -> ColumnRoles:
    """Return what the columns of ``table`` are, by their names as texts.

    ``sizes`` are those of the problem, if the user names them: then no other column is one. Columns
    ``taken`` for something else have no role. Raises UsageError if several columns may be the
    device or the power, or the power's unit is unknown.
    """
    table = table.rename(columns=str)
    columns: dict[Role, list[str]] = {role: [] for role in Role}
    for column in table.columns:
        if column in sizes:
            columns[Role.SIZE].append(column)
        elif column not in taken:
            role = _role(column, table[column])
            if role is Role.SIZE and sizes:
                role = Role.CONFIGURATION
            columns[role].append(column)

    # A run table's own column of power counts more than others.
    left_out = [*columns[Role.RESULT], *columns[Role.ROW_NUMBER]]
    if "power_w" in table:
        power = None
        left_out += columns[Role.POWER]
    else:
        power = _power(table, columns[Role.POWER])
    return ColumnRoles(
        sizes=columns[Role.SIZE],
        configuration=columns[Role.CONFIGURATION],
        left_out=left_out,
        run_columns=columns[Role.RUN_COLUMN],
        doubtful=columns[Role.DOUBTFUL],
        device=_only(columns[Role.DEVICE], "device"),
        power=power,
        texts=_texts_like_numbers(table[columns[Role.SIZE]]),
    )


def _texts_like_numbers(sizes: pd.DataFrame) -> dict[str, str]:
    """Return the columns of texts that begin like numbers (``64KiB``, ``1,00,000``), with one."""
    found = {}
    for name, values in sizes.items():
        if pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
            continue
        cells = [cell for cell in values.dropna().unique() if str(cell)[:1].isdigit()]
        unread = [cell for cell in cells if plain_number(str(cell), POINT) is None]
        if unread:
            found[str(name)] = str(unread[0])
    return found


def names_a_result(column: str) -> bool:
    """Whether a name says that a column holds what a run gave, beside its time."""
    name = column.strip().lower()
    is_rate = name.endswith(RATE_ENDINGS) or RATE_WORD.search(name) is not None
    return is_rate or not words_of(column).isdisjoint(RESULT_WORDS)


def _role(column: str, values: "pd.Series[Any]") -> Role:
    """Return what a column's name and values say: the role of the first rule that holds."""
    name = column.strip().lower()
    words = words_of(column)
    is_number = pd.api.types.is_numeric_dtype(values)

    # 1. Whole names that mean one thing. Devices come first: ``device`` is also a column of run
    # tables, but numbers in it only count the devices of a machine. Of several kernels in a table,
    # ``kernel`` is configuration.
    if not is_number and name in DEVICE_NAMES:
        return Role.DEVICE
    if name in ROW_NUMBER_NAMES or _are_dates(values):
        return Role.ROW_NUMBER
    if is_run_column(column) and column != "kernel":
        return Role.RUN_COLUMN

    # 2. What a run gave. ``kernel_time`` and ``tile_power`` are results, though they have a word of
    # the configuration. The column of the run's time was taken before: any other time is a result.
    if is_number and words & POWER_WORDS and not words & OTHER_POWERS:
        return Role.POWER
    is_time = is_other_time(column) or names_the_time_of_a_run(column)
    # Numbers of units, as of a layer, are sizes.
    is_unit = not is_number and bool(words & UNIT_WORDS)
    if names_a_result(column) or is_time or is_unit:
        return Role.RESULT
    if is_number and _may_be_result(words, values):
        return Role.DOUBTFUL

    # 3. What was run. Without a word of the configuration, a column is a size: sizes have any name.
    outer, _, inner = name.rpartition(".")
    outer_names = set(outer.split("."))
    if outer_names & OUTER_SIZES:
        return Role.SIZE
    if outer_names & OUTER_CONFIGURATION or inner in CONFIGURATION_NAMES:
        return Role.CONFIGURATION
    if words & CONFIGURATION_WORDS or name in CONFIGURATION_NAMES:
        return Role.CONFIGURATION
    return Role.SIZE


def _are_dates(values: "pd.Series[Any]") -> bool:
    """Whether all cells are days or moments."""
    if pd.api.types.is_datetime64_any_dtype(values):
        return True
    cells = set(values.dropna().unique())
    return bool(cells) and all(isinstance(c, str) and DATE.fullmatch(c.strip()) for c in cells)


def _may_be_result(words: set[str], values: "pd.Series[Any]") -> bool:
    """Whether numbers may be what a run gave, or say how it was measured."""
    numbers = values.dropna().to_numpy(dtype=float)
    n_distinct = len(np.unique(numbers))
    if words & MEASURING_WORDS:
        return n_distinct > 1
    has_fractions = bool((numbers != np.round(numbers)).any())
    is_distinct = n_distinct >= MIN_DISTINCT_SHARE * len(numbers)
    return has_fractions and is_distinct and len(numbers) >= MIN_ROWS


def _only(columns: list[str], what: str) -> str | None:
    """Return the one column, if there is one; UsageError if there are several."""
    if len(columns) > 1:
        raise UsageError(
            f"columns {', '.join(columns)} may each be the {what}: --ignore the others"
        )
    return columns[0] if columns else None


def _power(table: pd.DataFrame, columns: list[str]) -> str | None:
    """Return the column of each run's power; UsageError if its unit is neither W nor mW."""
    column = _only(columns, "power")
    if column is None:
        return None
    largest = float(table[column].max())
    if largest > MAX_WATTS and not _is_in_mw(column):
        raise UsageError(
            f"column {column!r} has values up to {largest:g}, which are no watts: give --map "
            f"power_w={column}*FACTOR, or --ignore {column}"
        )
    return column


def _is_in_mw(column: str) -> bool:
    return MW in words_of(column)
