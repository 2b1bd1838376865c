"""CLBlast: results of its tuners, ``clblast_xgemm_1_32.json``, or its database of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import as_number, table_from_records
from foretune.datasets.importers.files import Request, WrongFile, read_json
from foretune.device import canonical_name

_WHAT = "a result of CLBlast's tuners"


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per configuration; times are milliseconds."""
    data = read_json(path, (), _WHAT)
    sections = data.get("sections", [data]) if isinstance(data, dict) else []
    records = []
    for section in sections:
        if not isinstance(section, dict) or not {"kernel_family", "results"} <= set(section):
            raise WrongFile(f"{path} is not {_WHAT}: expected kernel_family and results")
        same = _same_in_section(section, path, request)
        for result in section["results"]:
            values = result["parameters"]
            if not isinstance(values, dict):
                # The database keeps the names apart.
                values = dict(zip(section["parameter_names"], values, strict=True))
            config = {f"config.{name}": as_number(value) for name, value in values.items()}
            records.append({**same, **config, "time_ms": as_number(result["time"])})
    return table_from_records(records, {"source": f"clblast {path.name}", "environment": "CLBlast"})


def _same_in_section(section: Mapping[str, Any], path: Path, request: Request) -> dict[str, Any]:
    device = str(section.get("device") or section.get("clblast_device_name") or "").strip()
    sizes = {
        f"problem.{name.removeprefix('arg_')}": as_number(value)
        for name, value in section.items()
        if name.startswith("arg_")
    }
    return {
        "kernel": request.kernel or str(section.get("kernel") or section["kernel_family"]),
        "device": request.device or canonical_name(device) or request.given("device", path),
        "problem.precision": as_number(section.get("precision", "32")),
        **sizes,
    }
