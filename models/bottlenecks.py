"""What limits runs: memory, compute, latency or occupancy."""

import re

import numpy as np
import pandas as pd

from foretune.device import find_device_or_none
from foretune.features.arrays import Rows
from foretune.features.roofline import part_names
from foretune.models.predictor import Predictor
from foretune.models.target_model import TargetModel

KINDS = ("memory", "compute", "latency", "occupancy")
SHARES = ("memory", "compute", "occupancy")
BOUND = 0.5
"""Share of the time from which a limit explains more of it than everything else."""
COUNTERS = {
    "memory": r"(gpu__(dram|compute_memory)_throughput|dram__|lts__|l1tex__).*\.pct_of_peak"
    r"|(DRAM|L2 Cache|L1/TEX Cache) Throughput$",
    "compute": r"sm__throughput.*\.pct|smsp?__.*(pipe_(?!lsu|tex)|issue_active).*\.pct"
    r"|Compute \(SM\) Throughput$",
    "occupancy": r"sm__warps_active\.avg\.pct|Achieved Occupancy$",
}
"""Share -> pattern of Nsight Compute's metrics in percent of a peak; the busiest unit counts."""
SHARED_MEMORY = "l1tex__data_pipe_lsu_wavefronts"
HALF_RATE = "sm_75"
"""Turing's shared memory moves 64 bytes per cycle, half the counter's peak (arXiv:1903.07486)."""
SHARE_OF_PART = {"operations": "compute", "cache": "memory"}
"""Part of a launch -> its share; other parts have their own name. Waiting has none."""


def name_bottlenecks(shares: pd.DataFrame) -> np.ndarray:
    """Return one of `KINDS` per row; "" if unknown.

    The roofline of Williams, Waterman and Patterson (CACM 52(4), 2009): a run is limited by memory
    or by arithmetic if that limit, the larger of the two, makes up at least half of its time.
    Otherwise it waits. By Little's law (Volkov, UCB/EECS-2016-143), throughput grows with the warps
    in flight until a unit is saturated. So if full occupancy would saturate a unit, the limit is
    occupancy, else latency. ``shares`` are of the peak, in columns `SHARES`; an unknown occupancy
    counts as full. If memory or arithmetic is unknown, only the other one can be named.
    """
    memory, compute, occupancy = (shares[name].to_numpy(float) for name in SHARES)
    busiest = np.fmax(memory, compute)
    limit = np.where(memory == busiest, "memory", "compute")
    full = busiest / np.where(occupancy > 0, occupancy, 1.0)
    waits = np.where(full >= BOUND, "occupancy", "latency")
    is_unknown = np.isnan(memory) | np.isnan(compute)
    return np.where(busiest >= BOUND, limit, np.where(is_unknown, "", waits))


def counted_shares(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the `SHARES` that Nsight Compute counted; NaN for missing counters."""
    shares = {}
    for share, pattern in COUNTERS.items():
        columns = [name for name in runs if re.match(rf"counter\.({pattern})", name)]
        percent = runs[columns].astype(float)
        for column in columns:
            if SHARED_MEMORY in column:
                percent[column] *= np.where(_is_half_rate(runs["device"]), 2.0, 1.0)
        shares[share] = percent.max(axis=1) / 100.0
    return pd.DataFrame(shares, runs.index)


def _is_half_rate(devices: pd.Series) -> np.ndarray:
    """Return which rows are of a device whose shared memory moves half the counter's peak."""
    half_rate = []
    for name in devices.unique():
        device = find_device_or_none(str(name))
        if device is not None and device.architecture == HALF_RATE:
            half_rate.append(name)
    return devices.isin(half_rate).to_numpy()


def bottlenecks(predictor: Predictor, rows: pd.DataFrame) -> pd.DataFrame:
    """Return what limits ``rows``: `SHARES`, ``bottleneck`` (of `KINDS`; "" if unknown).

    Shares are counted where the rows have counters. Elsewhere they are the parts of the calibrated
    roofline over the measured time, or over the predicted one without a column ``time_ms``.
    """
    shares = counted_shares(rows)
    model = predictor.targets_.get("time_ms")
    if model is not None and model.scale.roofline is not None:
        has_counters = shares[["memory", "compute"]].notna().any(axis=1)
        shares = shares.where(has_counters, _computed_shares(predictor, model, rows))
    return shares.assign(bottleneck=name_bottlenecks(shares))


def _computed_shares(predictor: Predictor, model: TargetModel, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the calibrated roofline over the time, by `SHARES`."""
    features = predictor.features_
    timed = rows if "time_ms" in rows else predictor.predict(rows)
    log_ms = np.log(timed["time_ms"].to_numpy(float))
    log_shares = model.scale.log_terms(features, rows) - log_ms[:, None]

    part_of_column = part_names(features.family, features.described(Rows(rows)))
    share_of_column = [SHARE_OF_PART.get(part, part) for part in part_of_column]
    parts = pd.DataFrame(np.exp(log_shares), rows.index, share_of_column)
    largest = parts.T.groupby(level=0).max().T
    return largest.reindex(columns=list(SHARES))
