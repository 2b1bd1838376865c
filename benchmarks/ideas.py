"""What was tried inside the surrogate searcher, and what it was worth.

Every line is the shipped searcher with one thing changed (models of trees also learn from every
third measurement only), replayed on the complete recorded spaces of a folder without any prior.

    python benchmarks/ideas.py SPACES --repeats 5 --jobs 2
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from machine import heading, markdown
from scipy.stats import norm, rankdata
from spaces import complete_spaces

from foretune.collect import local_device
from foretune.models.gaussian_process import Posterior
from foretune.search.posterior import log_expected_improvement
from foretune.search.replay.replay import replay
from foretune.search.replay.scores import EVALUATION_POINTS, score_replay, summarize
from foretune.search.surrogate import SurrogateSearcher


class RandomDesign(SurrogateSearcher):
    """First measurements at random instead of far apart."""

    def _farthest(
        self, free: np.ndarray, chosen: list[int], encode: Callable[[np.ndarray], np.ndarray]
    ) -> int:
        return int(self.rng.choice(self._pool[free]))


class SmoothDesign(SurrogateSearcher):
    """First measurements far apart in the model's coordinates instead of along the parameters."""

    def _screening(self, indices: np.ndarray) -> np.ndarray:
        return self._encoder.encode(indices)


class Ranks(SurrogateSearcher):
    """The normal score of its rank instead of the logarithm of the time."""

    def _residuals(self) -> tuple[np.ndarray, float]:
        values = np.array([self.observed[i] for i in self._posterior_indices])
        self._best_score = float(norm.ppf(0.5 / len(values)))
        return norm.ppf((rankdata(values) - 0.5) / len(values)), 0.0

    def _log_acquisition(self, posterior: Posterior) -> np.ndarray:
        best = self._scale * self._best_score
        return log_expected_improvement(posterior, best) + np.log(self._p_valid)


class LowerBound(SurrogateSearcher):
    """Lower confidence bound, one standard deviation, instead of expected improvement."""

    def _log_acquisition(self, posterior: Posterior) -> np.ndarray:
        return posterior.spread - posterior.mean + np.log(self._p_valid)


class Thompson(SurrogateSearcher):
    """An independent draw per candidate instead of expected improvement."""

    def _log_acquisition(self, posterior: Posterior) -> np.ndarray:
        return -self.rng.normal(posterior.mean, posterior.spread) + np.log(self._p_valid)


class BareParameters(SurrogateSearcher):
    """Positions of values in their lists instead of logarithms, alignment and geometry."""

    def _prepare(self) -> None:
        super()._prepare()
        self._encoder = Positions(self.space.codes)  # type: ignore[assignment]


class Positions:
    """Stands in for `ConfigurationEncoder`."""

    def __init__(self, codes: np.ndarray) -> None:
        self._codes = codes[:, codes.max(axis=0) > 0]
        self._last = self._codes.max(axis=0)
        self.others = np.empty((0, len(self._last)))
        self.names = tuple(map(str, range(len(self._last))))

    def __len__(self) -> int:
        return len(self._last)

    def encode(self, indices: np.ndarray) -> np.ndarray:
        """Return the numbered configurations as points."""
        return self._codes[indices] / self._last


class Guess(NamedTuple):
    """Stands in for a posterior."""

    mean: np.ndarray
    spread: np.ndarray


class Trees(SurrogateSearcher):
    """A model of trees instead of the process; it learns every third measurement."""

    def _update_posterior(self) -> None:
        if len(self.observed) < self._fitted_count + 3 and self._fitted_count:
            return
        self._fitted_count = len(self.observed)
        self._posterior_indices = list(self.observed)
        X = self._encoder.encode(np.array(self._posterior_indices))
        self._guess = self._predict(X, self._residuals()[0])

    def _best_candidate(self, free: np.ndarray, chosen: list[int]) -> int:
        log_acquisition = self._log_acquisition(self._guess)  # type: ignore[arg-type]
        return int(self._pool[np.argmax(np.where(free, log_acquisition, -np.inf))])

    def _log_acquisition(self, posterior: Posterior) -> np.ndarray:
        return log_expected_improvement(posterior, self._residuals()[0].min())

    def _is_informed(self) -> bool:
        return False  # trees do not estimate the regret

    def _predict(self, X: np.ndarray, y: np.ndarray) -> Guess:
        raise NotImplementedError


class Forest(Trees):
    """A random forest, the spread of its trees as uncertainty, expected improvement."""

    def _predict(self, X: np.ndarray, y: np.ndarray) -> Guess:
        from sklearn.ensemble import RandomForestRegressor

        forest = RandomForestRegressor(40, min_samples_leaf=1, max_features=0.5, random_state=0)
        trees = forest.fit(X, y).estimators_
        each = np.array([t.predict(self._encoder.encode(self._pool)) for t in trees])
        return Guess(each.mean(axis=0), each.std(axis=0) + 1e-3)


class Boosting(Trees):
    """Gradient boosting on the logarithm; the best prediction is measured, one in ten at random."""

    objective_name = "reg:squarederror"

    def _predict(self, X: np.ndarray, y: np.ndarray) -> Guess:
        import xgboost

        settings = {"objective": self.objective_name, "eta": 0.2, "max_depth": 6, "nthread": 1}
        data = xgboost.DMatrix(X, self._label(y))
        model = xgboost.train(settings, data, 50)
        mean = -model.predict(xgboost.DMatrix(self._encoder.encode(self._pool)))
        return Guess(mean, np.full(len(mean), 1e-3))

    def _label(self, y: np.ndarray) -> np.ndarray:
        return -y

    def _log_acquisition(self, posterior: Posterior) -> np.ndarray:
        mean = posterior.mean
        return self.rng.random(len(mean)) if self.rng.random() < 0.1 else -mean


class Ranking(Boosting):
    """The same with a pairwise ranking loss."""

    objective_name = "rank:pairwise"

    def _label(self, y: np.ndarray) -> np.ndarray:
        return np.ceil(31 * (rankdata(-y) - 1) / len(y))  # XGBoost's relevance: 0 … 31


IDEAS: dict[str, type[SurrogateSearcher]] = {
    "as shipped": SurrogateSearcher,
    "first design at random": RandomDesign,
    "first design along all axes": SmoothDesign,
    "bare parameters as axes": BareParameters,
    "ranks instead of log time": Ranks,
    "lower confidence bound": LowerBound,
    "Thompson sampling": Thompson,
    "random forest": Forest,
    "boosting, regression": Boosting,
    "boosting, ranking": Ranking,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("spaces", type=Path, help="folder of recorded spaces")
    parser.add_argument("--only", default="", help="tables with this text in their name")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    spaces = complete_spaces(options.spaces, options.only)
    print(heading("Ideas inside the surrogate", local_device()))
    print(f"{len(spaces)} spaces, {options.repeats} repeats\n")
    rows = []
    for name, idea in IDEAS.items():
        replays = [(s, replay(s, idea, 200, options.repeats, n_jobs=options.jobs)) for s in spaces]
        found = summarize([score_replay(*pair) for pair in replays])
        shares = [f"{found.fraction_at[n]:.3f}" for n in EVALUATION_POINTS[1:]]
        rows.append([name, f"{found.evals_to_95:.0f}", f"{found.evals_to_99:.0f}", *shares])
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    columns = ["idea", "to 95 %", "to 99 %", *(f"f{n}" for n in EVALUATION_POINTS[1:])]
    print("\n" + markdown(columns, rows))


if __name__ == "__main__":
    main()
