"""The experts on a learned law: the law, and what trees and a process add to it.

They predict the same target as the experts on the plain scale. Trees and processes are constant far
outside their training rows: on the plain scale the predicted time stays the same there, on the law
only the law's error does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from foretune.models.learned_law import LearnedLaw
from foretune.models.power_laws import PowerLaws
from foretune.models.smooth_expert import SmoothExpert
from foretune.models.trees.regressor import Regressor

TREE_STEM = "law_tree"
SMOOTH_FILE = "law_smooth.npz"


@dataclass
class LawExperts:
    """The fitted law, and models of what it leaves.

    ``tree`` sees the features and the last ``n_waves`` inputs of the law. ``smooth`` sees the
    features; it is None in large tables.
    """

    laws: PowerLaws
    n_waves: int
    tree: Regressor
    smooth: SmoothExpert | None = None

    @classmethod
    def fit(
        cls,
        make_regressor: Callable[[], Regressor],
        law: LearnedLaw,
        X: np.ndarray,
        inputs: np.ndarray,
        log_ms: np.ndarray,
        *,
        problems: np.ndarray,
        smooth: SmoothExpert | None,
        rng: np.random.Generator,
    ) -> Self:
        """Fit to rows with features ``X`` and the law's ``inputs``.

        ``problems`` is the problem of each row; ``smooth`` has the process' hyperparameters.
        """
        laws = law.refit(inputs, log_ms, problems)
        rest = log_ms - laws.log_value(inputs)
        n_waves = law.work.n_waves
        tree = make_regressor().fit(_tree_inputs(X, inputs, n_waves), rest)
        refitted = None if smooth is None else smooth.refit(X, rest, rng)
        return cls(laws, n_waves, tree, refitted)

    def predict(self, X: np.ndarray, inputs: np.ndarray) -> list[np.ndarray]:
        """Return the log of the time that each expert predicts: law, with trees, with process."""
        log_law = self.laws.log_value(inputs)
        columns = [log_law, log_law + self.tree.predict(_tree_inputs(X, inputs, self.n_waves))]
        if self.smooth is not None:
            columns.append(log_law + self.smooth.predict(X))
        return columns

    def save(self, folder: Path) -> None:
        """Write trees and process to ``folder``; the fitted law goes into the card."""
        self.tree.save(folder / f"{TREE_STEM}{self.tree.suffix}")
        if self.smooth is not None:
            self.smooth.save(folder / SMOOTH_FILE)

    @classmethod
    def load(cls, folder: Path, regressor_class: type[Regressor], law: LearnedLaw) -> Self:
        """Read from ``folder``; ``law`` is the fit to all rows."""
        tree = regressor_class.load(folder / f"{TREE_STEM}{regressor_class.suffix}")
        smooth_file = folder / SMOOTH_FILE
        smooth = SmoothExpert.load(smooth_file) if smooth_file.exists() else None
        return cls(law.laws, law.work.n_waves, tree, smooth)


def _tree_inputs(X: np.ndarray, inputs: np.ndarray, n_waves: int) -> np.ndarray:
    if not n_waves:
        return X
    return np.hstack([X, inputs[:, -n_waves:].astype(np.float32)])
