"""Triton's autotuning disk cache, ``KERNEL.autotune.json``.

``{"key": […], "configs_timings": [[{"kwargs": {…}, "num_warps": 4, …}, [median, p20, p80]], …]}``,
written if ``TRITON_CACHE_AUTOTUNING`` or ``cache_results`` is on. It names neither the device nor
the entries of the key.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import canonical_dtype, table_from_records
from foretune.datasets.importers.files import Request, read_json
from foretune.errors import UsageError
from foretune.measurement import Status

SUFFIX = ".autotune.json"
"""How the names of cache files end, after the kernel's."""
LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Launch options of a Triton configuration."""


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per timed configuration.

    Entries of the key become ``problem.key_0``, ``problem.key_1``, …, unless renamed with ``--map
    problem.M=key_0``. Triton writes an infinite time for a configuration that it could not compile
    or launch; it becomes a compile error.
    """
    data = read_json(path, ("key", "configs_timings"), "an autotuning cache of Triton")
    common = {
        "kernel": request.kernel or path.name.removesuffix(SUFFIX),
        "device": request.given("device", path),
        "source": f"triton {path.name}",
        "environment": "triton",
    }
    problem = _problem(data["key"], request.mapping)
    records = [
        {**problem, **_config(config), **_outcome(timing)}
        for config, timing in data["configs_timings"]
    ]
    return table_from_records(records, common)


def _problem(key: list[Any], mapping: Mapping[str, str]) -> dict[str, Any]:
    """Return the key's entries as columns of the problem, renamed by the user's mapping."""
    entries = {f"key_{i}": _entry(value) for i, value in enumerate(key)}
    column_of = {source: column for column, source in mapping.items()}
    for source, column in column_of.items():
        if source not in entries:
            raise UsageError(f"--map {column}={source}: the key has {', '.join(entries)}")
    return {column_of.get(entry, f"problem.{entry}"): value for entry, value in entries.items()}


def _entry(value: Any) -> Any:
    """Return an entry of the key, with canonical names for tensor types."""
    if isinstance(value, str) and value.startswith("torch."):
        return canonical_dtype(value.removeprefix("torch."))
    return value if isinstance(value, (bool, int, float)) else str(value)


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {f"config.{name}": value for name, value in config.get("kwargs", {}).items()}
    launch_options = {
        f"config.{name}": config[name] for name in LAUNCH if config.get(name) is not None
    }
    return {**parameters, **launch_options}


def _outcome(timing: Any) -> dict[str, Any]:
    time_ms = timing[0] if isinstance(timing, list) else timing
    if time_ms == math.inf:
        error = "Triton could not compile or launch it"
        return {"status": Status.COMPILE_ERROR.value, "error": error}
    return {"status": Status.OK.value, "time_ms": time_ms}
