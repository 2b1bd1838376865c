"""scikit-learn's bases as types: its package has none, and what derives from Any is Any."""

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:

    class Estimator:
        """Has its constructor's arguments as attributes: scikit-learn's ``BaseEstimator``."""

        n_features_in_: int

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """Return the constructor's arguments."""

        def set_params(self, **parameters: Any) -> Self:
            """Change some of them."""

        def __sklearn_tags__(self) -> Any: ...

    class RegressorEstimator(Estimator):
        """Has a ``score``: scikit-learn's ``RegressorMixin`` with it."""

        def score(self, X: Any, y: Any) -> float:
            """Return R² of what is predicted for ``X``."""

    class TransformerEstimator(Estimator):
        """Fits and transforms in one: scikit-learn's ``TransformerMixin`` with it."""

        def fit_transform(self, X: Any, y: Any = None) -> Any:
            """Fit, and return what ``transform`` does."""

else:
    from sklearn.base import BaseEstimator as Estimator
    from sklearn.base import RegressorMixin, TransformerMixin

    class RegressorEstimator(RegressorMixin, Estimator):
        """A regressor with scikit-learn's own methods."""

    class TransformerEstimator(TransformerMixin, Estimator):
        """A transformer with scikit-learn's own methods."""
