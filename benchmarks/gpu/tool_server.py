"""Item of `tools.py`: a server with FORETUNE_TRITON, and its warm-up, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from smoke_rows import Run

ENGINE = Path(__file__).resolve().parent / "tool_engine.py"
BUDGET = 4
LIMIT_S = 60.0
ERROR_LIMIT = 1e-2
"""Allowed relative error of bfloat16, in the 2-norm."""
NOISE = 0.03
"""By how much a choice's time may exceed the default's in another process's measurements."""


class Engine:
    """A process of the engine, which waits for its turn."""

    def __init__(self, run: Run, *command: str, **variables: str) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FORETUNE_")
        }
        environment |= {
            "FORETUNE_STORE": str(run.store("served")),
            "FORETUNE_CACHE": os.environ.get("FORETUNE_CACHE", str(run.folder / "cache")),
        }
        replay = ["--replay", run.driver.device_interface.device.name] if run.driver else []
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(ENGINE), *command, *replay],
            env={**environment, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self) -> dict[str, Any]:
        """Let the process act, and return what it prints."""
        try:
            out, err = self._process.communicate("go\n", timeout=LIMIT_S)
        finally:
            self._process.kill()
        if self._process.returncode:
            raise RuntimeError(f"the engine's process failed: {err[-1500:]}")
        answer: dict[str, Any] = json.loads(out.splitlines()[-1])
        return answer


def server(run: Run) -> None:
    """Serve and record, warm up, serve again, and compare with the whole list."""
    calls = run.folder / "calls.jsonl"
    budget = {"FORETUNE_TRITON": str(BUDGET)}
    # All import at the same time, and act one after the other.
    first = Engine(run, "serve", FORETUNE_RECORD_CALLS=str(calls), **budget)
    warming = Engine(run, "warm-up", str(calls), **budget)
    second = Engine(run, "serve", **budget)
    stock = Engine(run, "stock")

    cold = first.answer()
    check_requests(run, "before the warm-up", cold)
    warmed = warming.answer()["calls"]
    measured = [call["measured"] for call in warmed]
    run.check(
        "warm-up",
        len(warmed) == len(cold["chosen"]) and max(measured) <= BUDGET < cold["listed"],
        f"{measured} of {cold['listed']} measured for each recorded problem",
    )
    warm = second.answer()
    check_requests(run, "after the warm-up", warm)

    listed = stock.answer()
    shares = []
    for times, choice in zip(listed["times"], warm["chosen"], strict=True):
        known = [time for time in times.values() if time is not None]
        shares.append((min(known) / times[listed["default"]], min(known) / times[choice]))
    texts = [f"{default:.3f} → {choice:.3f}" for default, choice in shares]
    run.check(
        "share of the best of the whole list, default → choice",
        all(choice >= (1 - NOISE) * default for default, choice in shares),
        ", ".join(texts),
        shares=shares,
        times=listed["times"],
        chosen=warm["chosen"],
    )


def check_requests(run: Run, what: str, served: dict[str, Any]) -> None:
    """Check that each request launched its kernel once, and was right."""
    launches = served["launches"]
    error = max(served["errors"], default=0.0)
    is_patched = served["tuner"] == "foretune"
    run.check(
        what,
        is_patched and set(launches) == {1} and error <= ERROR_LIMIT,
        f"{served['kernel']}, plugin {served['plugin']}: {len(launches)} requests launched "
        f"{sum(launches)} kernels, largest error {error:.2g}"
        + ("" if is_patched else "; ITS TUNER IS NOT FORETUNE'S"),
    )
