"""Surrogate search: expected improvement under a prior that measurements correct.

`SurrogateModel` describes the log objective: a prior, corrected by a Gaussian process that learns
from the search and from the kernel's other problems. The next proposal maximizes the expected
improvement (Jones, Schonlau and Welch, Journal of Global Optimization 13, 1998) times the prior
probability to run. Without a prior, an initial design comes first.

Words of this page:

- A loss is the log of an objective, infinite for a failure.
- The pool has the candidates that are compared: all configurations, or a part of a large space.
- An informative prior expects more of some configurations than of others. A flat one gives only
  probabilities to run; otherwise the search goes on as without a prior.
- Conditioning gives a process its measurements; refitting also fits its hyperparameters.
- Configurations are *proposed* when `ask` returns them, and *observed* when they are measured. The
  posterior has *read* those that were observed at its last update. It is *conditioned on* these,
  but on a part only of very many (`subsample_measurements`). Each set contains the next one.
- A `LossPosterior` has the losses to expect of the pool, and takes further measurements. A
  `SearchPosterior` adds what a choice needs: measured objectives and probabilities to run.
"""

import math
from typing import Any

import numpy as np

from foretune.models.gaussian_process import Posterior
from foretune.search.blas_threads import one_blas_thread
from foretune.search.design import farthest
from foretune.search.encoding import ConfigurationEncoder
from foretune.search.experience import FAILURES_ARE_SLOW, Experience, log_values
from foretune.search.posterior import SearchPosterior
from foretune.search.searcher import PRIOR_CHECKS, Searcher
from foretune.search.surrogate_model import (
    REFIT_FACTOR,
    Evidence,
    FitCache,
    LossPosterior,
    OtherProblems,
    Points,
    PriorScale,
    SurrogateModel,
    subsample_measurements,
)

THIS_PROBLEM = 0.0  # number of the searched problem; other problems count from 1
INITIAL_DESIGN_SIZE = 6  # measurements of the initial design without a prior
NEIGHBOR_PERIOD = 4  # without a prior, every n-th proposal is a random neighbor of the best
MIN_P_VALID = 0.05  # lower bound of a prior's probabilities to run

POOL_SIZE = 8000
"""Maximum number of candidates; those of a larger space change as the search learns."""
EXPANDED_BEST = 5  # number of best configurations whose neighbors join the pool
MAX_CHANGES = 3
"""In spaces too large to enumerate, neighbors differ from the best in up to three parameters."""
MAX_STARTS = POOL_SIZE // 200
"""Number of neighbors from which the next round of neighbors starts."""


class SurrogateSearcher(Searcher):
    """Expected improvement under a prior corrected by a Gaussian process.

    ``args`` and ``named``: as for `Searcher`; ``fits``: cache of the searches of one kernel.
    """

    uses_prior = True

    def __init__(self, *args: Any, fits: FitCache | None = None, **named: Any) -> None:
        self._model = SurrogateModel(fits)
        super().__init__(*args, **named)

    def _prepare(self) -> None:
        self._experience = Experience(
            self.other_measurements, self.objective, self.problem, self.space, self.prior
        )
        self._encoder = ConfigurationEncoder(
            self.space, self.problem, self.device, self._experience.measurements
        )
        self._prepare_prior()

        self._loss_posterior: LossPosterior | None = None
        self._conditioned_on: list[int] = []
        """The configurations that the posterior is conditioned on, in its order."""
        self._read: set[int] = set()
        """The configurations that were observed at the last update of the posterior."""
        self._count_at_conditioning = 0
        """Number of observed configurations when the posterior was last conditioned anew."""
        self._refresh_pool()

    def _prepare_prior(self) -> None:
        self._prior_mean_of_space: np.ndarray | None = None
        """Log means of an informative prior around zero, by configuration number; else None."""
        self._prior_scale: PriorScale | None = None
        """The standard deviation of these means (the unit), and the error to expect of them."""
        self._p_valid_of_space: np.ndarray | None = None
        """Bounded probabilities to run, by configuration number; None if there is no prior."""
        if self.prior is None:
            return
        self._p_valid_of_space = np.maximum(self.prior.p_valid, MIN_P_VALID)
        if np.ptp(self.prior.log_mean):
            self._prior_mean_of_space = self.prior.log_mean - self.prior.log_mean.mean()
            self._prior_scale = PriorScale.of_prior(self.prior.log_mean, self.prior.log_spread)

    # Ask: propose configurations.

    def _propose(self, n: int) -> list[int]:
        chosen: list[int] = []
        with one_blas_thread():
            if self._has_evidence():
                self._updated_loss_posterior()
            while len(chosen) < n:
                free = ~np.isin(self._pool, [*self.proposed, *chosen])
                if free.any():
                    chosen.append(self._next(free, chosen))
                else:  # every candidate of the pool was proposed
                    others = [i for i in self.random_indices(n) if i not in chosen]
                    chosen += others[: n - len(chosen)]
        return chosen

    def _next(self, free: np.ndarray, chosen: list[int]) -> int:
        """Return the next proposal among the ``free`` candidates, while ``chosen`` are pending."""
        count = len(self.proposed) + len(chosen)

        # 1. A prior from another device: check it now and then, where nothing was measured.
        if self._prior_is_foreign() and count in PRIOR_CHECKS:
            likely_to_run = self._p_valid_of_pool >= min(0.5, self._p_valid_of_pool[free].max())
            return self._farthest_in_encoding(free & likely_to_run, chosen)

        # 2. With evidence: the largest acquisition; without a prior, now and then a neighbor.
        if self._has_evidence():
            is_neighbors_turn = count % NEIGHBOR_PERIOD == NEIGHBOR_PERIOD - 1
            if is_neighbors_turn and not self._has_informative_prior() and self._success_count():
                return self._neighbor_of_best(free)
            return self._best_candidate(free, chosen)

        # 3. A prior, but no evidence (no success, no other problems): the order of the prior.
        if self._has_informative_prior():
            scores = self._prior_scores(self._pool)
            return int(self._pool[np.argmax(np.where(free, scores, -np.inf))])

        # 4. Neither a prior nor evidence: the initial design. It starts at the extremes of the
        # space. After a failure, it draws a random configuration, because other extremes are likely
        # to fail as well.
        if self.observed and not math.isfinite(next(reversed(self.observed.values()))):
            return int(self.rng.choice(self._pool[free]))
        return self._farthest_in_codes(free, chosen)

    def _has_informative_prior(self) -> bool:
        """Return whether a prior expects more of some configurations than of others."""
        return self._prior_mean_of_space is not None

    def _prior_is_foreign(self) -> bool:
        """Return whether an informative prior comes from another device."""
        return self._has_informative_prior() and self.prior is not None and self.prior.foreign

    def _has_evidence(self) -> bool:
        """Return whether the process has something to learn from.

        Measurements of other problems are enough, even before the first success. Otherwise it needs
        a success, and without a prior also the whole initial design.
        """
        if len(self._experience):
            return True
        has_enough = self._has_informative_prior() or len(self.observed) >= INITIAL_DESIGN_SIZE
        return has_enough and self._success_count() > 0

    def _success_count(self) -> int:
        return sum(math.isfinite(value) for value in self.observed.values())

    def _farthest_in_encoding(self, free: np.ndarray, chosen: list[int]) -> int:
        """Return the candidate whose encoding is farthest from all proposed ones."""
        candidates = self._pool[free]
        proposed = np.array([*self.proposed, *chosen])
        encode = self._encoder.encode
        return int(candidates[farthest(encode(candidates), encode(proposed))])

    def _farthest_in_codes(self, free: np.ndarray, chosen: list[int]) -> int:
        """Return the candidate that is farthest from all proposed ones; the first is random.

        Every parameter has the same length, so corners come first, as in a two-level screening
        design: a few measurements show every main effect.
        """
        candidates = self._pool[free]
        proposed = [*self.proposed, *chosen]
        if not proposed:
            return int(self.rng.choice(candidates))
        n_values = [len(values) for values in self.space.parameters.values()]
        length = np.array([max(n - 1, 1) for n in n_values])
        positions = self.space.codes_of(candidates) / length
        proposed_positions = self.space.codes_of(np.array(proposed)) / length
        return int(candidates[farthest(positions, proposed_positions)])

    def _neighbor_of_best(self, free: np.ndarray) -> int:
        """Return a random candidate that differs from the best in the fewest parameters.

        They differ in one parameter, or in two if no candidate differs in one (as in permutations).
        """
        successes = {i: value for i, value in self.observed.items() if math.isfinite(value)}
        best = min(successes, key=lambda i: successes[i])
        candidates = self._pool[free]
        differs = self.space.codes_of(candidates) != self.space.codes_of(best)
        n_differences = differs.sum(axis=1)
        return int(self.rng.choice(candidates[n_differences == n_differences.min()]))

    def _best_candidate(self, free: np.ndarray, chosen: list[int]) -> int:
        """Return the candidate of largest acquisition while ``chosen`` are pending."""
        assert self._loss_posterior is not None
        pending = np.array([*(self.proposed - self.observed.keys()), *chosen], dtype=np.int64)
        with self._loss_posterior.pending(self._points(pending)) as with_pending:
            log_acquisition = self._search_posterior_from(with_pending).log_acquisition
        return int(self._pool[np.argmax(np.where(free, log_acquisition, -np.inf))])

    # What the search expects.

    def expected_regret(self) -> float:
        """Return the expected regret of `best`: how much slower than the optimum, relative.

        Infinite before the first success, during the initial design, and until a prior from another
        device was checked (`PRIOR_CHECKS`).
        """
        if not self._is_informed():
            return math.inf
        return self._updated_search_posterior().expected_regret

    def expected_improvement(self) -> float:
        """Return the expected gain on `best` of one more measurement, relative."""
        if not self._is_informed():
            return math.inf
        posterior = self._updated_search_posterior()
        free = ~np.isin(self._pool, list(self.proposed))
        return posterior.expected_improvement(free)

    def _is_informed(self) -> bool:
        """Whether there is enough data to estimate the regret."""
        if not self._has_informative_prior():
            needed = min(INITIAL_DESIGN_SIZE, len(self.space))
        elif self._prior_is_foreign():
            needed = PRIOR_CHECKS[-1] + 1
        else:
            needed = 0
        has_success = self._success_count() > 0
        return self._has_evidence() and has_success and len(self.observed) >= needed

    def search_posterior(self) -> SearchPosterior | None:
        """Return the posterior of all candidates; None without evidence."""
        return self._updated_search_posterior() if self._has_evidence() else None

    def _updated_search_posterior(self) -> SearchPosterior:
        """Return the posterior of all candidates after all measurements; needs evidence."""
        with one_blas_thread():
            loss_posterior = self._updated_loss_posterior()
            return self._search_posterior_from(loss_posterior.of_candidates)

    def _search_posterior_from(self, losses: Posterior) -> SearchPosterior:
        """Return what a choice needs, with these ``losses`` to expect of the up-to-date pool."""
        objective = np.full(len(self._pool), math.nan)
        # The pool is sorted. After an update, every measured configuration is in it.
        measured_rows = np.searchsorted(self._pool, [*self.observed])
        objective[measured_rows] = [*self.observed.values()]
        return SearchPosterior(
            indices=self._pool,
            posterior=losses,
            p_valid=self._p_valid_of_pool,
            objective=objective,
        )

    # Tell: learn from measurements. They are read when the next proposal or estimate needs them.

    def _updated_loss_posterior(self) -> LossPosterior:
        """Return the posterior of the pool's losses after all measurements."""
        unread = [i for i in self.observed if i not in self._read]
        self._read.update(unread)

        if self._loss_posterior is None or self._must_condition_anew():
            self._loss_posterior = self._condition_anew()
            return self._loss_posterior

        # Adding measurements is cheaper than conditioning the process anew.
        if unread:
            self._loss_posterior.add(self._points(np.array(unread)))
            self._conditioned_on += unread

        # All losses are set, even if no configuration is new: one that was measured again has
        # another loss.
        self._loss_posterior.set_losses(self._losses_of(self._conditioned_on))
        return self._loss_posterior

    def _must_condition_anew(self) -> bool:
        """Return whether measurements cannot just be added to the posterior.

        That is if one is of a configuration outside the pool, or if there are so many more that the
        model would refit its hyperparameters, which an existing posterior keeps.
        """
        is_in_pool = np.isin(list(self.observed), self._pool)
        if not is_in_pool.all():
            return True
        n_observed = len(self.observed)
        if n_observed == self._count_at_conditioning:
            return False
        return n_observed >= REFIT_FACTOR * self._count_at_conditioning

    def _condition_anew(self) -> LossPosterior:
        """Return a posterior conditioned on all measurements, or on a part of many.

        A part of a large space is chosen anew: the pool follows the best configurations. The model
        refits its hyperparameters if there are enough new measurements.
        """
        self._count_at_conditioning = len(self.observed)
        if len(self._pool) < len(self.space):
            self._refresh_pool()

        measured = np.array(list(self.observed), dtype=np.int64)
        values = np.array(list(self.observed.values()))
        conditioned_on = measured[subsample_measurements(values, self.rng)]
        self._conditioned_on = conditioned_on.tolist()

        evidence = Evidence(
            measured=self._points(conditioned_on),
            losses=self._losses_of(self._conditioned_on),
            failure_rule=FAILURES_ARE_SLOW,
            others=self._other_problems(),
        )
        return self._model.condition(
            evidence,
            self._points(self._pool),
            key=self._encoder.names,
            n_measured=len(self._experience) + len(conditioned_on),
            prior_scale=self._prior_scale,
        )

    def _losses_of(self, indices: list[int]) -> np.ndarray:
        """Return the logs of the measured objectives."""
        return log_values([self.observed[i] for i in indices])

    def _points(self, indices: np.ndarray) -> Points:
        """Return configurations of the searched problem as points of the process."""
        prior_mean = None
        if self._prior_mean_of_space is not None:
            prior_mean = self._prior_mean_of_space[indices]
        return Points(
            encoded=self._encoder.encode(indices),
            prior_mean=prior_mean,
            problem=np.full(len(indices), THIS_PROBLEM),
        )

    def _other_problems(self) -> OtherProblems:
        """Return the measurements of other problems; they have prior means if ours do."""
        prior_mean = self._experience.log_mean if self._has_informative_prior() else None
        points = Points(
            encoded=self._encoder.others,
            prior_mean=prior_mean,
            problem=self._experience.problems,
        )
        return OtherProblems(points, self._experience.errors)

    def _prior_scores(self, indices: np.ndarray) -> np.ndarray:
        """Return how good an informative prior finds configurations; larger is better.

        A score is the log of the probability to run, less the expected loss in units of the prior.
        """
        assert self._prior_mean_of_space is not None
        assert self._prior_scale is not None
        assert self._p_valid_of_space is not None
        scaled_loss = self._prior_mean_of_space[indices] / self._prior_scale.unit
        return np.log(self._p_valid_of_space[indices]) - scaled_loss

    # The pool: the candidates that are compared.

    def _refresh_pool(self) -> None:
        self._pool = self._candidates()
        self._p_valid_of_pool = np.ones(len(self._pool))
        if self._p_valid_of_space is not None:
            self._p_valid_of_pool = self._p_valid_of_space[self._pool]

    def _candidates(self) -> np.ndarray:
        """Return the sorted indices of all configurations, or of about `POOL_SIZE`.

        The pool has the measured configurations and the neighbors of the best, in spaces too large
        to enumerate also further neighbors. With a prior, half of the pool are the most promising
        ones. The others are random.
        """
        if len(self.space) <= POOL_SIZE:
            return np.arange(len(self.space))
        measured = np.array([*self.observed], dtype=np.int64)
        parts = [measured, *self._neighbors_of_best_few(), *self._best_of_prior()]
        n_random = max(POOL_SIZE - sum(map(len, parts)), POOL_SIZE // 4)
        parts.append(self.space.sample_indices(n_random, self.rng))
        return np.unique(np.concatenate(parts))

    def _neighbors_of_best_few(self) -> list[np.ndarray]:
        """Return neighbors of the best; in spaces too large to enumerate, also theirs."""
        ran = [i for i, value in self.observed.items() if math.isfinite(value)]
        if not ran:
            return []
        best = sorted(ran, key=lambda i: self.observed[i])[:EXPANDED_BEST]
        rounds = [self.space.neighbor_indices(best)]
        n_rounds = MAX_CHANGES if self.space.is_too_large_to_enumerate else 1
        while len(rounds) < n_rounds:
            n_starts = min(len(rounds[-1]), MAX_STARTS)
            starts = self.rng.choice(rounds[-1], n_starts)
            further = self.rng.permutation(self.space.neighbor_indices(starts))
            rounds.append(further[: POOL_SIZE // 4])
        return rounds

    def _best_of_prior(self) -> list[np.ndarray]:
        """Return the configurations that a prior finds most promising; nothing without a prior."""
        if not self._has_informative_prior():
            return []
        whole_space = np.arange(len(self.space))
        scores = self._prior_scores(whole_space)
        n_best = POOL_SIZE // 2
        return [np.argpartition(-scores, n_best)[:n_best]]
