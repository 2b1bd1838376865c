"""A campaign's folder and its saved state."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretune.errors import UsageError
from foretune.support.files import atomic_write, read_json, translate_read_errors

STATE = "campaign.json"
_STATE_TYPES: Mapping[str, Any] = {"request": dict, "results": dict, "seconds": (int, float)}


def read_state(path: Path) -> dict[str, Any]:
    """Return the request and progress of the campaign in ``path``, or raise UsageError."""
    says = "is not a campaign's folder ({}): give one like campaigns/…-001"
    with translate_read_errors(path, UsageError, says):
        state: dict[str, Any] = read_json(path / STATE)
        if wrong := [n for n, kind in _STATE_TYPES.items() if not isinstance(state[n], kind)]:
            raise ValueError(f"{wrong[0]!r} is {state[wrong[0]]!r}")
        if not 0 <= state["seconds"] < math.inf:
            raise ValueError(f"'seconds' is {state['seconds']}")
        return state


class CampaignFolder:
    """A campaign's folder with run table, predictor and state, which is saved after every step."""

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        self.path = path
        self.runs = path / "runs.parquet"
        self.predictor = path / "predictor"
        self._state_path = path / STATE
        self.state: dict[str, Any] = {"request": dict(request), "seconds": 0.0, "results": {}}
        self.started = time.perf_counter()
        self.is_continued = self._state_path.exists()
        if self.is_continued:
            self.state = read_state(path)
        self._earlier_seconds = float(self.state["seconds"])
        self.save()

    def save(self, **updates: Any) -> None:
        """Update and write the state; on failure the old file remains.

        Raises OutputError if it cannot be written.
        """
        self.state |= updates
        self.state["seconds"] = self._earlier_seconds + time.perf_counter() - self.started
        with atomic_write(self._state_path, private=True) as new:
            new.write_text(json.dumps(self.state, indent=1), encoding="utf-8")


def open_folder(out: Path, request: Mapping[str, Any]) -> CampaignFolder:
    """Return the newest unfinished campaign of the same request below ``out``, or a new one."""
    for path in sorted(out.glob(f"{request['kernel']}-*/{STATE}"), reverse=True):
        try:
            state = read_state(path.parent)
        except UsageError:
            continue
        if state.get("request") == dict(request) and not state.get("finished"):
            return CampaignFolder(path.parent, request)
    taken = {p.name for p in out.glob(f"{request['kernel']}-*")} if out.exists() else set()
    number = next(n for n in range(1, 10**6) if f"{request['kernel']}-{n:03d}" not in taken)
    return CampaignFolder(out / f"{request['kernel']}-{number:03d}", request)
