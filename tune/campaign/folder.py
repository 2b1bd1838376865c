"""A campaign's folder: what was asked for, and how far it is."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretune.replacing import replacing


class Folder:
    """A campaign's directory: what it was asked to do and how far it is."""

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        self.path = path
        self._state_path = path / "campaign.json"
        self.state: dict[str, Any] = {"request": dict(request), "seconds": 0.0, "results": {}}
        self.started = time.perf_counter()
        if self._state_path.exists():
            self.state = json.loads(self._state_path.read_text(encoding="utf-8"))
        self._seconds_before = float(self.state["seconds"])
        self.save()

    @property
    def runs(self) -> Path:
        """The run table."""
        return self.path / "runs.parquet"

    @property
    def predictor(self) -> Path:
        """The predictor's folder."""
        return self.path / "predictor"

    def save(self, **news: Any) -> None:
        """Take in ``news`` and write the state, all or nothing.

        Raises:
            OutputError: the directory cannot be written.
        """
        self.state |= news
        self.state["seconds"] = self._seconds_before + time.perf_counter() - self.started
        with replacing(self._state_path) as new:
            new.write_text(json.dumps(self.state, indent=1), encoding="utf-8")


def open_folder(out: Path, request: Mapping[str, Any]) -> Folder:
    """Return the newest unfinished campaign of the same request under ``out``, or a new one."""
    for path in sorted(out.glob(f"{request['kernel']}-*/campaign.json"), reverse=True):
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if state.get("request") == dict(request) and not state.get("finished"):
            return Folder(path.parent, request)
    taken = {p.name for p in out.glob(f"{request['kernel']}-*")} if out.exists() else set()
    number = next(n for n in range(1, 10**6) if f"{request['kernel']}-{n:03d}" not in taken)
    return Folder(out / f"{request['kernel']}-{number:03d}", request)
