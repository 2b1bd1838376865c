"""Many rows a chunk at a time, on all cores: features of a million never are in memory together."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import threadpool_limits

from foretune.device import available_cores

CHUNK_ROWS = 32_768
"""Rows at a time, at most; of more rows no chunk has less than half of that."""


def predict_in_chunks(rows: int, predict: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Return the cells (columns, rows) that ``predict`` says of every chunk, side by side."""
    chunks = -(-max(rows, 1) // CHUNK_ROWS)
    ends = [rows * (i + 1) // chunks for i in range(chunks)]
    parts, threads = list(map(slice, [0, *ends[:-1]], ends)), min(available_cores(), chunks)
    if chunks == 1:
        return predict(parts[0])
    if threads == 1:
        return np.hstack(list(map(predict, parts)))
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        return np.hstack(list(pool.map(predict, parts)))
