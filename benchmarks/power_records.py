"""Operators whose power was measured, with the rates that they use: for `plan_power.py`.

Some rows are known not to be of their operator, see the docstring there: they are not ``sound``.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers.aiconfigurator import KERNELS, operation_of, read
from foretune.datasets.importers.files import Request
from foretune.features.roofline import row_limits_ms
from foretune.plan import find_system
from foretune.plan.cost.kinds import family_of
from foretune.plan.cost.power import METERED_SYSTEMS
from foretune.plan.cost.tables import OperatorTables
from foretune.plan.cost.times import OperatorTimer

SIZES = {
    "gemm": ["problem.M"],
    "attention_prefill": ["problem.batch", "problem.seq_len"],
    "attention_decode": ["problem.batch", "problem.kv_len"],
    "moe": ["problem.tokens"],
}
"""Kernel -> columns that say how much of a problem there is; its other sizes are the model's."""
USED = ["computing", "memory"]
"""Columns of the shares of the peak rates that are used."""
MIN_BANDWIDTH_SHARE = 0.5
"""Decode attention that uses less of the bandwidth has the power of earlier launches."""


def measured(folder: Path | None, watts: Path) -> dict[str, pd.DataFrame]:
    """Return run tables of operators whose power was measured, by kernel.

    Columns beside those of a run table: ``computing`` and ``memory``, shares of the peak rates in
    use; ``share`` of the board's limit that was drawn; ``awake``, what an awake GPU of the system
    draws of it; ``system``, its short name; ``sound``, whether the power is known to be of the
    operator.
    """
    files = [*(folder.rglob("*_perf.parquet") if folder else ()), *watts.glob("power_*.parquet")]
    tables = OperatorTables(folder) if folder else None
    tables_of_kernel: dict[str, list[pd.DataFrame]] = {}
    for path in files:
        kernel = KERNELS.get(operation_of(path) or "", "")
        if kernel not in SIZES:
            continue
        rows = read(path, Request())
        if "power_w" in rows:
            tables_of_kernel.setdefault(kernel, []).append(_with_shares(kernel, rows, tables))
    if not tables_of_kernel:
        raise SystemExit("no table with powers: install aiconfigurator-core or give --watts")
    return {
        kernel: pd.concat(tables_of_kernel[kernel], ignore_index=True)
        for kernel in sorted(tables_of_kernel)
    }


def _with_shares(kernel: str, rows: pd.DataFrame, tables: OperatorTables | None) -> pd.DataFrame:
    """Return the rows of one system with the columns that `measured` adds."""
    system = find_system(str(rows["device"].iloc[0]))
    texts = [name for name in rows if isinstance(rows[name].dtype, pd.CategoricalDtype)]
    plain = rows.astype(dict.fromkeys(texts, object))

    # Tables of power alone take their times from the newest tables.
    if plain["time_ms"].isna().all():
        backend = str(plain["config.backend"].iloc[0])
        timer = OperatorTimer(system.device, tables, system.name, backend)
        plain["time_ms"] = timer.times(plain).ms

    specs = {f"device.{name}": value for name, value in system.device.specs.items()}
    limits_ms = row_limits_ms(family_of(kernel), plain.assign(**specs))
    time_ms = plain["time_ms"].to_numpy(dtype=float)
    computing, memory = np.minimum(limits_ms / time_ms[:, None], 1.0).T
    return plain.assign(
        computing=computing,
        memory=memory,
        share=(plain["power_w"] / plain["device.power_limit_w"]).astype(float),
        awake=METERED_SYSTEMS[system.name][1],
        system=system.name,
        sound=_is_sound(kernel, plain, memory),
    )


def _is_sound(kernel: str, rows: pd.DataFrame, memory: np.ndarray) -> object:
    """Return which rows have the power of their operator."""
    if kernel == "gemm":
        return rows["config.format"] == "bf16"
    if kernel == "attention_decode":
        return memory >= MIN_BANDWIDTH_SHARE
    return True
