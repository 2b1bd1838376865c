"""Which predictor others should take: the champion, and what has to be better than it.

A new predictor becomes champion if its typical error on held-out problems is smaller than that of
every baseline on the same rows, and than that of the present champion: on those of its held-out
problems that the champion has not learned from, where there are enough; else each by what it was
held to when it was trained. Otherwise it is the challenger.
"""

from dataclasses import dataclass

import numpy as np

from foretune.datasets import latest
from foretune.datasets.runs import problems_of
from foretune.errors import ForetuneError
from foretune.models import Predictor, Training
from foretune.models.target.targets import measured_rows

CHAMPION, CHALLENGER = "champion", "challenger"
METRIC = "median_ape"
ENOUGH = 2
"""Held-out problems new to the champion on which the two can be compared."""


@dataclass(frozen=True)
class Verdict:
    """What a new predictor is to be called, and why.

    Attributes:
        alias: `CHAMPION` or `CHALLENGER`.
        reason: one line.
        error: its `METRIC` on held-out problems; NaN where none were held out.
    """

    alias: str
    reason: str
    error: float


def judge(training: Training, present: Predictor | None, present_error: float) -> Verdict:
    """Return whether a new predictor becomes champion.

    Args:
        training: of the new one.
        present: the champion; None where there is none.
        present_error: the champion's `METRIC` on problems held out when it was trained; NaN where
            nobody knows.
    """
    target = next(iter(training.predictor.targets_))
    splits = training.scores[target]
    if "grouped" not in splits:
        reason = "no problem was held out: train it on runs of several problems"
        return Verdict(CHALLENGER, reason, np.nan)
    scores = splits["grouped"]
    error = scores[training.predictor.model][METRIC]
    others = {n: s[METRIC] for n, s in scores.items() if n != training.predictor.model}
    name = min(others, key=lambda n: others[n], default="")
    if name and not error < others[name]:
        return Verdict(
            CHALLENGER, _words(error, others[name], f"of the baseline {name!r}", False), error
        )
    if present is None:
        reason = "there is no champion to beat"
        if name:
            words = _words(error, others[name], f"of the best baseline, {name!r}", True)
            reason = f"{reason}; {words}"
        return Verdict(CHAMPION, reason, error)
    held_out = training.validation.held_out[target]
    known = set(map(str, problems_of(present.measured_runs())))
    new = held_out[~held_out["problem"].isin(known)]
    if new["problem"].nunique() >= ENOUGH:
        runs = measured_rows(target, latest(training.predictor.runs_))
        rows = runs[[str(p) in set(new["problem"]) for p in problems_of(runs)]]
        try:
            predicted = present.predict(rows)[target].to_numpy()
        except (ForetuneError, KeyError) as e:
            return Verdict(CHAMPION, f"the champion cannot predict these runs: {e}", error)
        mine = _error(new["truth"].to_numpy(), new["prediction"].to_numpy())
        theirs = _error(rows[target].to_numpy(float), predicted)
        where = f"of the champion on {new['problem'].nunique()} problems new to both"
    else:
        mine, theirs = error, present_error
        where = "of the champion, each on problems held out in training"
    better = bool(mine < theirs) or np.isnan(theirs)
    return Verdict(CHAMPION if better else CHALLENGER, _words(mine, theirs, where, better), error)


def _error(truth: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.median(np.abs(predicted - truth) / truth))


def _words(mine: float, theirs: float, where: str, better: bool) -> str:
    relation = "better than" if better else "no better than"
    return f"typical error {100 * mine:.1f} % is {relation} the {100 * theirs:.1f} % {where}"
