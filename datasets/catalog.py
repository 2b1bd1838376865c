"""Run tables that come with Foretune: measured by this project, each with a card that says how.

A table is ``shipped/NAME.parquet``, its card ``shipped/NAME.json`` beside it. What the rows tell
(how many there are, their columns) is read from the table, so that no card can contradict it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import RunTableError, UnknownName

if TYPE_CHECKING:
    import pandas as pd

SHIPPED = Path(__file__).parent / "shipped"
_READ = ("rows", "columns")


@dataclass(frozen=True)
class DatasetCard:
    """What one must know of a table to use it.

    Attributes:
        name: that `load` takes.
        device: as in the table's ``device`` column.
        architecture: of the device, e.g. ``x86_64+avx512``, ``sm_90``.
        specs: the device's descriptor (`foretune.device.SPECS`).
        system: operating system, driver and versions that the times depend on.
        began: ISO time of the first row.
        ended: ISO time of the last row.
        protocol: how it was measured.
        command: what measures it again.
        licence: of the rows.
        kernels: names, each with what identifies the code that was measured.
        provisional: why the rows must not be relied on yet; empty if they may be.
        rows: of the table.
        columns: of the table.
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

    def save(self, folder: Path) -> None:
        """Write the card beside its table in ``folder``; rows and columns are the table's to tell.

        Raises:
            OSError: it cannot be written.
        """
        fields = {name: value for name, value in asdict(self).items() if name not in _READ}
        text = json.dumps(fields, indent=1, ensure_ascii=False) + "\n"
        (folder / f"{self.name}.json").write_text(text, encoding="utf-8")


def shipped(folder: Path = SHIPPED) -> list[str]:
    """Return the names of the tables that `load` can read.

    Args:
        folder: where they lie.
    """
    return sorted(p.stem for p in folder.glob("*.parquet") if p.with_suffix(".json").exists())


def load(name: str, folder: Path = SHIPPED) -> "pd.DataFrame":
    """Return a table that came with Foretune, a run table like any other.

    Args:
        name: one of `shipped`.
        folder: where they lie.

    Raises:
        UnknownName: there is no such table; the message offers the nearest.
        RunTableError: the file is damaged.
    """
    from foretune.datasets.runs import read_runs

    return read_runs(table_path(name, folder))


def card(name: str, folder: Path = SHIPPED) -> DatasetCard:
    """Return what is known of a table that came with Foretune.

    Args:
        name: one of `shipped`.
        folder: where they lie.

    Raises:
        UnknownName: there is no such table; the message offers the nearest.
        RunTableError: card or table are damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = table_path(name, folder)
    try:
        fields: dict[str, Any] = json.loads(table.with_suffix(".json").read_text(encoding="utf-8"))
        footer = pq.read_metadata(table)
        return DatasetCard(
            **fields, rows=footer.num_rows, columns=tuple(pq.read_schema(table).names)
        )
    except (OSError, ValueError, TypeError, pa.ArrowException) as e:
        reason = str(e).partition("\n")[0]
        raise RunTableError(
            f"the card of {name!r} cannot be read ({reason}): install Foretune again"
        ) from e


def table_path(name: str, folder: Path = SHIPPED) -> Path:
    """Return the file of a table that came with Foretune.

    Raises:
        UnknownName: there is no such table.
    """
    if name not in (known := shipped(folder)):
        raise UnknownName("data set", name, known)
    return folder / f"{name}.parquet"
