"""The seam between a predictor and what it learns with: numbers in, one number out."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted, validate_data

from foretune.device import available_cores
from foretune.features.featureset import RegressorEstimator

T = TypeVar("T")
R = TypeVar("R")
ROWS_PER_THREAD = 16_384
"""Fewer rows are done by one thread: on a busy machine, threads that wait for each other spin."""
_sharers: ContextVar[int] = ContextVar("sharers", default=1)
"""How many threads of this process learn at the same time."""


def threads_for(rows: int) -> int:
    """Return how many threads pay for ``rows``."""
    cores = max(1, available_cores() // _sharers.get())
    return min(cores, max(1, rows // ROWS_PER_THREAD))


def parallel_map(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return ``function`` of every item, done at the same time; the cores are shared among them."""
    sharers = min(len(items), available_cores())
    if sharers <= 1:
        return [function(item) for item in items]
    pool = ThreadPoolExecutor(sharers, initializer=_sharers.set, initargs=(sharers,))
    try:
        return list(pool.map(function, items))
    finally:  # who interrupts does not wait for the others
        pool.shutdown(wait=False, cancel_futures=True)


class Regressor(RegressorEstimator):
    """Learns ``y`` from the rows of ``X``: a scikit-learn regressor, registered under ``models``.

    Features are float32, NaN where unknown. It learns with several threads and predicts with one:
    who has many rows shares them out (`Predictor.predict`). Several models may learn at the same
    time, in threads: nothing global may be random. Subclasses fill in `_fit`, `_predict`, `save`
    and `load`; their constructor arguments are hyperparameters and ``seed``.

    Attributes:
        suffix: of the file it is saved to.
    """

    suffix: str

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from ``X`` (rows, features) and ``y`` (rows)."""
        X, y = validate_data(
            self, X, y, dtype=np.float32, ensure_all_finite="allow-nan", y_numeric=True
        )
        self._fit(X, np.asarray(y, dtype=np.float64))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return one float64 per row."""
        if not self._is_valid(X):  # scikit-learn takes as long to find out as many trees to predict
            check_is_fitted(self)
            X = validate_data(self, X, reset=False, dtype=np.float32, ensure_all_finite="allow-nan")
        return self._predict(X) if len(X) else np.empty(0)

    def _is_valid(self, X: Any) -> bool:
        plain = isinstance(X, np.ndarray) and X.dtype == np.float32 and X.ndim == 2
        known = getattr(self, "n_features_in_", None)
        return plain and X.shape[1] == known and not np.isinf(X).any()

    def quick(self) -> Self:
        """Return an unfitted model like this one that learns sooner, and nearly as well."""
        model: Self = clone(self)
        return model

    @abstractmethod
    def _fit(self, X: np.ndarray, y: np.ndarray) -> None: ...

    @abstractmethod
    def _predict(self, X: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write to a file that runs no code when it is loaded."""

    @classmethod
    @abstractmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
