"""Exporting: what has been measured, as a standalone function, and what that keeps."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from foretune.datasets import from_measurements
from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.models.validation.splits import fold_of_rows
from foretune.space import Configuration
from foretune.tune.exporting.chooser import Chooser, best_single, learn
from foretune.tune.exporting.score import Score, score
from foretune.tune.exporting.shares import Shares
from foretune.tune.exporting.source import write_source
from foretune.tune.exporting.tree import leaves
from foretune.version import __version__

MOST_CONFIGS = 8


@dataclass(frozen=True)
class Exported:
    """A function and what it keeps of the best performance measured.

    Attributes:
        source: Python source without any import; its function is ``choose``.
        configs: what it chooses from.
        leaves: of its decision tree.
        chooser: the same, as an object.
        same: what it keeps on the problems it was made from.
        same_single: what the single best configuration keeps there.
        any_of_them: what would be kept there if, for each problem, one could know which of the
            configurations considered (`Chooser.considered`) is best.
        held_out: what functions made the same way keep on problems they were not made from; None
            if there are not enough problems.
        held_out_single: what the single best configuration of the others keeps on those.
    """

    source: str
    configs: list[Configuration]
    leaves: int
    chooser: Chooser
    same: Score
    same_single: Score
    any_of_them: float
    held_out: Score | None
    held_out_single: Score | None


def export_function(
    shares: Shares,
    most_configs: int = MOST_CONFIGS,
    depth: int | None = None,
    group: str = "problem",
    seed: int = 0,
) -> Exported:
    """Return a function from problems to configurations.

    What was not measured is guessed, cautiously, while configurations are chosen (see `expected` in
    ``chooser.py``); it is left out of the shares, and counted.

    Args:
        shares: what was measured.
        most_configs: how many configurations the function may use.
        depth: of its decision tree; None takes what keeps most of problems held out.
        group: what is held out together (see `foretune.models.validation.splits.group_columns`).
        seed: of the folds.

    Raises:
        UsageError: no configuration may be used.
        UnknownName: the group has a column that the problems have not.
    """
    if most_configs < 1:
        raise UsageError(f"--max-configs {most_configs} leaves nothing to choose: give at least 1")
    chooser = learn(shares.problems, shares.share, most_configs, depth, seed)
    single = best_single(shares.share)
    held_out, held_out_single = _held_out(shares, most_configs, depth, group, seed)
    same = score(shares.share, [chooser.choose(p) for p in shares.problems])
    same_single = score(shares.share, [single] * len(shares.problems))
    configs = [shares.configs[i] for i in chooser.subset]
    notes = _notes(shares, same, same_single, held_out)
    return Exported(
        source=write_source(_title(shares), notes, shares.problems, configs, chooser.tree),
        configs=configs,
        leaves=leaves(chooser.tree),
        chooser=chooser,
        same=same,
        same_single=same_single,
        any_of_them=float(shares.at_least[:, chooser.considered].max(axis=1).mean()),
        held_out=held_out,
        held_out_single=held_out_single,
    )


def _held_out(
    shares: Shares, most: int, depth: int | None, group: str, seed: int
) -> tuple[Score | None, Score | None]:
    """Return what choosers learned on other problems keep, and what one configuration does."""
    fold = fold_of_rows(_table(shares), "grouped", seed, group)
    if fold is None:
        return None, None
    chosen = np.zeros(len(fold), dtype=np.intp)
    single = np.zeros(len(fold), dtype=np.intp)
    for number in np.unique(fold):
        known, new = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        share = shares.share[known]
        chooser = learn([shares.problems[i] for i in known], share, most, depth, seed)
        chosen[new] = [chooser.choose(shares.problems[i]) for i in new]
        single[new] = best_single(share)
    return score(shares.share, chosen), score(shares.share, single)


def _table(shares: Shares) -> pd.DataFrame:
    nothing = Configuration()
    return from_measurements(
        Measurement(shares.kernel, problem, nothing, shares.device, Status.OK)
        for problem in shares.problems
    )


def _title(shares: Shares) -> str:
    return f"Which configuration of {shares.kernel} to run on {shares.device}."


def _notes(shares: Shares, same: Score, single: Score, held_out: Score | None) -> str:
    measured = int((~np.isnan(shares.share)).sum())
    others = "it was never tried on others."
    if held_out is not None:
        others = f"on problems held out, {_percent(held_out.kept)}."
    notes = (
        f"Written by 'foretune export' (Foretune {__version__}); edits are lost when it is written "
        f"again. Minimises {shares.objective.value}, learned from {measured} measurements of "
        f"{same.problems} problems. Of the best performance measured on them it keeps "
        f"{_percent(same.kept)} (the single best configuration: {_percent(single.kept)}); {others}"
    )
    if same.unmeasured:
        notes += (
            f" On {same.unmeasured} of them its choice was not measured: they are not in the share."
        )
    return notes


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
