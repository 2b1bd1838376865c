"""The recorded spaces of a folder, as the benchmarks of searchers use them."""

import json
from pathlib import Path

from foretune.search.replay.recorded import RecordedSpace, read_spaces


def complete_spaces(folder: Path, only: str = "") -> list[RecordedSpace]:
    """Return the spaces of ``folder`` whose table's name holds one of the texts in ``only``.

    Those that ``manifest.json``, if there is one, calls incomplete are left out.
    """
    tables = sorted(folder.glob("*.parquet"))
    tables = [t for t in tables if any(text in t.stem for text in only.split(","))]
    found = [s for t in tables if _complete(t) for s in read_spaces(t)]
    if not found:
        raise SystemExit(f"no complete space in {folder}")
    return found


def _complete(table: Path) -> bool:
    manifest = table.with_name("manifest.json")
    if not manifest.exists():
        return True
    known = json.loads(manifest.read_text(encoding="utf-8"))["spaces"]
    return all(entry["complete"] for entry in known if entry["file"] == table.name)
