"""The interface of a predictor's models (features in, one number out), and their threads."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from foretune.device import available_cores
from foretune.features.featureset import Estimator, RegressorMixin

T = TypeVar("T")
R = TypeVar("R")
ROWS_PER_THREAD = 16_384  # minimum rows per thread; with fewer, threads spin waiting for each other
CHUNK_ROWS = 32_768  # maximum rows per chunk; chunks are at least half as large
_sharers: ContextVar[int] = ContextVar("sharers", default=1)
"""Number of threads of this process that are fitting models."""


def threads_for(rows: int) -> int:
    """Return the number of threads that ``rows`` justify."""
    cores = max(1, available_cores() // _sharers.get())
    return min(cores, max(1, rows // ROWS_PER_THREAD))


def parallel_map(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Apply ``function`` to every item in threads, which share the cores."""
    sharers = min(len(items), available_cores())
    if sharers <= 1:
        return [function(item) for item in items]
    pool = ThreadPoolExecutor(sharers, initializer=_sharers.set, initargs=(sharers,))
    try:
        return list(pool.map(function, items))
    finally:  # an interrupt does not wait for running items
        pool.shutdown(wait=False, cancel_futures=True)


def predict_in_chunks(rows: int, predict: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Apply ``predict`` to chunks on all cores, to bound memory; join the results by column."""
    chunks = -(-max(rows, 1) // CHUNK_ROWS)
    ends = [rows * (i + 1) // chunks for i in range(chunks)]
    parts = list(map(slice, [0, *ends[:-1]], ends))
    threads = min(available_cores(), chunks)
    if chunks == 1:
        return predict(parts[0])
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        return np.hstack(list(pool.map(predict, parts)))


class Regressor(RegressorMixin, Estimator):
    """Predicts ``y`` from the rows of ``X``: a scikit-learn regressor, registered under ``models``.

    Features are float32, NaN if unknown. Fitting uses several threads, prediction one;
    `Predictor.predict` splits large tables among threads. Several models may be fitted in threads
    at the same time, so no random state may be global. Subclasses implement `_fit`, `_predict`,
    `save` and `load`. Their constructor arguments are hyperparameters and ``seed``.
    """

    suffix: str

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to ``X`` (rows, features) and ``y`` (rows)."""
        X, y = validate_data(
            self, X, y, dtype=np.float32, ensure_all_finite="allow-nan", y_numeric=True
        )
        self._fit(X, np.asarray(y, dtype=np.float64))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return one float64 per row."""
        if not self._is_valid(X):  # scikit-learn's check is slow
            check_is_fitted(self)
            X = validate_data(self, X, reset=False, dtype=np.float32, ensure_all_finite="allow-nan")
        return self._predict(X) if len(X) else np.empty(0)

    def _is_valid(self, X: Any) -> bool:
        plain = isinstance(X, np.ndarray) and X.dtype == np.float32 and X.ndim == 2
        known = getattr(self, "n_features_in_", None)
        return plain and X.shape[1] == known and not np.isinf(X).any()

    def quick(self) -> Self:
        """Return an unfitted variant that fits faster and is nearly as accurate."""
        return clone(self)

    @abstractmethod
    def _fit(self, X: np.ndarray, y: np.ndarray) -> None: ...

    @abstractmethod
    def _predict(self, X: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write to a file that runs no code when loaded."""

    @classmethod
    @abstractmethod
    def load(cls, path: Path) -> Self:
        """Read from a file."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
