"""Columns of imported tables, rows from records, and names of formats and systems."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.plain_tables import typed_runs
from foretune.device import canonical_name
from foretune.support.files import require_cells
from foretune.values import parse_value


def constant(text: str, rows: int) -> "pd.Series[str]":
    """Return a constant text column (dictionary-encoded)."""
    codes = np.zeros(rows, dtype=np.int8)
    return pd.Series(pd.Categorical.from_codes(codes, [text]))


def relabel(values: "pd.Series[str]", name: Callable[[str], str]) -> "pd.Series[str]":
    """Apply ``name`` to each distinct value of a text column."""
    codes, distinct = pd.factorize(values)
    return _named(codes, [name(str(text)) for text in distinct])


def _named(codes: np.ndarray, names: Sequence[str]) -> "pd.Series[str]":
    """Return the name of every code; a gap where it is -1."""
    number, categories = pd.factorize(np.array([*names, None], dtype=object), sort=True)
    return pd.Series(pd.Categorical.from_codes(number[codes], categories.tolist()))


def as_categories(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` with text columns as categories, to save memory."""
    texts = [c for c in rows.columns if _is_text(rows[c])]
    return rows.assign(**{c: rows[c].astype("category") for c in texts})


def _is_text(values: "pd.Series[object]") -> bool:
    if isinstance(values.dtype, pd.StringDtype):
        return True
    if values.dtype != object:
        return False
    return pd.api.types.infer_dtype(values, skipna=True) == "string"


def concatenated_rows(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate tables; text stays categorical, missing columns become gaps."""
    # Give a column the same categories in every table: those of all.
    texts: dict[str, set[str]] = {}
    for table in tables:
        for column, values in table.items():
            if isinstance(values.dtype, pd.CategoricalDtype):
                texts.setdefault(str(column), set()).update(values.cat.categories)
    types = {column: pd.CategoricalDtype(sorted(known)) for column, known in texts.items()}
    same = [
        table.astype(
            {
                column: dtype
                for column, dtype in types.items()
                if column in table and table[column].dtype.name == "category"
            }
        )
        for table in tables
    ]
    # pandas 2.3 warns of columns without values; none gets lost.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return pd.concat(same, ignore_index=True)


def concatenated_text(left: "pd.Series[str]", right: "pd.Series[str]") -> "pd.Series[str]":
    """Join two text columns with a space."""
    pairs = pd.DataFrame({"left": left.astype(object), "right": right.astype(object)})
    codes = pairs.groupby(["left", "right"], sort=False, dropna=False).ngroup().to_numpy()
    is_first = ~pd.Series(codes).duplicated().to_numpy()
    joined = [
        " ".join(str(text) for text in pair if pd.notna(text))
        for pair in pairs[is_first].to_numpy()
    ]
    return _named(codes, joined)


_PROFILER_COUNTER = re.compile(r"[a-z0-9]+__\w")
"""Pattern of NVIDIA profiler counters, e.g. ``dram__bytes_read.sum``."""


def is_counter(name: str) -> bool:
    """Return whether ``name`` is a profiler counter."""
    return _PROFILER_COUNTER.match(name) is not None


def table_from_records(
    records: Iterable[Mapping[str, Any]], common: Mapping[str, str]
) -> pd.DataFrame:
    """Return records keyed by run-table columns as a table; ``common`` are texts of all rows."""
    listed = list(records)
    columns = len({column for record in listed for column in record})
    require_cells(len(listed) * columns, columns, 0)
    rows = pd.DataFrame(listed)
    if "time_ms_samples" in rows:
        # Gaps as Parquet returns them.
        samples = [s if isinstance(s, list) else None for s in rows["time_ms_samples"]]
        rows["time_ms_samples"] = pd.Series(samples, dtype=object)
    if rows.empty:
        return rows
    return as_categories(typed_runs(rows, common))


def as_number(text: Any) -> Any:
    """Parse numbers and booleans; return other values unchanged."""
    return parse_value(text) if isinstance(text, str) else text


CANONICAL_DTYPES = {
    other: name
    for name, others in {
        "fp16": "half float16 fp16 f16",
        "bf16": "bfloat16 bf16",
        "fp32": "float float32 fp32 f32 s",
        "fp64": "float64 double f64",
        "tf32": "tf32",
        "fp8": "fp8_e4m3 fe4m3 e4m3",
        "int8": "s8 sq",  # SmoothQuant: weights and activations
        "int4": "s4",
        "int32": "s32",
        "uint8": "u8",
    }.items()
    for other in others.split()
}
"""Another tool's name -> canonical name; unlisted names are kept."""

BYTES = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "int32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "uint8": 1.0,
    "int4": 0.5,
}
"""Canonical name -> bytes per element."""


def canonical_dtype(name: str) -> str:
    """Return the canonical name of a number format."""
    return CANONICAL_DTYPES.get(name.lower(), name.lower())


SYSTEMS = {
    "a30": "NVIDIA A30",
    "a40": "NVIDIA A40",
    "a100_sxm": "NVIDIA A100-SXM4-80GB",
    "a100_pcie": "NVIDIA A100 80GB PCIe",
    "b60": "Intel Arc Pro B60",
    "b200_sxm": "NVIDIA B200",
    "b300_sxm": "NVIDIA B300 SXM6 AC",
    "gb200": "NVIDIA GB200",
    "gb200_sxm": "NVIDIA GB200",
    "gb300": "NVIDIA GB300",
    "gb300_sxm": "NVIDIA GB300",
    "h100_pcie": "NVIDIA H100 PCIe",
    "h100_sxm": "NVIDIA H100 80GB HBM3",
    "h200_sxm": "NVIDIA H200",
    "l4": "NVIDIA L4",
    "l40s": "NVIDIA L40S",
    "rtx_pro_6000_server": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
}
"""System -> device name as reported by its driver."""


def device_of_system(system: str) -> str:
    """Return the system's device name; an unknown system keeps its name."""
    return SYSTEMS.get(system) or canonical_name(system)
