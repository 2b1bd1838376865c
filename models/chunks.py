"""Predicts many rows in chunks on all cores, to bound memory."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import threadpool_limits

from foretune.device import available_cores

CHUNK_ROWS = 32_768
"""Maximum rows per chunk; chunks are at least half as large."""


def predict_in_chunks(rows: int, predict: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Apply ``predict`` to every chunk and concatenate the results (columns, rows)."""
    chunks = -(-max(rows, 1) // CHUNK_ROWS)
    ends = [rows * (i + 1) // chunks for i in range(chunks)]
    parts, threads = list(map(slice, [0, *ends[:-1]], ends)), min(available_cores(), chunks)
    if chunks == 1:
        return predict(parts[0])
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        return np.hstack(list(pool.map(predict, parts)))
