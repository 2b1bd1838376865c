"""Reads CSV files with anybody's columns as run tables."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli.options import read_local_device
from foretune.device import Device, find_device_or_none
from foretune.errors import DataWarning, UsageError, require_known
from foretune.registry import get_kernel, registered
from foretune.values import Value, counted, parse_value

if TYPE_CHECKING:
    import pandas as pd

    from foretune.datasets.text_tables import Dialect
    from foretune.models.predictor import Predictor

KERNEL = "kernel"
"""The column of the kernel's name; of several kernels in one CSV file, it is configuration."""


@dataclass(frozen=True)
class CsvOptions:
    """What the user says about CSV files.

    Attributes:
        kernel: name of the kernel of files that name none; of several in a file, the one to take.
        sources: run-table column -> its source: a column, an expression, or ``=`` and a constant.
        sizes: the columns of the problem; the others are configuration.
        ignored: columns that are left out.
        device: name of the device of files that name none, or ``cpu``.
        separator, decimal: found if empty.
        finds_roles: whether columns get a role by their names, see `column_roles`.
    """

    kernel: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    sizes: Sequence[str] = ()
    ignored: Sequence[str] = ()
    device: str = ""
    separator: str = ""
    decimal: str = ""
    finds_roles: bool = False


def read_csv_file(
    file: Path, options: CsvOptions, predictor: "Predictor | None" = None
) -> "pd.DataFrame":
    """Return the rows of a CSV file; its columns are those that a ``predictor`` knows, if given.

    Says on stderr how the file was read. Raises RunTableError, UsageError, which name the option
    that settles what is unclear.
    """
    from foretune.datasets.importers import import_runs
    from foretune.datasets.importers.files import read_table
    from foretune.datasets.runs import with_specs_of

    constants, sources = split_constants(options.sources)
    dialect = text_dialect(options.separator, options.decimal)
    table = read_table(file, dialect=dialect).rename(columns=str)
    require_known("column", [*options.ignored, *options.sizes], table.columns)
    if predictor is not None:
        options = replace(options, sizes=options.sizes or _known_sizes(predictor, table))

    # Which columns are the time, what was run, and how it ended?
    mapping = _mapping(file, table, options, sources, fixed=constants, predictor=predictor)

    # The names of kernel and device, if no column has them.
    kernel = None
    if KERNEL not in mapping:
        kernel = options.kernel or kernel_name(file, mapping)
        if predictor is not None:
            kernel = predictor.kernel_name_
    device = None
    if "device" not in mapping and "device" not in constants:
        device = _device(options.device, predictor)
    elif options.device:
        raise UsageError(f"{file} names its devices: leave --device out")
    imported = import_runs(
        file,
        "generic",
        kernel=kernel,
        device=None if device is None else device.name,
        mapping=mapping,
        constants=constants,
        separator=dialect.separator,
        decimal=dialect.decimal,
    )
    for note in imported.notes:
        typer.echo(note, err=True)
    for reason, count in imported.rejected.items():
        left_out = f"{counted(count, 'row')} of {file} left out"
        warnings.warn(f"{left_out}: {reason}", DataWarning, stacklevel=2)
    if device is not None:
        return with_specs_of(imported.runs, device) if device.specs else imported.runs
    return _with_known_devices(imported.runs, predictor)


def split_constants(
    source_of_column: Mapping[str, str],
) -> tuple[dict[str, Value], dict[str, str]]:
    """Split ``--map`` into constants, written ``COLUMN==VALUE``, and sources of columns."""
    constants = {}
    sources = {}
    for column, source in source_of_column.items():
        if source.startswith("="):
            constants[column] = parse_value(source.removeprefix("="))
        else:
            sources[column] = source
    return constants, sources


def text_dialect(separator: str, decimal: str) -> "Dialect":
    r"""Return what the options say about text tables; a separator may be written ``\t``."""
    from foretune.datasets.importers import checked_dialect

    separator = "\t" if separator == "\\t" else separator
    return checked_dialect(separator or None, decimal or None)


def _mapping(
    file: Path,
    table: "pd.DataFrame",
    options: CsvOptions,
    sources: Mapping[str, str],
    *,
    fixed: Collection[str],
    predictor: "Predictor | None",
) -> dict[str, str]:
    """Return the source of every run-table column; ``fixed`` ones have one value in all rows."""
    from foretune.datasets.importers.generic import stated_status
    from foretune.datasets.plain_tables import is_used, run_columns

    given = dict(sources)
    columns = [column for column in table.columns if column not in options.ignored]
    if "time_ms" not in {*given, *fixed, *columns}:
        given["time_ms"] = _time_column(file, table[columns])
    if "status" not in given:
        # How a run ended is neither its problem nor its configuration.
        named_by_user = {"status", *options.sizes, *given.values()}
        status_columns = set(stated_status(table)) - named_by_user
        columns = [column for column in columns if column not in status_columns]
    if not options.finds_roles and predictor is None:
        return run_columns(columns, options.sizes, given)

    # Columns that have a role: by option, or in a predictor's training.
    trained_on = [] if predictor is None else _known_configuration(predictor, columns)
    not_sizes = [column for column in columns if column not in options.sizes]
    used = [column for column in not_sizes if is_used(column, given.values())]
    # Of several kernels one is taken, or which one it was is part of the configuration.
    has_kernels = KERNEL in columns and KERNEL not in trained_on and KERNEL not in fixed
    if has_kernels and (predictor or options.kernel or table[KERNEL].nunique() < 2):
        given.setdefault(KERNEL, KERNEL)
        used.append(KERNEL)

    # Names tell what the others are. What the user says counts more.
    mapping = _mapping_by_names(
        file,
        table[columns],
        sizes=options.sizes,
        used=used,
        trained_on=trained_on,
        may_doubt=predictor is not None,
    )
    for column in fixed:
        mapping.pop(column, None)
    return mapping | given


def _mapping_by_names(
    file: Path,
    table: "pd.DataFrame",
    *,
    sizes: Sequence[str],
    used: Sequence[str],
    trained_on: Sequence[str],
    may_doubt: bool,
) -> dict[str, str]:
    """Return the sources that the names of columns tell, besides those that are ``used``.

    ``trained_on`` were configuration in a predictor's training. Unless it ``may_doubt``, raises
    UsageError if names leave a doubt, and says how they were read.
    """
    from foretune.datasets.column_roles import column_roles
    from foretune.datasets.schema import is_run_column

    roles = column_roles(table, sizes=sizes, taken=[*used, *trained_on])
    if not may_doubt:
        roles.require_no_doubt()
        if roles.explained:
            typer.echo(f"{file}: {roles.explained}", err=True)

    # A run table's own columns keep their names.
    own_columns = [column for column in table.columns if is_run_column(column)]
    mapping = {column: column for column in own_columns if column not in (KERNEL, *used)}
    for column in roles.sizes:
        mapping[_run_column("problem", column)] = column
    for column in [*roles.configuration, *trained_on]:
        mapping[_run_column("config", column)] = column
    if roles.device is not None:
        mapping["device"] = roles.device
    if roles.power is not None:
        mapping["power_w"] = roles.power_source
    return mapping


def _run_column(group: str, column: str) -> str:
    from foretune.datasets.schema import is_run_column

    return column if is_run_column(column) and column != KERNEL else f"{group}.{column}"


def _known_sizes(predictor: "Predictor", table: "pd.DataFrame") -> list[str]:
    """Return the columns that were sizes of the problem in training."""
    return [column for column in table.columns if f"problem.{column}" in predictor.runs_]


def _known_configuration(predictor: "Predictor", columns: Sequence[str]) -> list[str]:
    """Return the columns that were configuration in training."""
    return [column for column in columns if f"config.{column}" in predictor.runs_]


def _time_column(file: Path, table: "pd.DataFrame") -> str:
    """Return the column of the time of a run; UsageError if none is, or its unit is unknown."""
    from foretune.datasets.file_contents import tool_of_columns
    from foretune.datasets.importers.generic import time_column
    from foretune.datasets.importers.row_times import time_hint

    found = time_column(table, file)
    if found is not None:
        return found
    tool = tool_of_columns(set(map(str, table.columns)))
    hint = f"it is {tool}" if tool else time_hint(table.columns)
    raise UsageError(f"{file} has no column time_ms: {hint}; there are {', '.join(table.columns)}")


def _device(name: str, predictor: "Predictor | None") -> Device:
    """Return the device of a file that names none; its specs are empty if it is unknown."""
    from foretune.datasets.plain_tables import UNNAMED

    if not name and predictor is not None:
        # As in training, if that was on one device.
        devices = predictor.runs_["device"].unique()
        return Device(str(devices[0]) if len(devices) == 1 else UNNAMED, "gpu")
    if not name:
        return Device(UNNAMED, "gpu")
    if name == "cpu" or ":" in name:
        return read_local_device(name)
    found = find_device_or_none(name)
    if found is None:
        typer.echo(f"device {name!r} is unknown here, and so are its rates", err=True)
    return found or Device(name, "gpu")


def _with_known_devices(runs: "pd.DataFrame", predictor: "Predictor | None") -> "pd.DataFrame":
    """Return runs with devices named as in the table of devices, or as the predictor does."""
    from foretune.datasets.importers.columns import relabel

    trained_on = set() if predictor is None else set(map(str, predictor.runs_["device"]))

    def known_name(name: str) -> str:
        found = None if name in trained_on else find_device_or_none(name)
        return name if found is None else found.name

    return runs.assign(device=relabel(runs["device"], known_name))


def kernel_name(file: Path, columns: Collection[str]) -> str:
    """Return the file's name, unless a kernel of ours has that name and other parameters."""
    from foretune.datasets.plain_tables import UNNAMED

    name = file.name.partition(".")[0]
    is_known = name in registered("families") or is_registered(name, columns)
    return name if is_known or name not in registered("kernels") else UNNAMED


def is_registered(kernel: str, columns: Collection[str]) -> bool:
    """Whether there is a kernel of this name, and run-table ``columns`` have its parameters."""
    if kernel not in registered("kernels"):
        return False
    found = get_kernel(kernel)
    sizes = {f"problem.{p.name}" for p in found.problem_parameters if p.default is None}
    space = found.space(found.training_problems(1)[0])
    knobs = {f"config.{name}" for name in space.names}
    return sizes | knobs <= set(columns)
