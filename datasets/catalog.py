"""Run tables shipped with Foretune, each with a card that describes how it was measured.

A table is ``shipped/NAME.parquet``, its card ``shipped/NAME.json``. Row and column counts are read
from the table, so the card cannot contradict it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import RunTableError, require_known

if TYPE_CHECKING:
    import pandas as pd

SHIPPED = Path(__file__).parent / "shipped"
"""Folder of the tables and their cards."""
_READ_FROM_TABLE = ("rows", "columns")
"""Fields of a card that are not in its file."""


@dataclass(frozen=True)
class DatasetCard:
    """Description of a shipped table, which `load` takes by ``name``.

    ``system`` has operating system, driver and versions that affect the times; ``began`` and
    ``ended`` are the ISO times of the first and the last row; ``protocol`` describes the
    measurement, ``command`` repeats it; ``kernels`` maps names to hashes of the measured code;
    ``provisional`` is the reason if the rows are provisional.
    """

    name: str
    device: str
    architecture: str
    specs: Mapping[str, float]
    system: str
    began: str
    ended: str
    protocol: str
    command: str
    licence: str
    kernels: Mapping[str, str]
    provisional: str = ""
    rows: int = 0
    columns: tuple[str, ...] = ()


def shipped(folder: Path = SHIPPED) -> list[str]:
    """Return the names that `load` accepts."""
    return sorted(p.stem for p in folder.glob("*.parquet") if p.with_suffix(".json").exists())


def load(name: str, folder: Path = SHIPPED) -> "pd.DataFrame":
    """Return a shipped run table; raise UnknownName, or RunTableError if the file is damaged."""
    from foretune.datasets.runs import read_runs

    return read_runs(table_path(name, folder))


def card(name: str, folder: Path = SHIPPED) -> DatasetCard:
    """Return the card of a shipped table; raise UnknownName, or RunTableError if it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = table_path(name, folder)
    try:
        fields: dict[str, Any] = json.loads(table.with_suffix(".json").read_text(encoding="utf-8"))
        return DatasetCard(
            **fields,
            rows=pq.read_metadata(table).num_rows,
            columns=tuple(pq.read_schema(table).names),
        )
    except (OSError, ValueError, TypeError, pa.ArrowException) as e:
        reason = str(e).partition("\n")[0]
        raise RunTableError(
            f"the card of {name!r} cannot be read ({reason}): install Foretune again"
        ) from e


def card_text(dataset_card: DatasetCard) -> str:
    """Return the card as JSON, without what `card` reads from the table."""
    fields = {
        name: value for name, value in asdict(dataset_card).items() if name not in _READ_FROM_TABLE
    }
    return json.dumps(fields, indent=1, ensure_ascii=False) + "\n"


def table_path(name: str, folder: Path = SHIPPED) -> Path:
    """Return the file of a shipped table, or raise `UnknownName`."""
    require_known("data set", name, shipped(folder))
    return folder / f"{name}.parquet"
