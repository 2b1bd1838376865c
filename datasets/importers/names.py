"""Names of run-table columns, for those who type them."""

from foretune.datasets.schema import NUMBER_GROUPS, NUMBERS, PLAIN_GROUPS, TEXT

GROUPS = (*PLAIN_GROUPS, *NUMBER_GROUPS)


def is_run_column(column: str) -> bool:
    """Return whether a run table may have a column of that name."""
    group, dot, name = column.partition(".")
    return column in (*NUMBERS, *TEXT) or (bool(dot and name) and f"{group}." in GROUPS)
